#include "heartbeat.h"
#include "base/clock.h"

#include "backend/backend.h"
#include "launch/bailiff.h"
#include "star.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

// With the others; given up where no word gets through between this rank and rank 0.
typedef enum Connection { CONNECTION_NONE, CONNECTION_STARTED, CONNECTION_MADE, CONNECTION_GIVEN_UP } Connection;

struct Heartbeat {
    StatusPage *status_page;
    Patience patience;
    const char *program;
    pid_t launcher; // 0: none to miss
    Watchdog *alone;
    pthread_t thread;
    int wake; // eventfd
    atomic_int rank;
    Star *star;            // the thread's from CONNECTION_STARTED on
    atomic_int connection; // a Connection
    atomic_bool leaving;
};

// --- what the thread does

static Log log_(const Heartbeat *heartbeat) {
    StatusRank page;
    status_page_read_own(heartbeat->status_page, &page);
    return (Log){heartbeat->program, atomic_load(&heartbeat->rank), page.stage, LOG_NORMAL};
}

// The main thread may hang anywhere, so nothing is cleaned up: the launcher ends the others, and removes what they leave, unless it waits
// for a host that is cut off.
static void __attribute__((noreturn)) heartbeat_end_(const Heartbeat *heartbeat) {
    bailiff_leave(heartbeat->launcher);
    _exit(EXIT_FAILED);
}

// Nobody may read stderr any more, and a pipe that is full holds up whoever writes to it.
static void begin_last_words_(void) {
    enum { LONGEST_S = 5 };
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_S);
}

static void nap_(double seconds) {
    struct timespec nap = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&nap, NULL);
}

static void miss_launcher_(const Heartbeat *heartbeat) {
    if (heartbeat->launcher == 0 || getppid() == heartbeat->launcher) return;
    begin_last_words_();
    Log log = log_(heartbeat);
    log_line(&log, "the process that started this rank has gone, so the job ends; go on with --resume");
    heartbeat_end_(heartbeat);
}

static void look_alone_(Heartbeat *heartbeat, double now) {
    StatusRank page;
    int rank;
    char text[WATCHDOG_TEXT];
    status_page_read_own(heartbeat->status_page, &page);
    watchdog_hear(heartbeat->alone, 0, &page, now);
    if (watchdog_look(heartbeat->alone, now, &rank) == FOUND_WELL) return;
    begin_last_words_();
    Log log = log_(heartbeat);
    watchdog_describe(&page, text);
    bool joining = strcmp(page.action, HEARTBEAT_JOINING) == 0;
    log_line(&log, "nothing has moved here for %.0f s (train.timeout_s): this rank %s; the job ends, %s",
             heartbeat->patience.progress_s, text,
             joining ? "no rank has begun; where hosts have several networks, name theirs to mpirun (docs/slurm.md)"
                     : "go on with --resume");
    heartbeat_end_(heartbeat);
}

static void __attribute__((noreturn))
end_job_(const Heartbeat *heartbeat, Star *star, Found found, int rank, double now) {
    begin_last_words_();
    Log log = log_(heartbeat);
    star_say(star, found, rank, &log, now);
    star_end(star, rank);
    // Without rank 0 every rank speaks for itself, and the launcher would end the others at the first one's end.
    if (log.rank > 0) nap_(1.5);
    heartbeat_end_(heartbeat);
}

static void look_around_(Heartbeat *heartbeat, Star *star, double now) {
    int rank;
    Found found = star_beat(star, now, &rank);
    // What stands still while ranks leave is somebody who does not: that one falls silent, or the launcher sees to it.
    if (found == FOUND_STUCK && atomic_load(&heartbeat->leaving)) return;
    if (found != FOUND_WELL) end_job_(heartbeat, star, found, rank, now);
}

static void beat_(Heartbeat *heartbeat, Star *star, double now) {
    status_page_beat(heartbeat->status_page);
    if (status_page_shared(heartbeat->status_page)) return;
    miss_launcher_(heartbeat);
    if (star != NULL)
        look_around_(heartbeat, star, now);
    else
        look_alone_(heartbeat, now);
}

// How long a rank may be dead before rank 0 sees it. A launcher that has seen it first leaves a second to say so.
#define LOOK_S 0.2
#define AWAY_S 2.0

static void wait_(const Heartbeat *heartbeat, const Star *star, double until) {
    struct pollfd files[2] = {{heartbeat->wake, POLLIN, 0}, {star == NULL ? -1 : star_file(star), POLLIN, 0}};
    double left = until - clock_seconds();
    uint64_t woken;
    if (star != NULL && left > LOOK_S) left = LOOK_S;
    poll(files, 2, left > 0 ? (int)(left * 1e3) + 1 : 0);
    if (files[0].revents != 0 && read(heartbeat->wake, &woken, sizeof woken) < 0) return; // it was there a moment ago
}

