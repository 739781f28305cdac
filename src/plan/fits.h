// Checks, before anything is allocated, that a run fits the machine it was started on, so that the machine does not
// start to swap. A run that does not fit is refused in two lines: needed and available memory; a configuration to run
// instead.
#pragma once

#include "plan.h"

typedef struct Machine {
    bool cuda;          // CUDA devices can be used
    int cores;          // cores that this process may run on
    int64_t free_bytes; // host memory available without swapping; 0: unknown
    int64_t gpu_bytes;  // memory of the GPU that a rank gets; 0: no GPU, or unknown
} Machine;

// Reads MemAvailable of /proc/meminfo, without the free memory of GPUs, or the limit of this process's control group
// (v2 or v1) if that is lower.
Machine machine_look(bool cuda_available);

// Returns the free GPU memory that Linux counts as the host's: on Grace, that of the NUMA nodes without cores. nodes:
// /sys/devices/system/node.
int64_t machine_free_on_gpus(const char *nodes);

// Returns 0 if the plan fits, else -1 with err (code 1, two lines). ranks_of_stage[s]: ranks of stage s on this host.
// The host's free memory must hold the ranks' host memory (plan_host_bytes). On CPUs it must also hold the ranks'
// planned bytes, and hardware.reserve_gib once for all ranks. GPU runs need a device. Each rank's planned bytes plus
// the reserve must not exceed hardware.memory_gib. Without hardware.memory_gib, the limit of a rank on a GPU is the
// GPU's memory, and a rank on a CPU has no limit of its own.
int plan_check_fit(const Plan *plan, const Config *config, const char *program, const Machine *machine,
                   const int64_t *ranks_of_stage, Error *err);
