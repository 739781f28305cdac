#include "launch.h"
#include "base/clock.h"
#include "ranks/status_page.h"
#include "launch_folder.h"
#include "launch_mpirun.h"
#include "launch_output.h"
#include "launch_signals.h"
#include "launch_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct Launch {
    const Log *log;
    LaunchFolder folder;
    StatusPage *status_page;
    LaunchOutput output;
    LaunchWatch watch;
    int signals;   // numbers of signals that came
    int results;   // mpirun's stdout; -1 once it is closed
    int errors;    // and its stderr
    int unwritten; // errno of our stdout; 0: all is written
    bool unread;   // that is why the ranks were asked to stop
    char result[1 << 14];
    size_t passed, taken; // bytes of `result` that our stdout has, and that came
    pid_t mpirun;
    bool ended;
    int status;      // of mpirun, as waitpid says it
    int asked;       // how often we were told to stop
    double first;    // when for the first time
    bool forwarded;  // the ranks know
    double patience; // when mpirun is killed, after the second time
    bool forced;     // it and its ranks were killed by us
    double heard;    // when something came out of its stderr
} Launch;

// --- signals

#define SAME_S 0.2 // one request may come as several signals: of timeout(1), of a shell whose terminal goes away

static void asked_to_stop_(Launch *launch) {
    enum { PATIENCE_S = 2 };
    if (launch->asked > 0 && clock_seconds() - launch->first < SAME_S) return;
    if (launch->asked == 0) launch->first = clock_seconds();
    launch->asked++;
    if (launch->ended) return;
    if (launch->asked == 1) {
        log_status(launch->log,
                   "asked to stop: the ranks end after the step under way; a second signal ends them at once");
        return;
    }
    // mpirun ends its ranks and itself on SIGTERM, in about a second.
    if (launch->asked == 2) launch->patience = clock_seconds() + PATIENCE_S;
    kill(-launch->mpirun, SIGTERM);
}

static void look_at_mpirun_(Launch *launch) {
    int status;
    while (!launch->ended && waitpid(launch->mpirun, &status, WNOHANG | WUNTRACED | WCONTINUED) == launch->mpirun) {
        launch->ended = !WIFSTOPPED(status) && !WIFCONTINUED(status);
        if (launch->ended) launch->status = status;
        launch_watch_mpirun(&launch->watch, WIFSTOPPED(status), clock_seconds());
    }
}

static void take_signals_(Launch *launch) {
    unsigned char number;
    while (read(launch->signals, &number, 1) == 1) {
        if (number != SIGCHLD)
            asked_to_stop_(launch);
        else
            look_at_mpirun_(launch);
    }
}

// SIGUSR1 kills a process that does not handle it yet.
static bool all_ready_(const Launch *launch) {
    StatusRank page;
    for (int rank = 0; rank < status_page_ranks(launch->status_page); rank++)
        if (status_page_read(launch->status_page, rank, &page) != 0 || !page.ready) return false;
    return true;
}

// Stopped processes too, which would not hear of anything else.
static void end_at_once_(Launch *launch) {
    launch->forced = true;
    if (!launch->ended) kill(-launch->mpirun, SIGKILL);
    launch_folder_signal(&launch->folder, SIGKILL);
}

static void pass_on_(Launch *launch) {
    if (launch->asked > 0 && !launch->forwarded && all_ready_(launch)) {
        kill(launch->mpirun, SIGUSR1);
        launch->forwarded = true;
    }
    if (launch->asked > 1 && clock_seconds() > launch->patience) end_at_once_(launch);
}

// --- watching

#define FRAME_S 0.5 // in which mpirun writes a frame of its own whole

static void take_errors_(Launch *launch) {
    char bytes[1 << 14];
    ssize_t count;
    launch->heard = clock_seconds();
    while ((count = read(launch->errors, bytes, sizeof bytes)) > 0)
        launch_output_take(&launch->output, bytes, (size_t)count);
    if (count != 0) return;
    close(launch->errors);
    launch->errors = -1;
}

