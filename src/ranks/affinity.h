// A rank's share of its host's cores. srun and a bare mpirun bind each rank to cores; other launchers let every rank
// use all cores. Threads beyond a rank's share wait for each other instead of computing.
#pragma once

#include "world.h"

#include <sched.h>

// One rank: its host and the cores it may run on.
typedef struct CoresOfRank {
    int64_t node;
    cpu_set_t allowed;
} CoresOfRank;

// Returns the number of cores that this process may run on, at least 1.
int affinity_allowed(void);

// Returns the number of threads per rank for `ranks` ranks on this host: OMP_NUM_THREADS if it is set, else an even
// share of the cores that this process may run on. At least 1.
int affinity_threads(int ranks);

// Returns the number of cores that are rank `rank`'s share of its host, above 0. A core that n ranks may use counts 1/n
// for each of these ranks.
double affinity_part(const CoresOfRank *ranks, int count, int rank);

// Collective. Sets *part to this rank's share (see affinity_part). -1 with err.
int affinity_share(World *world, double *part, Error *err);

// Restarts this program with a short spin time for idle OpenMP threads, unless the environment sets a spin time. Call
// it first in main. The OpenMP library reads the spin time before main. The default, some milliseconds, makes a step
// take up to eight times as long if another program runs on the machine.
void affinity_spin_briefly(char **argv);
