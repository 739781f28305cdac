// What the kernel says of other processes of this machine.
#ifndef PROCESSES_H
#define PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Visits the processes whose id is above `above`, in the order of their ids.
void processes_each(pid_t above, void (*visit)(pid_t pid, void *context), void *context);

// 0: it has gone.
pid_t process_parent(pid_t pid);

// A variable of the environment with which a process was started. False where there is none, where it is longer than `value`, and
// where the process has ended or is another user's.
bool process_variable(pid_t pid, const char *name, char *value, size_t size);

#endif
