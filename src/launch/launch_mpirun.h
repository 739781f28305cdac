// How mpirun is called: which one, with what environment, and how its ranks share the cores.
#ifndef LAUNCH_MPIRUN_H
#define LAUNCH_MPIRUN_H

#include "launch_folder.h"
#include "base/log.h"

// The cores this process may run on, and the threads a rank gets: an even share, or OMP_NUM_THREADS where it is set.
int launch_cores(void);
int launch_threads(int ranks);

// Starts mpirun for `ranks` ranks of this program in a process group of its own, with `results` as its
// stdout and `errors` as its stderr. It gets SIGTERM when this process dies. Returns its process id, or -1 with err.
pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, int results, int errors, Error *err);

#endif
