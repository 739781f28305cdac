// The cores of a host, and which of them count as a rank's own. Launchers differ: srun and a bare mpirun bind a rank to
// cores, others leave all cores to all ranks. Threads beyond a rank's share wait for each other instead of computing.
#pragma once

#include "world.h"

#include <sched.h>

// One rank: its host and the cores it may run on.
typedef struct CoresOfRank {
    int64_t node;
    cpu_set_t allowed;
} CoresOfRank;

// Returns the cores this process may run on, at least 1.
int affinity_allowed(void);

// Returns the threads for each of `ranks` ranks of this host: an even share of its cores, or OMP_NUM_THREADS if it is
// set.
int affinity_threads(int ranks);

// Returns rank `rank`'s share of cores: each core it may run on counts 1/n if n ranks of its host may. Above 0.
double affinity_part(const CoresOfRank *ranks, int count, int rank);

// Collective: this rank's share. -1 with err.
int affinity_share(World *world, double *part, Error *err);

// Call first in main. The OpenMP library reads before main how long an idle thread spins, by default milliseconds; with
// another program on the machine a step then takes up to eight times as long. If the environment does not set it, this
// program starts itself again with an environment that does.
void affinity_spin_briefly(char **argv);
