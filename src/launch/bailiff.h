// Where a network breaks, mpirun and its daemons (orted) wait for each other for as long as TCP does, which is a quarter of an hour, long
// after the ranks have ended. A rank that ends because others fell silent therefore leaves somebody behind who ends the one that
// started it, should it not end by itself.
#ifndef BAILIFF_H
#define BAILIFF_H

#include <sys/types.h>

// Returns at once; a process of its own waits a few seconds, and is gone after that. Of launchers, only those of MPI are ended: what
// else starts ranks, as Slurm's daemon, notices a lost host by itself and is not ours to end.
void bailiff_leave(pid_t launcher);

#endif
