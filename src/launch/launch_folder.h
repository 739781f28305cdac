// The folder of one launch: the board, Open MPI's session and its shared memory. Its path is in the environment of
// every process of the launch, which is how stray ones are found.
#ifndef LAUNCH_FOLDER_H
#define LAUNCH_FOLDER_H

#include "base/log.h"

#include <sys/types.h>

typedef struct LaunchFolder {
    char path[256];
    char status_page[300]; // the board's path in it
    pid_t caretaker;       // removes it when the parent dies
    int caretaker_end;     // closing it wakes the caretaker
} LaunchFolder;

// Makes the folder in /dev/shm, else in TMPDIR or /tmp, and starts its caretaker.
int launch_folder_create(LaunchFolder *folder, Error *err);

// How many processes of this launch are alive, other than the parent and the caretaker; each is sent `signal`, 0: none.
int launch_folder_signal(const LaunchFolder *folder, int signal);

// Kills what is left of the launch and removes the folder.
void launch_folder_remove(LaunchFolder *folder);

#endif
