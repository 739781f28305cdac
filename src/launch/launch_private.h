// Functions that launch_mpirun.c provides to launch.c: starting mpirun, and the folder of a launch.
#pragma once

#include "launch.h"

#include <sys/types.h>

// The folder of a launch. Its path is in the environment of every process of the launch (SUPERVISOR_FOLDER), so that
// stray processes can be found.
typedef struct LaunchFolder {
    char path[256];
    pid_t caretaker;   // process that creates the folder, and removes it if the parent dies
    int caretaker_end; // closing it wakes the caretaker
    int lock; // parent and caretaker each hold a lock on the folder; without a lock, the next launch removes it
} LaunchFolder;

// Starts a caretaker, which creates the folder in /dev/shm, else in TMPDIR (default /tmp). Returns 0, or -1 with err.
int launch_folder_create(LaunchFolder *folder, int ranks, Error *err);
// Sends a signal to every other process of this launch; 0 sends no signal. Returns the number of these processes.
int launch_folder_signal(const LaunchFolder *folder, int number);
// Kills the remaining processes of the launch and removes the folder.
void launch_folder_remove(LaunchFolder *folder);

// Starts mpirun for `ranks` ranks of this program in a process group of its own, with `results` as its stdout and
// `words` as its stderr. The kernel kills it when this process dies. Returns its process id, or -1 with err.
pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, int results, int words, Error *err);
// Closes mpirun's ports to new connections if the kernel permits it: the ports on all interfaces, which no rank needs,
// and once every rank is `ready` also the port on the loopback interface, through which the ranks joined.
void launch_close_ports(pid_t mpirun, bool ready);
