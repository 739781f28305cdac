// Whether a run fits the machine it was started on, asked before anything is allocated: a run that does not fit is
// refused in two lines (what it needs and what is there; what to run instead), so that no machine starts to swap.
#ifndef FITS_H
#define FITS_H

#include "plan.h"

// What is there.
typedef struct Machine {
    bool cuda;          // CUDA devices can be used
    int cores;          // this process may run on
    int64_t free_bytes; // of host memory that can be had without swapping; 0: unknown
    int64_t gpu_bytes;  // of memory on the GPU that a rank gets; 0: none, or unknown
} Machine;

// MemAvailable of /proc/meminfo, or the limit of this process's control group (v2 or v1) where that is less.
void machine_look(Machine *machine, bool cuda_available);

// 0 where the plan fits, else -1 with err (code 1, two lines). ranks_of_stage[s]: ranks of stage s on this host. On
// CPUs the ranks' bytes, what they evict to host memory, their copies for checkpoints, and hardware.reserve_gib once
// for the host have to be free here; on GPUs a device has to be there. On both each rank's bytes and the reserve have
// to be within hardware.memory_gib where that is given, on GPUs else within the GPU's own memory.
int plan_check_fit(const Plan *plan, const Config *config, const char *program, const Machine *machine,
                   const int64_t *ranks_of_stage, Error *err);

#endif
