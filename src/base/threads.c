// Runs a piece of work in several threads and waits for all of them.
#include "threads.h"

#include <pthread.h>
#include <signal.h>

// Signals stay with the main thread, which handles requests to stop.
bool thread_start(pthread_t *thread, void *(*work)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, work, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void threads_run(void *(*work)(void *), void *items, size_t size, int count) {
    pthread_t thread[THREADS_MOST];
    bool started[THREADS_MOST] = {false};
    for (int i = 1; i < count; i++) started[i] = thread_start(&thread[i], work, (char *)items + (size_t)i * size);
    work(items);
    for (int i = 1; i < count; i++)
        if (started[i]) pthread_join(thread[i], NULL);
        else work((char *)items + (size_t)i * size);
}