static bool results_wait_(const Launch *launch) {
    return launch->passed < launch->taken;
}

// As much as our stdout takes now. Whoever reads it may have stopped to (a pager), and signals and ranks are looked after all the same: a
// pipe that is ready takes PIPE_BUF bytes at once.
static void pass_results_(Launch *launch) {
    struct pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
    while (results_wait_(launch) && poll(&ready, 1, 0) > 0) {
        size_t count = launch->taken - launch->passed;
        ssize_t wrote = write(STDOUT_FILENO, launch->result + launch->passed, count < PIPE_BUF ? count : PIPE_BUF);
        if (wrote > 0) launch->passed += (size_t)wrote;
        if (wrote >= 0 || errno == EINTR || errno == EAGAIN) continue;
        // A run that nobody can read ends as if asked to, with a checkpoint.
        launch->unwritten = errno;
        launch->passed = launch->taken;
        launch->unread = launch->asked == 0;
        if (launch->unread) asked_to_stop_(launch);
    }
}

// mpirun would swallow that its stdout cannot be written.
static void take_results_(Launch *launch) {
    ssize_t count = -1;
    while (!results_wait_(launch) && (count = read(launch->results, launch->result, sizeof launch->result)) > 0) {
        launch->passed = launch->unwritten != 0 ? (size_t)count : 0;
        launch->taken = (size_t)count;
        pass_results_(launch);
    }
    if (count != 0) return;
    close(launch->results);
    launch->results = -1;
}

// After mpirun's end. A second signal ends the wait for a reader.
static void pass_last_results_(Launch *launch) {
    for (;;) {
        if (launch->results >= 0) take_results_(launch);
        if (!results_wait_(launch)) return;
        if (launch->asked > 1) break;
        struct pollfd files[2] = {{launch->signals, POLLIN, 0}, {STDOUT_FILENO, POLLOUT, 0}};
        poll(files, 2, -1);
        take_signals_(launch);
        pass_results_(launch);
    }
    launch->unwritten = EINTR;
}

static int patience_ms_(const Launch *launch) {
    // Ranks that are not known yet are looked for often: of several that end between two looks the first cannot be told.
    enum { STARTING_MS = 5, STOPPING_MS = 50, WATCHING_MS = 200 };
    if (!launch_watch_complete(&launch->watch)) return STARTING_MS;
    bool waiting = (launch->asked > 0 && !launch->forwarded) || launch->asked > 1;
    return waiting ? STOPPING_MS : WATCHING_MS;
}

static void watch_(Launch *launch) {
    while (!launch->ended) {
        bool waits = results_wait_(launch);
        struct pollfd files[5] = {{launch->signals, POLLIN, 0},
                                  {launch->errors, POLLIN, 0},
                                  {waits ? -1 : launch->results, POLLIN, 0},
                                  {waits ? STDOUT_FILENO : -1, POLLOUT, 0},
                                  {launch->watch.ends, POLLIN, 0}};
        poll(files, 5, patience_ms_(launch));
        launch_watch_processes(&launch->watch, launch->status_page, clock_seconds());
        if (launch->output.framed && clock_seconds() - launch->heard > FRAME_S) launch_output_settle(&launch->output);
        if (files[1].revents != 0) take_errors_(launch);
        if (files[2].revents != 0) take_results_(launch);
        if (files[3].revents != 0) pass_results_(launch);
        if (files[0].revents != 0) take_signals_(launch);
        pass_on_(launch);
        if (launch_watch_look(&launch->watch, launch->status_page, launch->log, clock_seconds())) end_at_once_(launch);
    }
    pass_last_results_(launch);
    if (launch->errors >= 0) take_errors_(launch);
    launch_output_end(&launch->output);
}

// --- the last word

// The report that counts: the first that gives a reason, else the first that is not "done". -1: none.
static int find_report_(const Launch *launch, StatusRank *found) {
    int best = -1;
    StatusRank page;
    for (int rank = 0; rank < status_page_ranks(launch->status_page); rank++) {
        if (status_page_read(launch->status_page, rank, &page) != 0 || page.reported == 0 || page.code == EXIT_DONE)
            continue;
        bool reason = page.text[0] != '\0', had = best >= 0 && found->text[0] != '\0';
        if (best >= 0 && (had != reason ? had : found->reported < page.reported)) continue;
        best = rank;
        *found = page;
    }
    return best;
}

