// Starts threads, and distributes a list of items over several threads.
#include "threads.h"

#include <signal.h>
#include <stdatomic.h>

// Blocks all signals in the new thread, so that the main thread handles requests to stop.
bool thread_start(pthread_t *thread, void *(*work)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, work, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

typedef struct ThreadItems {
    int64_t count;
    ThreadWork work;
    void *context;
    atomic_llong next; // index of the first item that no lane has taken
    atomic_bool failed;
} ThreadItems;

typedef struct ThreadLane {
    ThreadItems *items;
    int number;
    int64_t item; // item in progress; the failed item if err is set
    pthread_t thread;
    bool started;
    Error err;
} ThreadLane;

// Runs items until all are taken or one fails. Items are taken in order, so every item before a failed item runs too.
static void *threads_lane_(void *argument) {
    ThreadLane *lane = argument;
    ThreadItems *items = lane->items;
    while (!atomic_load(&items->failed)) {
        lane->item = atomic_fetch_add(&items->next, 1);
        if (lane->item >= items->count) break;
        if (items->work(items->context, lane->number, lane->item, &lane->err) != 0) atomic_store(&items->failed, true);
    }
    return NULL;
}

int threads_each(int lanes, int64_t count, ThreadWork work, void *context, Error *err) {
    ThreadItems items = {.count = count, .work = work, .context = context};
    ThreadLane lane[THREADS_MOST], *first = NULL;
    for (int i = 0; i < lanes; i++) lane[i] = (ThreadLane){.items = &items, .number = i};
    for (int i = 1; i < lanes; i++) lane[i].started = thread_start(&lane[i].thread, threads_lane_, &lane[i]);
    threads_lane_(&lane[0]);
    for (int i = 0; i < lanes; i++) {
        if (lane[i].started) pthread_join(lane[i].thread, NULL);
        if (lane[i].err.code != 0 && (first == NULL || lane[i].item < first->item)) first = &lane[i];
    }
    if (first != NULL && err != NULL) *err = first->err;
    return first == NULL ? 0 : -1;
}
