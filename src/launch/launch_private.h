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
} LaunchFolder;

// Starts a caretaker, which creates the folder in /dev/shm, else in TMPDIR (default /tmp). Returns 0, or -1 with err.
int launch_folder_create(LaunchFolder *folder, int ranks, Error *err);
// Sends a signal to every other process of this launch; 0 sends no signal. Returns the number of these processes.
int launch_folder_signal(const LaunchFolder *folder, int number);
// Kills the remaining processes of the launch and removes the folder.
void launch_folder_remove(LaunchFolder *folder);
// Reads a variable of the environment with which a process was started. Returns false if it is not set, if it is longer
// than `value`, or if the process has ended or is another user's.
bool launch_process_variable(pid_t pid, const char *name, char *value, size_t size);

// Starts mpirun for `ranks` ranks of this program in a process group of its own, with `results` as its stdout and
// `words` as its stderr. The kernel kills it when this process dies. Returns its process id, or -1 with err.
pid_t launch_mpirun(int ranks, char **argv, const LaunchFolder *folder, const Invitation *invitation, int results,
                    int words, Error *err);

// A supervisor started by mpirun, found through /proc: the coordinator hears of a rank only once its program runs.
typedef struct LaunchChild {
    pid_t pid;
    int rank; // -1: not known yet
    int file; // pidfd; -1: the child has ended, or pidfd_open failed
} LaunchChild;

typedef struct LaunchChildren {
    LaunchChild *child; // [ranks] in the order of discovery
    int ranks, count;
    const Coordinator *coordinator;
    int ends;  // epoll descriptor for every child's `file`; readable if a child has ended
    int first; // index of the first child that ended without a report to the coordinator, or -1
    double when;
    bool sure; // true: `first` is certain, because it was watched before, or was the only new child that had ended
} LaunchChildren;

int launch_children_open(LaunchChildren *children, int ranks, const Coordinator *coordinator, Error *err);
void launch_children_close(LaunchChildren *children);
// Looks for children that have started or ended. Call it often until all are known, and whenever `ends` is readable.
void launch_children_look(LaunchChildren *children, pid_t mpirun, double now);
bool launch_children_complete(const LaunchChildren *children);
// Returns the rank of the child that ended first without a report; -1 if unknown.
int launch_children_lost(const LaunchChildren *children);
