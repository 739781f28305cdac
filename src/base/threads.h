// Threads in addition to OpenMP's, for work that waits: reading and writing files.
#pragma once

#include "log.h"

#include <pthread.h>

enum { THREADS_MOST = 16 };

// Starts a thread that receives no signals. Returns false if the system cannot create one.
bool thread_start(pthread_t *thread, void *(*work)(void *), void *argument);

// One item of threads_each. lane: number of the thread, 0 ... lanes - 1. -1 with err.
typedef int (*ThreadWork)(void *context, int lane, int64_t item, Error *err);

// Calls `work` for the items 0 ... count - 1, in their order, in `lanes` threads, at most THREADS_MOST. The caller's is
// one of them; if another cannot be started, the rest do its work. After an error no further item is begun. Returns 0,
// or -1 with the error of the lowest item.
int threads_each(int lanes, int64_t count, ThreadWork work, void *context, Error *err);
