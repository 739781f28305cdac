// NUMA placement of a rank next to its GPU, see device.h. Everything comes from sysfs and two system calls, so that no
// library is needed; where the kernel says nothing, nothing is done.
#include "device.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Reads the first line of a file of sysfs. Returns false if the file does not exist.
static bool numa_read_(const char *sysfs, const char *path, char *line, int size) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", sysfs, path);
    FILE *file = fopen(whole, "r");
    if (file == NULL) return false;
    bool read = fgets(line, size, file) != NULL;
    fclose(file);
    return read;
}

int numa_node(const char *sysfs, const char *bus) {
    char path[128], line[32], *end;
    snprintf(path, sizeof path, "bus/pci/devices/%s/numa_node", bus);
    for (char *c = path; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c); // as the kernel writes them
    if (!numa_read_(sysfs, path, line, sizeof line)) return -1;
    long node = strtol(line, &end, 10);
    return end != line && node >= 0 && node < 1024 ? (int)node : -1;
}

int numa_near(const int *nodes, int count, int gpu) {
    bool same = true;
    for (int i = 1; i < count; i++) same = same && nodes[i] == nodes[0];
    return count > 1 && same ? -1 : nodes[gpu];
}

// Adds the cores of a list such as "0-3,8-11" to the set.
static void numa_cores_(const char *list, cpu_set_t *cores) {
    while (isdigit((unsigned char)*list)) {
        char *end;
        long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long core = first; core <= last && core < CPU_SETSIZE; core++) CPU_SET((size_t)core, cores);
        list = *end == ',' ? end + 1 : end;
    }
}

// Prefers the node's memory (MPOL_PREFERRED): once the node is full, memory comes from other nodes.
static void prefer_memory_(int node) {
#ifdef SYS_set_mempolicy
    enum { MPOL_PREFERRED_ = 1, BITS = 8 * sizeof(unsigned long) };
    unsigned long nodes[1024 / BITS + 1] = {0};
    nodes[node / BITS] = 1ul << node % BITS;
    syscall(SYS_set_mempolicy, MPOL_PREFERRED_, nodes, 1024ul);
#else
    (void)node;
#endif
}

bool numa_bind(const char *sysfs, int node) {
    char path[64], line[4096];
    cpu_set_t allowed, cores;
    snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", node);
    CPU_ZERO(&cores);
    if (node < 0 || !numa_read_(sysfs, path, line, sizeof line)) return false;
    numa_cores_(line, &cores);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    CPU_AND(&cores, &cores, &allowed);
    if (CPU_COUNT(&cores) == 0) return false;
    prefer_memory_(node);
    return CPU_EQUAL(&cores, &allowed) || sched_setaffinity(0, sizeof cores, &cores) == 0;
}