// "rank 2 (stage 2) TEXT while at step 12 F3"
static void say_of_rank_(const Launch *launch, int rank, const char *text, const char *hint) {
    StatusRank page = {.stage = -1};
    char stage[32] = "";
    status_page_read(launch->status_page, rank, &page);
    if (page.stage >= 0) snprintf(stage, sizeof stage, " (stage %d)", page.stage);
    log_line(launch->log, "rank %d%s %s while at %s%s", rank, stage, text, watchdog_action(&page), hint);
}

static int say_killed_(const Launch *launch, const LaunchComment *comment) {
    char text[128];
    const char *hint = comment->signal == SIGKILL  ? "; the kernel does that when memory runs out"
                       : comment->signal == SIGBUS ? "; /dev/shm may be full"
                                                   : "";
    snprintf(text, sizeof text, "was killed by signal %d (%s)", comment->signal, strsignal(comment->signal));
    say_of_rank_(launch, comment->rank, text, hint);
    return EXIT_FAILED;
}

// What mpirun does not say: a rank that was not far enough for it to know, or an mpirun that did not see it.
static int say_dead_(const Launch *launch) {
    int code = WIFEXITED(launch->status) ? WEXITSTATUS(launch->status) : 0;
    LaunchComment comment = {launch_watch_dead(&launch->watch), code - 128, -1};
    bool killed = comment.signal > 0 && comment.signal < NSIG;
    bool certain = launch->watch.certain && comment.rank >= 0;
    if (killed && certain) return say_killed_(launch, &comment);
    if (certain)
        say_of_rank_(launch, comment.rank, "died", "");
    else
        log_line(
            launch->log,
            "a rank died%s%s%s while the ranks were joining; several ended at once, so which was first is not known",
            killed ? " (" : "", killed ? strsignal(comment.signal) : "", killed ? ")" : "");
    return EXIT_FAILED;
}

static int say_code_(const Launch *launch, int rank, int code) {
    char text[64];
    snprintf(text, sizeof text, "ended with exit code %d", code);
    say_of_rank_(launch, rank, text, "");
    return code > EXIT_DONE && code <= EXIT_STOPPED ? code : EXIT_FAILED;
}

static int say_mpirun_(const Launch *launch) {
    if (WIFSIGNALED(launch->status)) {
        log_line(launch->log, "mpirun was killed by signal %d (%s), and its ranks with it", WTERMSIG(launch->status),
                 strsignal(WTERMSIG(launch->status)));
        return EXIT_FAILED;
    }
    if (launch->output.comment.length > 0) fputs(launch->output.comment.at, stderr);
    log_line(launch->log, "mpirun ended with exit code %d and no rank said why; what it wrote stands above",
             WEXITSTATUS(launch->status));
    return EXIT_FAILED;
}

// mpirun kills all ranks when one has died, and now and then names one of those. The first to end was seen to; what ended it was not.
static bool misnamed_(const Launch *launch, const LaunchComment *comment) {
    const LaunchWatch *watch = &launch->watch;
    int dead = launch_watch_dead(watch);
    return watch->certain && dead >= 0 && comment->rank != dead && launch_watch_met(watch, comment->rank);
}