// Quicker while there is somebody to be found, or to be told that we go.
static double interval_(const Heartbeat *heartbeat, const Star *star) {
    enum { PER_SECOND = 10 };
    bool busy = atomic_load(&heartbeat->connection) == CONNECTION_STARTED || atomic_load(&heartbeat->leaving);
    return star == NULL || !busy ? watchdog_interval(heartbeat->patience) : 1.0 / PER_SECOND;
}

// NULL: this rank is on its own.
static Star *star_(const Heartbeat *heartbeat) {
    int connection = atomic_load(&heartbeat->connection);
    return connection == CONNECTION_STARTED || connection == CONNECTION_MADE ? heartbeat->star : NULL;
}

static void *live_(void *argument) {
    Heartbeat *heartbeat = argument;
    double last = 0, back = 0;
    for (;;) {
        Star *star = star_(heartbeat);
        wait_(heartbeat, star, last + interval_(heartbeat, star));
        double now = clock_seconds();
        if (star != NULL && star_take(star, now)) heartbeat_end_(heartbeat);
        // One that was stopped itself, and goes on, finds others gone because of it.
        if (now - last > interval_(heartbeat, star) + AWAY_S) back = now;
        int dead = star != NULL && now - back > AWAY_S ? star_dead(star) : -1;
        if (dead > 0) end_job_(heartbeat, star, FOUND_DEAD, dead, now);
        bool leaving = atomic_load(&heartbeat->leaving);
        if (leaving && star == NULL) return NULL;
        if (now < last + interval_(heartbeat, star)) continue;
        last = now;
        beat_(heartbeat, star, now);
        if (leaving && star_bye(star)) return NULL;
    }
}

// --- what the main thread does

static int start_thread_(Heartbeat *heartbeat, Error *err) {
    sigset_t all, before;
    sigfillset(&all); // requests to stop are the main thread's to hear
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = pthread_create(&heartbeat->thread, NULL, live_, heartbeat);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started == 0 ? 0 : error_set(err, EXIT_FAILED, "no thread could be started; too many already?");
}

static void wake_(const Heartbeat *heartbeat) {
    uint64_t one = 1;
    ssize_t wrote = write(heartbeat->wake, &one, sizeof one);
    (void)wrote; // it fails where it is awake already
}

static void heartbeat_free_(Heartbeat *heartbeat) {
    star_close(heartbeat->star);
    watchdog_free(heartbeat->alone);
    if (heartbeat->wake >= 0) close(heartbeat->wake);
    free(heartbeat);
}

Heartbeat *heartbeat_start(StatusPage *status_page, Patience patience, bool launched, const char *program, Error *err) {
    if (status_page == NULL || (patience.peer_s == 0 && patience.progress_s == 0)) return NULL;
    Heartbeat *heartbeat = calloc(1, sizeof *heartbeat);
    if (heartbeat == NULL) {
        error_set(err, EXIT_FAILED, "out of memory");
        return NULL;
    }
    heartbeat->status_page = status_page;
    heartbeat->patience = patience;
    heartbeat->program = program;
    heartbeat->launcher = launched && !status_page_shared(status_page) ? getppid() : 0;
    heartbeat->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    heartbeat->alone = watchdog_create(1, patience, clock_seconds());
    atomic_store(&heartbeat->rank, status_page_launched_rank());
    if (heartbeat->wake < 0 || heartbeat->alone == NULL)
        error_set(err, EXIT_FAILED, "no heartbeat: out of memory or files");
    else if (start_thread_(heartbeat, err) == 0)
        return heartbeat;
    heartbeat_free_(heartbeat);
    return NULL;
}

int heartbeat_join(Heartbeat *heartbeat, World *world, const Log *log, Error *err) {
    if (heartbeat == NULL || status_page_shared(heartbeat->status_page) || world_size(world) == 1) return 0;
    bool connected = false;
    atomic_store(&heartbeat->rank, world_rank(world));
    heartbeat->star = star_open(world, heartbeat->status_page, heartbeat->patience, err);
    if (heartbeat->star == NULL && err->code != 0) return -1;
    if (heartbeat->star == NULL) {
        Log all = log_of_all(log);
        if (world_rank(world) == 0)
            log_line(&all, "no heartbeats, since rank 0 has no UDP address that other ranks could reach: where a rank "
                           "stops, only train.timeout_s ends the job");
        return 0;
    }
    atomic_store(&heartbeat->connection, CONNECTION_STARTED);
    wake_(heartbeat);
    int status = star_settle(heartbeat->star, world, log, &connected, err);
    atomic_store(&heartbeat->connection, connected ? CONNECTION_MADE : CONNECTION_GIVEN_UP);
    return status;
}

void heartbeat_excuse_me(Heartbeat *heartbeat) {
    if (heartbeat != NULL && star_(heartbeat) != NULL) star_excuse_me(star_(heartbeat));
}

void heartbeat_leave(Heartbeat *heartbeat) {
    if (heartbeat == NULL) return;
    atomic_store(&heartbeat->leaving, true);
    wake_(heartbeat);
    pthread_join(heartbeat->thread, NULL);
    heartbeat_free_(heartbeat);
}
