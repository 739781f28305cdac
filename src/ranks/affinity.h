// The cores of a host and which of them a rank may count as its own. Launchers differ: srun and a bare mpirun bind a
// rank to cores, others leave all cores to all ranks. Threads beyond a rank's part wait for each other instead of
// computing.
#ifndef AFFINITY_H
#define AFFINITY_H

#include "world.h"

#include <sched.h>

// One rank: its host and the cores it may run on.
typedef struct CoresOfRank {
    int64_t node;
    cpu_set_t allowed;
} CoresOfRank;

// Cores this process may run on, at least 1.
int affinity_allowed(void);

// Threads for each of `ranks` ranks of this host: an even share of its cores, or OMP_NUM_THREADS where it is set.
int affinity_threads(int ranks);

// Cores that are rank `rank`'s part: each core it may run on counts 1/n where n ranks of its host may. Above 0.
double affinity_part(const CoresOfRank *ranks, int count, int rank);

// Collective: this rank's part. -1 with err.
int affinity_share(World *world, double *part, Error *err);

// Before anything else in main: the OpenMP library reads how long an idle thread spins from the environment, before
// main begins, and by default that is milliseconds. With another program on the machine a step then takes up to eight
// times as long. Where the environment says nothing about it, this program starts anew with an environment that does.
void affinity_spin_briefly(char **argv);

#endif
