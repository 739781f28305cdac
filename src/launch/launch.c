// Runs the launches of one job. A loop forwards the ranks' output to the user and signals to the ranks, runs the
// coordinator, and ends all processes once the job is over. Then the final message is printed.
#include "launch_private.h"

#include "base/clock.h"
#include "base/files.h"
#include "base/units.h"
#include "ranks/affinity.h"
#include "ranks/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// Passes on output of the ranks to the user.
typedef struct Relay {
    int from, to;         // from -1: closed
    size_t passed, taken; // bytes of `bytes` that were written to `to`; bytes read into it
    char bytes[1 << 14];
} Relay;

typedef struct Launch {
    const Log *log;
    Job job;            // of this launch
    const Job *whole;   // of all launches
    bool saved;         // an earlier launch has saved a checkpoint
    const char *remedy; // end of the final message
    int asked;          // requests to stop so far, before and during this launch
    double first;       // time of the first request

    LaunchFolder folder;
    Coordinator *coordinator;
    Relay results; // mpirun's stdout. If mpirun wrote to ours itself, it would hide write errors
    Relay errors;  // stderr of the ranks
    int words;     // a file with mpirun's own output
    int unwritten; // errno of a failed write to our stdout; 0: no failure
    bool unread;   // the failed write was the reason to ask the ranks to stop
    pid_t mpirun;
    bool ended, forced; // mpirun has ended; this process killed it
    int status;         // mpirun's status from waitpid
    double stopped;     // time at which mpirun was stopped by a signal; 0: it runs
    bool forwarded;     // the request was sent to the ranks
    bool closed;        // mpirun's ports refuse connections
    double last;        // time when all ranks had ended cleanly; later, time of mpirun's last output; 0: not yet
    char reason[256];   // why this process ended the job; used if the coordinator has no reason
} Launch;

// --- signals
//
// A handler writes each signal's number as one byte into a pipe that the parent polls. Signals are caught, not blocked:
// libraries may have started threads before the ranks are started (planning for schedule.bpipe: auto does). Such
// threads do not block the signals, and a signal to the process may go to any thread that does not block it, so
// mpirun's SIGCHLD would be lost. SIGPIPE is caught so that a lost reader of the results causes a write error; the
// ranks then end with a checkpoint.

// The pipe into which the handlers write. Global, because a signal handler receives only the signal's number.
static int signals_[2];

static void note_signal_(int number) {
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    // A full pipe is ignored: the parent already has signals to read.
    if (write(signals_[1], &byte, 1) < 0) errno = 0;
    errno = kept;
}

#define SAME_S 0.2 // signals within this time are one request: timeout(1) and a shell that exits may send several

static void ask_to_stop_(Launch *launch) {
    if (launch->asked > 0 && clock_seconds() - launch->first < SAME_S) return;
    if (launch->asked == 0) launch->first = clock_seconds();
    if (++launch->asked == 1 && !launch->ended &&
        file_accepts(STDERR_FILENO, 0)) // the request must not wait for a reader
        log_status(launch->log, "asked to stop: the ranks end %s; a second signal ends them at once",
                   launch->job.trains ? "after the current step" : "soon");
}

