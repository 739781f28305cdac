// Time and sleeps of a rank in virtual time, for the program (dry.c) and for the library (clock.cc), which has copies
// of some of its code. The linker replaces the C library's functions by these. clock_table() is the program's, or NULL.
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Returns whether this is the rank's main thread and the rank has joined virtual time.
static bool on_the_clock_(void) {
    static __thread int own = -1;
    if (clock_table() == NULL || clock_table()->now == NULL) return false;
    if (own < 0) own = syscall(SYS_gettid) == getpid();
    return own == 1;
}

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_MONOTONIC || !on_the_clock_()) return __real_clock_gettime(clock, now);
    double seconds = clock_table()->now();
    now->tv_sec = (time_t)seconds;
    now->tv_nsec = (long)(1e9 * (seconds - (double)now->tv_sec));
    return 0;
}

// A rank that polls a virtual GPU would take a core from the thread that simulates it. So beside one, a sleep lasts at
// least 0.2 ms, and a yield is such a sleep. 0: the caller yields.
static struct timespec nap_(long ns) {
    const long least = 200000;
    bool simulates = clock_table() != NULL && clock_table()->join != NULL;
    return (struct timespec){0, simulates && ns < least ? least : ns};
}

int __real_nanosleep(const struct timespec *nap, struct timespec *left);
int __wrap_nanosleep(const struct timespec *nap, struct timespec *left) {
    if (on_the_clock_() && clock_table()->pause()) return 0;
    const struct timespec longer = nap_(nap->tv_nsec);
    return __real_nanosleep(nap->tv_sec > 0 ? nap : &longer, left);
}

int __real_sched_yield(void);
int __wrap_sched_yield(void) {
    const struct timespec nap = nap_(0);
    if (on_the_clock_() && clock_table()->pause()) return 0;
    return nap.tv_nsec == 0 ? __real_sched_yield() : __real_nanosleep(&nap, NULL);
}
