// Threads in addition to OpenMP's, for work that waits: reading and writing files.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { THREADS_MOST = 16 };

// Starts a thread that receives no signals. Returns false if the system cannot create one.
bool thread_start(pthread_t *thread, void *(*work)(void *), void *argument);

// Calls work(item) for each of `count` items of `size` bytes, at most THREADS_MOST, each in a thread of its own. The
// caller's thread takes the first item, and later those for which no thread could be started. Returns when all are
// done.
void threads_run(void *(*work)(void *), void *items, size_t size, int count);
