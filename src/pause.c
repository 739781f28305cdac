#include "pause.h"

#include <sched.h>
#include <time.h>

enum { PAUSE_YIELDS = 16, PAUSE_FIRST_NS = 5000, PAUSE_LONGEST_NS = 100000 };

void pause_briefly(int *tries) {
    int n = (*tries)++;
    if (n < PAUSE_YIELDS) {
        sched_yield();
        return;
    }
    long ns = n - PAUSE_YIELDS > 4 ? PAUSE_LONGEST_NS : (long)PAUSE_FIRST_NS << (n - PAUSE_YIELDS);
    struct timespec sleep = {0, ns < PAUSE_LONGEST_NS ? ns : PAUSE_LONGEST_NS};
    nanosleep(&sleep, NULL);
}
