// A rank beside its GPU, with a sysfs of the test's own.
#include "device/device.h"
#include "unit.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[] = "/tmp/numa_XXXXXX";

// Writes root/folder/name, with the folders on the way.
static void put(const char *folder, const char *name, const char *line) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", line);
    fclose(file);
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state) {
    char command[600];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

TEST(the_node_of_a_gpu_is_what_sysfs_says) {
    put("bus/pci/devices/0000:3b:00.0", "numa_node", "1");
    put("bus/pci/devices/0000:5e:00.0", "numa_node", "-1"); // one socket, or a firmware that does not tell
    put("bus/pci/devices/0000:5f:00.0", "numa_node", "");
    assert_int_equal(numa_node(root, "0000:3B:00.0"), 1);
    assert_int_equal(numa_node(root, "0000:5e:00.0"), -1);
    assert_int_equal(numa_node(root, "0000:5f:00.0"), -1);
    assert_int_equal(numa_node(root, "0000:99:00.0"), -1);
}

TEST(gpus_that_all_report_one_node_are_near_none) {
    const int sockets[] = {0, 0, 1, 1}, machine[] = {0, 0, 0, 0}, unknown[] = {-1, 0};
    assert_int_equal(numa_near(sockets, 4, 1), 0);
    assert_int_equal(numa_near(sockets, 4, 3), 1);
    assert_int_equal(numa_near(machine, 4, 2), -1);
    assert_int_equal(numa_near(machine, 1, 0), 0);
    assert_int_equal(numa_near(unknown, 2, 1), 0);
}

// In a process of its own, since it stays bound. Returns numa_bind's answer and sets *left to what is allowed then.
static bool bound(int node, cpu_set_t *left) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        bool answer = numa_bind(root, node);
        sched_getaffinity(0, sizeof *left, left);
        _exit(write(ends[1], left, sizeof *left) == sizeof *left ? answer : 2);
    }
    int status = 0;
    close(ends[1]);
    assert_int_equal(read(ends[0], left, sizeof *left), sizeof *left);
    close(ends[0]);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}

TEST(a_process_keeps_those_of_its_cores_that_the_node_has) {
    cpu_set_t allowed, left;
    char line[64];
    int last = -1;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &allowed)) last = core;
    // The last core that this process may run on, and cores that no machine has.
    snprintf(line, sizeof line, "%d,1000-1003", last);
    put("devices/system/node/node0", "cpulist", line);
    put("devices/system/node/node1", "cpulist", "1000-1003");
    put("devices/system/node/node2", "cpulist", "0-1023");
    assert_true(bound(0, &left));
    assert_int_equal(CPU_COUNT(&left), 1);
    assert_true(CPU_ISSET((size_t)last, &left));
    assert_false(bound(1, &left)); // a launcher has chosen cores elsewhere
    assert_true(CPU_EQUAL(&left, &allowed));
    assert_true(bound(2, &left));
    assert_true(CPU_EQUAL(&left, &allowed));
    assert_false(bound(3, &left));
    assert_false(bound(-1, &left));
}

int main(void) { return unit_run(make_root, remove_root); }
