// Compares the memory that a run needs with the machine's free memory, cgroup limits included, and suggests settings
// that would fit.
#include "fits.h"
#include "base/alloc.h"
#include "base/units.h"

#include "device/device.h"
#include "base/grid.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Applies the limits of the group and of all its ancestors. In a container, /proc may show the group's path on the
// host, which the container lacks. The loop still reaches the visible root, which has the container's limit.
static void lower_to_group_(int64_t *bytes, const char *root, const char *name, char *group) {
    for (;;) {
        char path[1400];
        snprintf(path, sizeof path, "%s%s/%s", root, group, name);
        FILE *file = fopen(path, "r");
        long long limit; // the text "max" (no limit) is skipped
        if (file != NULL && fscanf(file, "%lld", &limit) == 1 && limit > 0 && (*bytes == 0 || limit < *bytes))
            *bytes = limit;
        if (file != NULL) fclose(file);
        char *slash = strrchr(group, '/');
        if (slash == NULL) return;
        *slash = '\0';
    }
}

int64_t machine_free_on_gpus(const char *nodes) {
    enum { MOST_NODES = 256 };
    int64_t bytes = 0;
    for (int n = 0; n < MOST_NODES; n++) {
        char path[1400], line[256];
        long long kib;
        snprintf(path, sizeof path, "%s/node%d/cpulist", nodes, n);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        bool cores = fgets(line, sizeof line, file) != NULL && line[0] != '\n';
        fclose(file);
        snprintf(path, sizeof path, "%s/node%d/meminfo", nodes, n);
        file = cores ? NULL : fopen(path, "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "Node %*d MemFree: %lld", &kib) == 1) bytes += kib * 1024;
        if (file != NULL) fclose(file);
    }
    return bytes;
}

Machine machine_look(bool cuda_available) {
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    int cores = known ? CPU_COUNT(&allowed) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    char line[1024];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1) break;
    if (file != NULL) fclose(file);
    int64_t bytes = max_i64(0, kib * 1024 - machine_free_on_gpus("/sys/devices/system/node"));
    file = fopen("/proc/self/cgroup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL) continue;
        *group++ = '\0';
        if (controllers[1] == '\0') lower_to_group_(&bytes, "/sys/fs/cgroup", "memory.max", group);
        if (strcmp(controllers + 1, "memory") == 0)
            lower_to_group_(&bytes, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", group);
    }
    if (file != NULL) fclose(file);
    return (Machine){cuda_available, cores, bytes, 0};
}

int plan_check_fit(const Plan *plan, const Config *config, const char *program, const Machine *machine,
                   const int64_t *ranks_of_stage, Error *err) {
    int device = config->hardware.device, fullest = plan_fullest(plan);
    bool on_cpu = device == DEVICE_CPU || (device == DEVICE_AUTO && !machine->cuda);
    double needed = (double)memory_total(&plan->stage[fullest].memory), reserve = config->hardware.reserve_gib;
    char tiny[48], there[160], instead[1024], why[256], where[CONFIG_TEXT + 64];
    snprintf(there, sizeof there, "%s%d core%s and %.1f GiB of free memory", machine->cuda ? "" : "no CUDA device, ",
             machine->cores, grid_plural(machine->cores), (double)machine->free_bytes / GIB);
    // The second line of a refusal: the tiny configuration or, if that one was refused, smaller settings or the CPU.
    snprintf(tiny, sizeof tiny, "configs/%s_tiny.yaml", config_word("model.family", config->model.family));
    size_t length = strlen(config->path), end = strlen(tiny);
    bool is_tiny = length >= end && strcmp(config->path + length - end, tiny) == 0;
    if (is_tiny && on_cpu)
        snprintf(instead, sizeof instead,
                 "run instead: ./%s -c %s with less, such as -o schedule.micro_batch=1 or a smaller -o model.hidden",
                 program, config->path);
    else if (is_tiny)
        snprintf(instead, sizeof instead, "run instead: ./%s -c %s -o hardware.device=cpu", program, config->path);
    else
        snprintf(instead, sizeof instead,
                 "run instead: ./%s -c %s, or ./%s -c %s --plan to see its memory and step time", program, tiny,
                 program, config->path);
    // 1. There is a device.
    if (!on_cpu && !machine->cuda) {
        int64_t world = config_world(config);
        device_missing(config, why);
        return error_set(err, EXIT_FAILED,
                         "%s needs %lld GPU%s with %.1f GiB each (stage %d is the fullest); here: %s%s%s%s\n%s",
                         config->path, (long long)world, grid_plural(world), needed / GIB + reserve, fullest, there,
                         why[0] == '\0' ? "" : " (", why, why[0] == '\0' ? "" : ")", instead);
    }
    // 2. The fullest rank fits.
    bool given = config->hardware.memory_gib > 0.0;
    double allowed = given ? config->hardware.memory_gib : on_cpu ? 0.0 : (double)machine->gpu_bytes / GIB;
    config_where(config, given ? "hardware.memory_gib" : "hardware.device", where, sizeof where);
    if (plan_lacks(needed, allowed * GIB, reserve) > 0)
        return error_set(
            err, EXIT_FAILED,
            "%s: stage %d needs %.2f GiB a rank and %.2f GiB in reserve (hardware.reserve_gib), more than %s %.2f "
            "GiB; use a smaller schedule.micro_batch, more stages or schedule.bpipe: on\n%s",
            where, fullest, needed / GIB, reserve, given ? "hardware.memory_gib," : "the GPU has,", allowed, instead);
    // 3. All ranks together fit into this host's memory.
    double host = 0.0, kept = on_cpu ? reserve : 0.0;
    int64_t ranks = 0;
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        double rank = (double)plan_host_bytes(stage) + (on_cpu ? (double)memory_total(&stage->memory) : 0.0);
        host += (double)ranks_of_stage[s] * rank;
        ranks += ranks_of_stage[s];
    }
    if (plan_lacks(host, (double)machine->free_bytes, kept) <= 0) return 0;
    return error_set(err, EXIT_FAILED,
                     "%s needs %.1f GiB of host memory for %lld rank%s and %.1f GiB in reserve; here: %s\n%s",
                     config->path, host / GIB, (long long)ranks, grid_plural(ranks), kept, there, instead);
}

int plan_check_machine(const Plan *plan, const Config *config, const char *program, bool cuda_available, Error *err) {
    Machine machine = machine_look(cuda_available);
    DeviceFigures gpu;
    device_figures(&gpu, config);
    machine.gpu_bytes = gpu.memory_bytes;
    int64_t *ranks = xcalloc((size_t)plan->stages, sizeof *ranks);
    for (int s = 0; s < plan->stages; s++) ranks[s] = config->parallel.tensor * config_replicas(config);
    int fits = plan_check_fit(plan, config, program, &machine, ranks, err);
    free(ranks);
    return fits;
}