static void take_signals_(Launch *launch) {
    unsigned char number;
    pid_t child;
    int status;
    while (read(signals_[0], &number, 1) == 1)
        if (number != SIGCHLD && number != SIGPIPE) ask_to_stop_(launch);
    // The first process of a container also inherits orphans: ranks whose supervisors died.
    while ((child = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
        if (child != launch->mpirun) continue;
        launch->ended = !WIFSTOPPED(status) && !WIFCONTINUED(status);
        if (launch->ended) launch->status = status;
        launch->stopped = WIFSTOPPED(status) ? clock_seconds() : 0;
    }
}

// --- output of the ranks

static bool waits_(const Relay *relay) { return relay->passed < relay->taken; }

static struct pollfd next_(const Relay *relay) {
    if (waits_(relay)) return (struct pollfd){relay->to, POLLOUT, 0};
    return (struct pollfd){relay->from, POLLIN, 0};
}

// Passes on as much as the reader accepts without blocking, so that signals and ranks are handled even if the reader (a
// pager) pauses. Returns 0, or the errno of a failed write, whose bytes are dropped.
static int pass_(Relay *relay) {
    for (;;) {
        if (!waits_(relay)) {
            ssize_t count = read(relay->from, relay->bytes, sizeof relay->bytes);
            if (count == 0) close(relay->from), relay->from = -1;
            if (count <= 0) return 0;
            relay->passed = 0, relay->taken = (size_t)count;
        }
        if (!file_accepts(relay->to, 0)) return 0;
        size_t count = relay->taken - relay->passed;
        ssize_t wrote = write(relay->to, relay->bytes + relay->passed, count < PIPE_BUF ? count : PIPE_BUF);
        if (wrote > 0) relay->passed += (size_t)wrote;
        if (wrote >= 0 || errno == EINTR || errno == EAGAIN) continue;
        relay->passed = relay->taken;
        return errno;
    }
}

// If the reader of the results is gone, the run ends as if it had been asked to stop, with a checkpoint.
static void pass_results_(Launch *launch) {
    int failed = pass_(&launch->results);
    if (failed == 0) return;
    launch->unwritten = failed;
    if (launch->asked > 0) return;
    launch->unread = true;
    ask_to_stop_(launch);
}

// --- the loop

// Returns true once all processes have to be ended: the job is over, or mpirun is stopped or does not exit.
static bool is_over_(Launch *launch, double now) {
    enum { MPIRUN_ENDS_WITHIN_S = 2, READY_WITHIN_S = 8, MPIRUN_HANGS_S = 30 };
    double peer_s = launch->job.patience.peer_s;
    Log log = *launch->log;
    if (!file_accepts(STDERR_FILENO, 0)) log.level = LOG_SILENT; // the ranks' end does not wait for a reader
    if (coordinator_look(launch->coordinator, &log, now)) return true;
    if (launch->asked > 1) return true;
    if (launch->asked > 0 && !launch->forwarded && now - launch->first > READY_WITHIN_S) {
        snprintf(launch->reason, sizeof launch->reason,
                 "asked to stop before every rank had started; the ranks were ended after %d s and had nothing new to "
                 "save",
                 READY_WITHIN_S);
        return true;
    }
    if (launch->last == 0 && coordinator_code(launch->coordinator) >= 0) launch->last = now;
    if (launch->last > 0 && now - launch->last > (launch->results.from < 0 ? MPIRUN_ENDS_WITHIN_S : MPIRUN_HANGS_S))
        return true;
    if (launch->stopped == 0 || peer_s == 0 || now - launch->stopped < peer_s) return false;
    snprintf(launch->reason, sizeof launch->reason,
             "mpirun has been stopped for %.0f s (train.peer_timeout_s), which blocks the ranks' output",
             now - launch->stopped);
    return true;
}

// Ends the ranks and mpirun. Supervisors first get 1 s to report how their ranks ended, because a report may contain
// the reason. If a rank never connected, mpirun gets 3 s: only its exit code shows that such a rank died first.
static void end_ranks_(Launch *launch) {
    enum { TRIES = 20, MPIRUN_TRIES = 60 };
    int first;
    bool asks = coordinator_unknown(launch->coordinator, &first) > 0 && launch->asked == 0 && launch->stopped == 0;
    for (int try = 0; try < (asks ? MPIRUN_TRIES : TRIES) && !launch->ended; try++) {
        coordinator_end(launch->coordinator);
        clock_sleep(0.05);
        coordinator_take(launch->coordinator, clock_seconds());
        pass_(&launch->errors);
        take_signals_(launch);
        if (!asks && coordinator_open_ranks(launch->coordinator) == 0) break;
    }
    // Kills all processes. SIGKILL also ends stopped processes, which would not react to another signal.
    launch->forced = !launch->ended;
    if (!launch->ended) kill(-launch->mpirun, SIGKILL);
    launch_folder_signal(&launch->folder, SIGKILL);
    while (!launch->ended && waitpid(launch->mpirun, &launch->status, 0) == launch->mpirun)
        launch->ended = WIFEXITED(launch->status) || WIFSIGNALED(launch->status);
}

static void watch_(Launch *launch) {
    enum { STOPPING_MS = 50, WATCHING_MS = 200 };
    while (!launch->ended) {
        bool ready = coordinator_all_ready(launch->coordinator);
        bool waiting = !ready || (launch->asked > 0 && !launch->forwarded) || launch->asked > 1;
        if (!launch->closed) launch_close_ports(launch->mpirun, ready), launch->closed = ready;
        struct pollfd files[] = {{signals_[0], POLLIN, 0},
                                 {coordinator_file(launch->coordinator), POLLIN, 0},
                                 next_(&launch->errors),
                                 next_(&launch->results)};
        poll(files, sizeof files / sizeof *files, waiting ? STOPPING_MS : WATCHING_MS);
        double now = clock_seconds();
        coordinator_take(launch->coordinator, now);
        if (launch->last > 0 && (waits_(&launch->results) || files[3].revents != 0)) launch->last = now; // it has more
        pass_(&launch->errors);
        pass_results_(launch);
        take_signals_(launch);
        // SIGUSR1 kills a process that does not handle it yet, so a request waits until every rank is ready. A rank
        // that hangs during start-up is never ready; is_over_ then ends the job.
        if (launch->asked > 0 && !launch->forwarded && ready) kill(launch->mpirun, SIGUSR1), launch->forwarded = true;
        if (!launch->ended && is_over_(launch, now)) end_ranks_(launch);
    }
    coordinator_take(launch->coordinator, clock_seconds());
    launch_folder_signal(&launch->folder, SIGKILL);
    // Pass the remaining output, and wait until stderr accepts the final message. A second signal ends the wait for a
    // reader, who then gets no message.
    for (;;) {
        pass_(&launch->errors);
        pass_results_(launch);
        bool results = waits_(&launch->results), mute = waits_(&launch->errors) || !file_accepts(STDERR_FILENO, 0);
        if (launch->asked > 1 || (!results && !mute)) break;
        struct pollfd files[] = {{signals_[0], POLLIN, 0},
                                 {mute ? STDERR_FILENO : -1, POLLOUT, 0},
                                 {results ? STDOUT_FILENO : -1, POLLOUT, 0}};
        poll(files, 3, -1);
        take_signals_(launch);
    }
    if (waits_(&launch->results)) launch->unwritten = EINTR;
    // A rank that was killed within a line leaves it open; the final message has a line of its own.
    const Relay *errors = &launch->errors;
    if (errors->taken > 0 && errors->bytes[errors->taken - 1] != '\n' && file_accepts(STDERR_FILENO, 0))
        putc('\n', stderr);
    if (!file_accepts(STDERR_FILENO, 0)) dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
}

// --- the final message

// Prints mpirun's own output. Returns false if there is no output.
static bool show_words_(const Launch *launch) {
    char bytes[1 << 14];
    ssize_t count = pread(launch->words, bytes, sizeof bytes, 0);
    return count > 0 && write(STDERR_FILENO, bytes, (size_t)count) > 0;
}

static int say_mpirun_(const Launch *launch) {
    if (WIFSIGNALED(launch->status)) {
        log_line(launch->log, "mpirun was killed by signal %d (%s), and its ranks with it; %s",
                 WTERMSIG(launch->status), strsignal(WTERMSIG(launch->status)), launch->remedy);
        return EXIT_FAILED;
    }
    bool shown = show_words_(launch);
    log_line(launch->log,
             "mpirun ended with exit code %d, and no rank reported a reason%s; check the limits (ulimit -a)",
             WEXITSTATUS(launch->status), shown ? "; its output is above" : "");
    return EXIT_FAILED;
}

// Determines why the job ended, prints the reason, and returns the exit code.
static int last_word_(Launch *launch, JobEnd *end) {
    int first, unknown = coordinator_unknown(launch->coordinator, &first), code = coordinator_code(launch->coordinator);
    bool failed = coordinator_look(launch->coordinator, launch->log, clock_seconds());
    *end = coordinator_why(launch->coordinator);
    const RankStatus *status = end->rank >= 0 ? coordinator_status(launch->coordinator, end->rank) : NULL;
    // If mpirun was killed, its ranks end with a code, by SIGPIPE or with their supervisors. If another signal killed
    // `end->rank`, the rank died first.
    bool rank_killed = status != NULL && status->signal > 0 && status->signal != SIGPIPE;
    bool mpirun_killed = WIFSIGNALED(launch->status) && !launch->forced && !rank_killed;
    // mpirun's exit code gives the signal that killed the first dead child, if that child had not connected.
    int number = unknown > 0 && WIFEXITED(launch->status) ? WEXITSTATUS(launch->status) - 128 : 0;
    bool before = number > 0 && number < NSIG && !end->spoken && !end->silent;
    bool stuck = launch->reason[0] != '\0' && launch->asked == 0;
    end->lost = (end->lost || (code < 0 && !end->spoken && (mpirun_killed || before || stuck))) && launch->asked < 2;
    end->saved = end->saved || launch->saved;
    launch->remedy = (end->lost ? &launch->job : launch->whole)->remedy[end->saved];
    if (end->spoken && !launch->unread) {
        Log voice = {launch->log->program, end->rank, end->stage, LOG_NORMAL};
        log_line(&voice, "%s", end->text);
        // If mpirun was killed, the rank failed because its stdout was gone, so also report how mpirun ended.
        return mpirun_killed && launch->asked < 2 ? say_mpirun_(launch) : end->code;
    }
    if (launch->unwritten != 0) {
        log_line(launch->log, "cannot write to standard output: %s", strerror(launch->unwritten));
        return EXIT_FAILED;
    }
    if (launch->asked > 1 && code < 0)
        snprintf(launch->reason, sizeof launch->reason, "ended at once, on the second signal%s",
                 launch->job.trains ? "; steps after the last checkpoint are lost" : "");
    else if (code >= 0) return code;
    else if (mpirun_killed) return say_mpirun_(launch);
    else if (before) {
        char who[32] = "one of the ranks";
        if (unknown == 1 && status == NULL) snprintf(who, sizeof who, "rank %d", first);
        snprintf(launch->reason, sizeof launch->reason, "%s was killed by signal %d (%s) during start-up", who, number,
                 strsignal(number));
    }
    if (launch->reason[0] != '\0') {
        log_line(launch->log, "%s; %s", launch->reason, launch->remedy);
        return EXIT_FAILED;
    }
    if (!failed) return say_mpirun_(launch);
    // mpirun's output has the reason why a rank could not start (a missing library) or could not join the others.
    bool joining = status != NULL && status->signal == 0 && status->code > 0 && !end->silent &&
                   strcmp(status->action, SUPERVISOR_JOINING) == 0;
    if (joining || (unknown > 0 && WIFEXITED(launch->status))) show_words_(launch);
    log_line(launch->log, "%s", end->text);
    return EXIT_FAILED;
}

// --- after a loss

bool restart_allowed(Restarts *restarts, const JobEnd *end, char why[256]) {
    bool further = end->step > restarts->furthest || !restarts->again;
    bool same = !further && end->rank >= 0 && end->rank == restarts->rank && end->action[0] != '\0' &&
                strcmp(end->action, restarts->action) == 0;
    int cost = further ? 1 : 2;
    restarts->again = true;
    restarts->rank = end->rank;
    restarts->furthest = max_i64(restarts->furthest, end->step);
    status_copy_text(restarts->action, sizeof restarts->action, end->action);
    if (same) snprintf(why, 256, "rank %d was lost twice at %s", end->rank, end->action);
    else if (restarts->left == 0) snprintf(why, 256, "no restart is left (train.max_restarts)");
    else if (restarts->left < cost)
        snprintf(why, 256, "only one restart is left (train.max_restarts), and a loss without a new step costs two");
    else return restarts->left -= cost, true;
    return false;
}

// --- one launch

// Creates the files of a launch: pipes for the ranks' stderr and for mpirun's stdout, whose other end is *stdout_end,
// and the file for mpirun's own output. -1 with err.
static int open_(Launch *launch, int *stdout_end, Error *err) {
    // A test whether a file can be slightly larger than Open MPI's shared-memory segment of 4 MiB. Open MPI prints no
    // message if it cannot create a segment.
    enum { SEGMENT = 5 << 20 };
    char path[sizeof launch->folder.path + 16];
    int ends[2];
    snprintf(path, sizeof path, "%s/%s", launch->folder.path, SUPERVISOR_ERRORS);
    if (mkfifo(path, 0600) != 0 || (launch->errors.from = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0)
        return error_set(err, EXIT_FAILED, "cannot create %s: %s; free space there", path, strerror(errno));
    snprintf(path, sizeof path, "%s/mpirun", launch->folder.path);
    launch->words = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int failed = launch->words < 0 ? errno : posix_fallocate(launch->words, 0, SEGMENT);
    if (failed != 0 || ftruncate(launch->words, 0) != 0)
        return error_set(err, EXIT_FAILED, "cannot write %s: %s; raise ulimit -f, or free space there", path,
                         strerror(failed != 0 ? failed : errno));
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, EXIT_FAILED, "cannot create a pipe (%s); raise ulimit -n", strerror(errno));
    launch->results.from = ends[0], *stdout_end = ends[1];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return 0;
}

// Starts the ranks once and waits for their end. Returns the exit code, or -1 with err.
static int once_(Launch *launch, char **argv, JobEnd *end, Error *err) {
    int stdout_end = -1, code = -1, ranks = launch->job.ranks;
    int cores = affinity_allowed(), threads = affinity_threads(ranks);
    if (launch_folder_create(&launch->folder, ranks, err) != 0) return -1;
    launch->coordinator = coordinator_open(&launch->job, launch->folder.path, err);
    if (launch->coordinator != NULL && open_(launch, &stdout_end, err) == 0) {
        launch->mpirun = launch_mpirun(ranks, argv, &launch->folder, stdout_end, launch->words, err);
        close(stdout_end);
    }
    if (launch->mpirun > 0) {
        log_status(launch->log, "starting %d ranks on this machine through mpirun (%d core%s: %d thread%s each)", ranks,
                   cores, cores == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
        watch_(launch);
        code = last_word_(launch, end);
    }
    launch_folder_remove(&launch->folder);
    coordinator_close(launch->coordinator);
    const int files[] = {launch->results.from, launch->errors.from, launch->words};
    for (int i = 0; i < 3; i++)
        if (files[i] >= 0) close(files[i]);
    return code;
}

int launch_ranks(const Log *log, const Job *job, char **argv, LaunchAgain again, void *context, Error *err) {
#ifndef HAVE_MPI
    return error_set(err, EXIT_USAGE,
                     "this configuration needs %d ranks, but the program was built without MPI; install MPI "
                     "(scripts/install_deps.sh) and run make again, or set parallel.pipeline, tensor and data to 1",
                     job->ranks);
#endif
    // The handlers stay installed, so a request that arrives while lost ranks are being ended is not lost.
    struct sigaction action = {.sa_handler = note_signal_, .sa_flags = SA_RESTART};
    if (pipe2(signals_, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, EXIT_FAILED, "cannot create a pipe for signals (%s); raise ulimit -n", strerror(errno));
    sigfillset(&action.sa_mask);
    sigaction(SIGCHLD, &action, NULL);
    sigaction(SIGPIPE, &action, NULL);
    supervisor_catch_requests(&action);
    int code = -1, asked = 0;
    double first = 0;
    bool saved = false;
    for (;;) {
        JobEnd end = {.rank = -1};
        Launch launch = {.log = log, .job = *job, .whole = job, .saved = saved, .asked = asked};
        launch.first = first, launch.words = -1;
        launch.results.from = launch.errors.from = -1;
        launch.results.to = STDOUT_FILENO, launch.errors.to = STDERR_FILENO;
        if (again != NULL) launch.job.remedy[0] = launch.job.remedy[1] = "the ranks end"; // `again` says the remedy
        code = once_(&launch, argv, &end, err);
        saved = end.saved;
        if (code <= EXIT_DONE || !end.lost || again == NULL) break;
        take_signals_(&launch);
        asked = launch.asked, first = launch.first;
        if (asked > 0) log_line(log, "asked to stop: the ranks are not started again; %s", job->remedy[saved]);
        if (asked > 0 || !again(context, &end, &argv)) break;
    }
    return code;
}
