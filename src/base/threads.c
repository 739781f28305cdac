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
    atomic_int lanes;     // lanes that have begun
    atomic_llong next;    // first item that no lane has taken
    atomic_bool stop;     // an item has failed
    pthread_mutex_t lock; // protects `failed` and `err`
    int64_t failed;       // lowest failed item
    Error err;            // error of the item `failed`
} ThreadItems;

// Runs items until all are taken or one fails. Items are taken in order, so every item before a failed item runs too.
static void *threads_lane_(void *argument) {
    ThreadItems *items = argument;
    int lane = atomic_fetch_add(&items->lanes, 1);
    while (!atomic_load(&items->stop)) {
        Error err = {0};
        int64_t item = atomic_fetch_add(&items->next, 1);
        if (item >= items->count) break;
        if (items->work(items->context, lane, item, &err) == 0) continue;
        atomic_store(&items->stop, true);
        pthread_mutex_lock(&items->lock);
        if (item < items->failed) items->failed = item, items->err = err;
        pthread_mutex_unlock(&items->lock);
    }
    return NULL;
}

int threads_each(int lanes, int64_t count, ThreadWork work, void *context, Error *err) {
    ThreadItems items = {
        .count = count, .work = work, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = count};
    pthread_t thread[THREADS_MOST];
    int started = 0;
    while (started < lanes - 1 && thread_start(&thread[started], threads_lane_, &items)) started++;
    threads_lane_(&items);
    while (started > 0) pthread_join(thread[--started], NULL);
    if (items.failed == count) return 0;
    if (err != NULL) *err = items.err;
    return -1;
}
