// The clocks of the program. Events of a device, waits, traces and step times are all read from one, CLOCK_MONOTONIC of
// the host, so that they can be subtracted from each other. Only a stage that is emulated alone on one thread of a CPU
// is timed by clock_thread_seconds.
#pragma once

#include <stdint.h>
#include <time.h>

// Returns seconds since some point before this process started. Async-signal-safe.
static inline double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Returns nanoseconds since 1970, by which hosts order their events and people date files. May go back; only
// approximately the same on several hosts. Async-signal-safe.
static inline int64_t clock_wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void clock_sleep(double seconds) {
    struct timespec nap = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&nap, NULL);
}

// Returns the seconds for which the calling thread has had a core: other programs that want the core do not count.
static inline double clock_thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
