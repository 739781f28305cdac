// The one clock of the program: CLOCK_MONOTONIC of the host. Events of a device, waits, traces and step times are all
// read from it, so that they can be subtracted from each other.
#ifndef CLOCK_H
#define CLOCK_H

#include <time.h>

// Returns seconds since some point before this process started. Async-signal-safe.
static inline double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
