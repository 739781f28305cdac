// The program's clocks. Device events, waits, traces and step times use the host's CLOCK_MONOTONIC, so they can be
// subtracted from each other. Only a stage emulated on a single CPU thread is timed by clock_thread_seconds instead.
#pragma once

#include <stdint.h>
#include <time.h>

static inline double clock_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Returns seconds since some point before this process started. Async-signal-safe.
static inline double clock_seconds(void) { return clock_of(CLOCK_MONOTONIC); }

// Returns nanoseconds since 1970, for dates and for ordering events across hosts. The clock may be set back, and
// several hosts agree only approximately. Async-signal-safe.
static inline int64_t clock_wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void clock_sleep(double seconds) {
    struct timespec nap = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&nap, NULL);
}

// Returns the CPU time of the calling thread in seconds; it excludes time in which other programs use the core.
static inline double clock_thread_seconds(void) { return clock_of(CLOCK_THREAD_CPUTIME_ID); }
