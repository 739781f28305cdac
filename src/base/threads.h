// Threads in addition to OpenMP's, for work that waits: reading and writing files.
#pragma once

#include "log.h"

#include <pthread.h>

enum { THREADS_MOST = 16 };

// Starts a thread that receives no signals. Returns false if the system cannot create one.
bool thread_start(pthread_t *thread, void *(*work)(void *), void *argument);

// Processes one item of threads_each. lane: thread number, 0 ... lanes - 1. Returns 0, or -1 with err.
typedef int (*ThreadWork)(void *context, int lane, int64_t item, Error *err);

// Calls `work` for the items 0 ... count - 1, in order, on `lanes` threads, at most THREADS_MOST, the caller's
// included. If a thread cannot be started, the others do its work. No item starts after an error. Returns 0, or -1 with
// the error of the lowest failed item.
int threads_each(int lanes, int64_t count, ThreadWork work, void *context, Error *err);