static int last_word_(const Launch *launch) {
    StatusRank page;
    LaunchComment comment = launch_output_comment(&launch->output);
    int rank = find_report_(launch, &page);
    if (rank >= 0 && page.text[0] != '\0') {
        Log voice = {launch->log->program, rank, page.stage, LOG_NORMAL};
        log_line(&voice, "%s", page.text);
        // Killed by somebody else, mpirun is the reason, and what a rank says of it (its standard output has gone) a consequence.
        bool killed = WIFSIGNALED(launch->status) && !launch->forced && launch->asked < 2;
        if (killed) return say_mpirun_(launch);
        if (!launch->unread) return page.code;
    }
    if (launch->unwritten != 0) {
        log_line(launch->log, "cannot write to standard output: %s", strerror(launch->unwritten));
        return EXIT_FAILED;
    }
    if (launch->watch.reason[0] != '\0') {
        log_line(launch->log, "%s", launch->watch.reason);
        return EXIT_FAILED;
    }
    bool clean = WIFEXITED(launch->status) && WEXITSTATUS(launch->status) == EXIT_DONE;
    if (launch->asked > 1 && !clean) {
        log_line(launch->log, "ended at once, on the second signal; what came after the last checkpoint is lost");
        return EXIT_FAILED;
    }
    if (comment.rank >= 0 && comment.signal > 0 && misnamed_(launch, &comment)) {
        say_of_rank_(launch, launch_watch_dead(&launch->watch), "died", "");
        return EXIT_FAILED;
    }
    if (comment.rank >= 0 && comment.signal > 0) return say_killed_(launch, &comment);
    if (rank >= 0) return page.code;
    if (clean) return EXIT_DONE;
    if (comment.rank >= 0 && comment.code >= 0) return say_code_(launch, comment.rank, comment.code);
    return launch->watch.first >= 0 && (launch->forced || !WIFSIGNALED(launch->status)) ? say_dead_(launch)
                                                                                        : say_mpirun_(launch);
}

// --- one launch

static int pipe_(int ends[2], int *ours, Error *err) {
    if (pipe2(ends, O_CLOEXEC) != 0) return error_set(err, EXIT_FAILED, "cannot make a pipe; too many open files?");
    *ours = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return 0;
}

static int launch_start_(Launch *launch, int ranks, char **argv, Patience patience, Error *err) {
    int results[2] = {-1, -1}, errors[2] = {-1, -1};
    launch->status_page = status_page_create(launch->folder.status_page, ranks, err);
    if (launch->status_page == NULL || (launch->signals = launch_signals_open(err)) < 0 ||
        launch_watch_start(&launch->watch, ranks, patience, clock_seconds(), err) != 0)
        return -1;
    if (pipe_(results, &launch->results, err) == 0 && pipe_(errors, &launch->errors, err) == 0)
        launch->mpirun = launch_mpirun(ranks, argv, &launch->folder, results[1], errors[1], err);
    if (results[1] >= 0) close(results[1]);
    if (errors[1] >= 0) close(errors[1]);
    launch_watch_children(&launch->watch, launch->mpirun);
    return launch->mpirun > 0 ? 0 : -1;
}

static void launch_end_(Launch *launch) {
    launch_folder_remove(&launch->folder);
    status_page_close(launch->status_page);
    launch_output_free(&launch->output);
    launch_watch_free(&launch->watch);
    if (launch->results >= 0) close(launch->results);
    if (launch->errors >= 0) close(launch->errors);
    launch_signals_close();
}

static void announce_(const Log *log, int ranks) {
    int cores = launch_cores(), threads = launch_threads(ranks);
    log_status(log, "starting %d ranks on this machine through mpirun (%d core%s: %d thread%s each)", ranks, cores,
               cores == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
}

int launch_ranks(const Log *log, int ranks, char **argv, Patience patience, Error *err) {
    Launch launch = {.log = log,
                     .signals = -1,
                     .results = -1,
                     .errors = -1,
                     .output = {.to = STDERR_FILENO},
                     .watch = LAUNCH_WATCH_NONE};
#ifndef HAVE_MPI
    return error_set(err, EXIT_USAGE,
                     "this configuration takes %d ranks, but the program was built without MPI; install it "
                     "(scripts/install_deps.sh) and run make again, or set parallel.pipeline, tensor and data to 1",
                     ranks);
#endif
    if (launch_folder_create(&launch.folder, err) != 0) return -1;
    int code = launch_start_(&launch, ranks, argv, patience, err);
    if (code == 0) {
        announce_(log, ranks);
        watch_(&launch);
        code = last_word_(&launch);
    }
    launch_end_(&launch);
    return code;
}
