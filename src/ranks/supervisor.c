// One loop checks the rank, reports to the coordinator, and follows its orders. If this process holds the coordinator,
// the same loop runs the coordinator.
//
// The rank never outlives its supervisor: the kernel kills the rank when the supervisor ends. The supervisor kills the
// rank when the supervisor's own parent has exited, or when the coordinator is silent for too long.
#include "supervisor.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_ANSWERED = -1 };

// Data that a rank shares with its supervisor, in addition to the status page, once all ranks have met.
typedef struct Meeting {
    Invitation invitation; // address of the coordinator; count 0: not known yet
    _Atomic int invited;
} Meeting;

struct Supervisor {
    const char *program;
    Job job;
    int rank;     // -1: a single rank without a launcher
    bool by_hand; // a program started by hand holds the coordinator and prints the reason
    StatusPage *page;
    Meeting *meeting; // shared memory
    pthread_t thread; // watches the rank if there is no supervisor process
    bool threaded;
    // Started by hand: the connection to the coordinator. Else one connection per invited address, until one is
    // answered.
    Connection connections[INVITATION_ADDRESSES];
    int count, answered; // index of the connection that is in use; NOT_ANSWERED: none yet

    // Only in the supervisor process.
    pid_t launcher, child;
    Coordinator *coordinator;
    Watchdog *hub;   // watches the coordinator through its replies
    Watchdog *alone; // watches this rank while it has no contact with a coordinator
    RankStatus last; // status last read from the rank; after its end, includes how it ended
    bool ended, stopped, told;
    bool sent;         // the rank's end was sent to the coordinator
    bool acknowledged; // the coordinator has confirmed it
    bool crashed;      // a signal killed the rank after it had left, in MPI_Finalize
    int code;          // exit code of this process
    double last_words; // time at which this process no longer waits for the rank or the coordinator; 0: not set
    double joining;    // time at which MPI began to join the ranks
    double speaks;     // time at which rank 0 next logs that MPI is still joining the ranks
    double met;        // time at which the ranks had met; 0: not yet
    bool settled;      // rank 0 has checked for ranks that reported late or not at all
};

// --- lines

// Returns the log for final messages. Sets an alarm that ends this process if it blocks on stderr (a full pipe).
static Log begin_words_(const Supervisor *supervisor) {
    enum { LONGEST_S = 5 };
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_S);
    return (Log){supervisor->program, supervisor->rank, supervisor->last.stage, LOG_NORMAL};
}

// --- the launcher, if it waits for a host that is cut off

// Forks a process that ends the launcher after a few seconds unless the launcher ends by itself. Open MPI's mpirun and
// its daemons wait for each other until TCP times out, 15 minutes. Daemons clean up on SIGTERM. mpirun ignores a second
// request to end, so it gets SIGKILL. Other launchers, such as Slurm's daemon, notice a lost host by themselves.
static void end_launcher_(pid_t launcher) {
    enum { GRACE_MS = 5000, LAST_MS = 2000, FILES = 4096 };
    static const struct {
        const char *name;
        int number;
    } launchers[] = {{"orted", SIGTERM},   {"prted", SIGTERM},   {"mpirun", SIGKILL},
                     {"mpiexec", SIGKILL}, {"orterun", SIGKILL}, {"prte", SIGKILL}};
    char path[64], name[32] = "";
    int number = 0;
    if (getppid() != launcher) return; // the launcher has exited, or this is the rank itself
    snprintf(path, sizeof path, "/proc/%d/comm", (int)launcher);
    int comm = open(path, O_RDONLY | O_CLOEXEC);
    if (comm < 0 || read(comm, name, sizeof name - 1) < 0) name[0] = '\0';
    if (comm >= 0) close(comm);
    for (size_t i = 0; number == 0 && i < sizeof launchers / sizeof *launchers; i++)
        if (strncmp(name, launchers[i].name, strlen(launchers[i].name)) == 0) number = launchers[i].number;
    int file = (int)syscall(SYS_pidfd_open, launcher, 0);
    if (number == 0 || file < 0 || fork() != 0) return;
    // Leaves the process group, which the launcher kills, and closes the pipes, which keep the launcher waiting.
    setsid();
    for (int other = 0; other < FILES; other++)
        if (other != file) close(other);
    struct pollfd gone = {file, POLLIN, 0};
    if (poll(&gone, 1, GRACE_MS) == 0) syscall(SYS_pidfd_send_signal, file, number, NULL, 0);
    if (poll(&gone, 1, LAST_MS) == 0) syscall(SYS_pidfd_send_signal, file, SIGKILL, NULL, 0);
    _exit(0);
}

// --- the rank

static void kill_rank_(const Supervisor *supervisor) {
    if (!supervisor->ended && supervisor->child > 0) kill(supervisor->child, SIGKILL);
}

// Ends this rank without a coordinator, after a line that says why.
static void __attribute__((noreturn, format(printf, 2, 3)))
give_up_(const Supervisor *supervisor, const char *format, ...) {
    char why[1536];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    Log log = begin_words_(supervisor);
    log_line(&log, "%s", why);
    end_launcher_(supervisor->launcher);
    kill_rank_(supervisor);
    // The launcher kills the other ranks once this process exits; give them time to log their own messages.
    if (supervisor->child > 0) clock_sleep(1.5);
    _exit(EXIT_FAILED);
}

// Reads the rank's status. excuses: while the reader of its output pauses (a pager), the rank may wait for the reader,
// which counts as progress. Not beside a bare mpirun, whose pipes also fill if it is stopped.
static void look_(Supervisor *supervisor, bool excuses) {
    bool read = file_accepts(STDOUT_FILENO, 0) && file_accepts(STDERR_FILENO, 0);
    if (excuses && !read) status_page_progress(supervisor->page);
    status_page_read(supervisor->page, &supervisor->last);
}

// Gives up if there is no progress and no other process would notice.
static void miss_progress_(const Supervisor *supervisor, double now) {
    const Job *job = &supervisor->job;
    char own[WATCHDOG_TEXT];
    int rank;
    watchdog_hear(supervisor->alone, 0, &supervisor->last, now);
    if (watchdog_look(supervisor->alone, now, &rank) != FOUND_STUCK) return;
    watchdog_describe(&supervisor->last, own);
    bool joining = strcmp(supervisor->last.action, SUPERVISOR_JOINING) == 0;
    give_up_(supervisor, "this rank has made no progress for %.0f s (train.timeout_s): it %s; %s",
             job->patience.progress_s, own,
             joining ? "the job ends before any rank has begun; if hosts have several networks, name the "
                       "right one to mpirun (docs/slurm.md)"
                     : job->remedy[supervisor->last.saved]);
}

// Checks whether the rank or its parents have ended. Without its parents, the rank is killed.
static void see_rank_(Supervisor *supervisor) {
    enum { LONGEST_S = 30 };
    double now = clock_seconds();
    int status;
    while (!supervisor->ended && waitpid(supervisor->child, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
        supervisor->stopped = WIFSTOPPED(status);
        if (!WIFEXITED(status) && !WIFSIGNALED(status)) continue;
        RankStatus *last = &supervisor->last;
        status_page_read(supervisor->page, last);
        bool left = last->ending == ENDING_LEFT; // true: if a signal killed the rank, it was in MPI_Finalize
        last->signal = WIFSIGNALED(status) && !left ? WTERMSIG(status) : 0;
        supervisor->crashed = left && WIFSIGNALED(status);
        int code = left ? last->code : WIFSIGNALED(status) ? 128 + last->signal : WEXITSTATUS(status);
        if (!supervisor->told) supervisor->code = code;
        if (last->ending == ENDING_NONE) last->ending = ENDING_DIED, last->code = code;
        if (last->when == 0) last->when = clock_wall_ns();
        supervisor->ended = true, supervisor->last_words = 0;
    }
    if (!supervisor->ended && supervisor->last.ending == ENDING_LEFT) { // the rank may hang in MPI_Finalize
        if (supervisor->last_words == 0) supervisor->last_words = now + LONGEST_S;
        if (now > supervisor->last_words) kill_rank_(supervisor);
    }
    if (supervisor->ended || getppid() == supervisor->launcher) return;
    kill_rank_(supervisor);
    if (supervisor->by_hand) _exit(EXIT_FAILED); // the caretaker kills the other processes
    give_up_(supervisor, "the process that started this rank has exited; %s",
             supervisor->job.remedy[supervisor->last.saved]);
}

// --- the coordinator

// Returns whether the coordinator hears from this rank: this process holds the coordinator or has had an answer.
static bool is_heard_(const Supervisor *supervisor) {
    return supervisor->coordinator != NULL || supervisor->answered != NOT_ANSWERED;
}

// Reports the rank's action, or its end, to the coordinator. First connects to every address of the coordinator, once
// they are known, and again if all attempts failed.
static void tell_(Supervisor *supervisor, double now) {
    const Invitation *invitation = &supervisor->meeting->invitation;
    Message message = {invitation->supervisor, supervisor->rank, -1, supervisor->last};
    if (!supervisor->ended) message.status.ending = ENDING_NONE; // reported only once the process has ended
    bool calls = !is_heard_(supervisor) && atomic_load(&supervisor->meeting->invited);
    for (int i = 0; i < supervisor->count; i++) calls = calls && supervisor->connections[i].file < 0;
    if (calls) supervisor->count = invitation->count;
    for (int i = 0; i < supervisor->count; i++) {
        if (calls) supervisor->connections[i] = connection_open_tcp(&invitation->address[i]);
        if (connection_send(&supervisor->connections[i], &message)) supervisor->sent = supervisor->ended;
    }
    if (supervisor->coordinator == NULL) return;
    coordinator_hear(supervisor->coordinator, supervisor->rank, &message.status, now);
    supervisor->sent = supervisor->acknowledged = supervisor->ended;
}

// Ends this rank because the coordinator is silent or has ended. Every supervisor then logs a line about its own rank.
static void miss_coordinator_(const Supervisor *supervisor, const char *what) {
    char own[WATCHDOG_TEXT];
    RankStatus status = supervisor->last;
    status_page_read(supervisor->page, &status);
    // An error that all ranks found is rank 0's to report; the launcher then kills the processes in any order.
    bool reported = strcmp(watchdog_action(&status), "leaving with an error") == 0;
    if (supervisor->by_hand || reported) { // by hand: the caretaker kills the other processes
        kill_rank_(supervisor);
        _exit(EXIT_FAILED);
    }
    watchdog_describe(&status, own);
    give_up_(supervisor, "%s; this rank %s; %s", what, own, supervisor->job.remedy[status.saved]);
}

// Reads the coordinator's messages. The end of the connection confirms the last report, or the coordinator has died.
static void take_(Supervisor *supervisor, double now) {
    Message message;
    for (int i = 0; i < supervisor->count; i++) {
        Received received;
        while ((received = connection_receive(&supervisor->connections[i], &message)) == RECEIVED_MESSAGE) {
            if (message.token != supervisor->meeting->invitation.coordinator || message.rank != supervisor->rank)
                continue;
            supervisor->answered = i;
            for (int other = 0; other < supervisor->count; other++)
                if (other != i) connection_close(&supervisor->connections[other]);
            if (message.end < 0) watchdog_hear(supervisor->hub, 0, &message.status, now);
            if (message.end < 0 || supervisor->told) continue;
            supervisor->told = true;
            supervisor->code = message.end;
            kill_rank_(supervisor);
        }
        if (received != RECEIVED_END || supervisor->answered != i) continue;
        supervisor->acknowledged = supervisor->sent;
        if (!supervisor->sent && !supervisor->told)
            miss_coordinator_(supervisor, "the supervisor of rank 0, to which all ranks report, has ended");
    }
}

// Logs the cause of a slow start. Until the ranks have met, logs that MPI is still joining them. CONNECT_S seconds
// later, logs the rank with the latest first report, if it was late, and the number of ranks without a report.
static void say_start_(Supervisor *supervisor, const Log *log, double now) {
    enum { JOIN_S = 20, CONNECT_S = 10, SLOW_S = 1 }; // CONNECT_S: several round trips of the slowest links
    int first, missing, ranks = supervisor->job.ranks;
    double heard;
    if (supervisor->joining == 0) supervisor->joining = now, supervisor->speaks = now + JOIN_S;
    if (supervisor->settled) return;
    if (!atomic_load(&supervisor->meeting->invited)) {
        if (now < supervisor->speaks) return;
        log_line(log, "MPI has been connecting %d ranks for %.0f s; it is waiting for the slowest host or link", ranks,
                 now - supervisor->joining);
        supervisor->speaks = now + (now - supervisor->joining);
        return;
    }
    if (supervisor->met == 0) supervisor->met = now;
    if (now < supervisor->met + CONNECT_S) return;
    supervisor->settled = true;
    int slowest = coordinator_slowest(supervisor->coordinator, &heard);
    if (heard - supervisor->met > SLOW_S)
        log_line(
            log,
            "the first heartbeat of rank %d came %.1f s after MPI had joined the ranks: the link between its host and "
            "rank 0's is slow; the rest of start-up takes about 40 round trips",
            slowest, heard - supervisor->met);
    if ((missing = coordinator_unknown(supervisor->coordinator, &first)) == 0) return;
    log_line(log,
             "heartbeats of %d of %d ranks, first rank %d, do not reach rank 0 (TCP port %d): if one of them "
             "stops, only train.timeout_s ends the job; open that port between hosts",
             missing, ranks, first, ntohs(supervisor->meeting->invitation.address[0].four.sin_port));
}

// Supervises all ranks, if this process holds the coordinator.
static void coordinate_(Supervisor *supervisor, double now) {
    enum { TRIES = 20 };
    Coordinator *coordinator = supervisor->coordinator;
    Log all = {supervisor->program, -1, -1, LOG_NORMAL};
    coordinator_take(coordinator, now);
    say_start_(supervisor, &all, now);
    if (!coordinator_look(coordinator, &all, now)) return;
    JobEnd why = coordinator_why(coordinator);
    begin_words_(supervisor);
    if (!why.spoken) log_line(&all, "%s", why.text);
    // Writes the lost rank, the step and the rank's action to a file, for the job script that may restart the ranks.
    FILE *file = why.lost && getenv(SUPERVISOR_LOSS) != NULL ? fopen(getenv(SUPERVISOR_LOSS), "we") : NULL;
    if (file != NULL) {
        fprintf(file, "%d %lld %s\n", why.rank, (long long)why.step, why.action);
        fclose(file);
    }
    if (why.silent) end_launcher_(supervisor->launcher); // at once: the launcher may soon end this process
    kill_rank_(supervisor);
    for (int try = 0; try < TRIES && coordinator_open_ranks(coordinator) > 0; try++) {
        coordinator_end(coordinator);
        clock_sleep(0.05);
        coordinator_take(coordinator, clock_seconds());
        see_rank_(supervisor);
        if (supervisor->ended && !supervisor->acknowledged) tell_(supervisor, now);
    }
    // The launcher would wait forever for ranks that it cannot reach.
    if (!why.silent && coordinator_open_ranks(coordinator) > 0) end_launcher_(supervisor->launcher);
    // If the rank fell silent, this process killed it, so the rank's signal is not the job's exit code.
    _exit(why.rank == supervisor->rank && supervisor->ended && !why.silent ? supervisor->code : why.code);
}

// --- the loop

// Reports to the coordinator; without one, watches the rank itself. Returns the seconds to the next report.
static double report_(Supervisor *supervisor, double now) {
    double interval = watchdog_interval(supervisor->job.patience);
    char silent[WATCHDOG_TEXT];
    int rank;
    if (!supervisor->ended) look_(supervisor, supervisor->by_hand);
    if (supervisor->ended ? !supervisor->sent : !supervisor->stopped) tell_(supervisor, now);
    if (supervisor->ended) return 0.05;
    bool heard = is_heard_(supervisor);
    if (!heard) miss_progress_(supervisor, now);
    if (heard && !supervisor->by_hand && watchdog_look(supervisor->hub, now, &rank) == FOUND_SILENT) {
        watchdog_reason(supervisor->hub, FOUND_SILENT, 0, now, silent);
        miss_coordinator_(supervisor, silent);
    }
    // Reports more often until it is heard and, if started by hand, until the rank handles SIGUSR1.
    bool settled = heard && (supervisor->last.ready || !supervisor->by_hand);
    return settled || interval < 0.1 ? interval : 0.1;
}

// Returns whether this process may exit: the rank has ended, and the coordinator has confirmed it or LONGEST_S have
// passed. A process that holds the coordinator also waits for the other ranks to end.
static bool may_end_(Supervisor *supervisor, double now) {
    enum { LONGEST_S = 1, FINALIZE_S = 30 };
    if (!supervisor->ended) return false;
    if (supervisor->last_words == 0) supervisor->last_words = now + LONGEST_S;
    // Once this process ends, mpirun kills the other ranks; give them time to report that they have left.
    if (supervisor->crashed && now < supervisor->last_words + 2) return false;
    // Without a limit on silence, the loss of a host while ranks leave goes unnoticed.
    bool endless = supervisor->job.patience.peer_s == 0 && now > supervisor->last_words + FINALIZE_S;
    if (supervisor->coordinator != NULL) return endless || coordinator_open_ranks(supervisor->coordinator) == 0;
    return supervisor->acknowledged || now > supervisor->last_words;
}

static int watch_(Supervisor *supervisor, pid_t child) {
    enum { RANK, COORDINATOR, CONNECTIONS, ALL = CONNECTIONS + INVITATION_ADDRESSES };
    supervisor->child = child;
    double now = clock_seconds(), next = now;
    int file = (int)syscall(SYS_pidfd_open, child, 0);
    for (; !may_end_(supervisor, now); now = clock_seconds()) {
        struct pollfd files[ALL] = {
            [RANK] = {supervisor->ended ? -1 : file, POLLIN, 0}, [COORDINATOR] = {.fd = -1, .events = POLLIN}};
        if (supervisor->coordinator != NULL) files[COORDINATOR].fd = coordinator_file(supervisor->coordinator);
        for (int i = 0; i < supervisor->count; i++)
            files[CONNECTIONS + i] = (struct pollfd){supervisor->connections[i].file, POLLIN, 0};
        double longest = supervisor->coordinator != NULL && !supervisor->settled ? 0.1 : 1; // accepts connections
        double wait = next - now < longest ? next - now : longest;
        poll(files, CONNECTIONS + (nfds_t)supervisor->count, wait > 0 ? (int)(wait * 1000) + 1 : 0);
        now = clock_seconds();
        bool had_ended = supervisor->ended;
        see_rank_(supervisor);
        take_(supervisor, now);
        if (now >= next || supervisor->ended != had_ended) next = now + report_(supervisor, now);
        if (supervisor->coordinator != NULL) coordinate_(supervisor, now);
    }
    if (file >= 0) close(file);
    // If started by hand, the parent reports the failure. Exit code 0 keeps mpirun from reporting it too.
    if (supervisor->by_hand) return EXIT_DONE;
    // If the coordinator has not confirmed this rank's failure, this host may be cut off. The launcher would then wait
    // forever.
    if (supervisor->code != EXIT_DONE && !supervisor->acknowledged) end_launcher_(supervisor->launcher);
    return supervisor->code;
}

// --- requests to stop

static const int requests_[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP};

enum { REQUESTS = sizeof requests_ / sizeof *requests_ };

void supervisor_catch_requests(const struct sigaction *action) {
    for (int i = 0; i < REQUESTS; i++) {
        struct sigaction before;
        bool ignored = sigaction(requests_[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (!ignored || (requests_[i] != SIGINT && requests_[i] != SIGHUP)) sigaction(requests_[i], action, NULL);
    }
}

// --- start

static void *live_(void *argument) {
    Supervisor *supervisor = argument;
    for (;; clock_sleep(watchdog_interval(supervisor->job.patience))) {
        look_(supervisor, true);
        miss_progress_(supervisor, clock_seconds());
    }
    return NULL;
}

Supervisor *supervisor_open(const char *program, Error *err) {
    Supervisor *supervisor = xcalloc(1, sizeof *supervisor);
    const char *folder = getenv(SUPERVISOR_FOLDER);
    *supervisor = (Supervisor){.program = program, .rank = -1, .answered = NOT_ANSWERED};
    static const char *const names[] = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}; // the last one counts
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL) supervisor->rank = atoi(getenv(names[i]));
    supervisor->by_hand = folder != NULL && supervisor->rank >= 0;
    supervisor->meeting = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    supervisor->page = status_page_create(supervisor->by_hand);
    if (supervisor->page == NULL || supervisor->meeting == MAP_FAILED)
        return error_null(err, EXIT_FAILED, "cannot allocate the status page of a rank (%s); raise ulimit -v",
                          strerror(errno));
    if (!supervisor->by_hand) return supervisor;
    supervisor->connections[0] = connection_open(folder);
    supervisor->count = 1, supervisor->answered = 0;
    Message hello = {.rank = supervisor->rank, .end = -1, .status = {.stage = -1, .wait_stage = -1}};
    if (connection_send(&supervisor->connections[0], &hello)) return supervisor;
    return error_null(err, EXIT_FAILED,
                      "cannot reach the program that started the ranks, in %s (%s); if it still runs, raise ulimit -n",
                      folder, strerror(errno));
}

bool supervisor_report_early(Supervisor *supervisor, const Error *err) {
    if (supervisor == NULL || !supervisor->by_hand) return false;
    supervisor->ended = true;
    supervisor->last = (RankStatus){
        .stage = -1, .wait_stage = -1, .ending = ENDING_REPORTED, .code = err->code, .when = clock_wall_ns()};
    status_copy_text(supervisor->last.text, sizeof supervisor->last.text, err->text);
    tell_(supervisor, clock_seconds());
    return supervisor->sent;
}

static int fork_(Supervisor *supervisor, Error *err) {
    Patience until_heard = {supervisor->job.patience.peer_s, 0};
    if (!supervisor->by_hand && supervisor->rank == 0) {
        supervisor->coordinator = coordinator_open(&supervisor->job, NULL, NULL); // NULL: supervisor_join warns
        if (supervisor->coordinator != NULL)
            supervisor->meeting->invitation = *coordinator_invitation(supervisor->coordinator);
    }
    char path[300], number[16];
    snprintf(path, sizeof path, "%s/%s", supervisor->by_hand ? getenv(SUPERVISOR_FOLDER) : "", SUPERVISOR_ERRORS);
    // Redirect stderr to the program that started all ranks, bypassing mpirun. Open MPI's own messages, such as a
    // failed read of a dead rank's memory, still go to mpirun's stderr, which that program shows only if no rank
    // reported a reason. O_NONBLOCK: fails instead of blocking without a reader.
    int errors = supervisor->by_hand ? open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (errors >= 0) {
        fcntl(errors, F_SETFL, 0);
        int library = fcntl(STDERR_FILENO, F_DUPFD, STDERR_FILENO + 1);
        snprintf(number, sizeof number, "%d", library);
        if (library >= 0) setenv("OPAL_OUTPUT_STDERR_FD", number, 0);
        dup2(errors, STDERR_FILENO);
        close(errors);
    }
    supervisor->hub = watchdog_create(1, until_heard, clock_seconds());
    supervisor->launcher = getppid();
    // Sends the first report before the rank exists, so that the coordinator notices if this supervisor stops at any
    // later moment.
    report_(supervisor, clock_seconds());
    pid_t self = getpid(), rank = fork();
    if (rank < 0) return error_set(err, EXIT_FAILED, "cannot start a process (%s); raise ulimit -u", strerror(errno));
    if (rank > 0) {
        // Launchers send requests to stop to all processes of a rank, but only the rank itself may handle them.
        for (int i = 0; i < REQUESTS; i++) signal(requests_[i], SIG_IGN);
        signal(SIGPIPE, SIG_IGN);
        prctl(PR_SET_NAME, "supervisor");
        _exit(watch_(supervisor, rank));
    }
    // Ties the rank's life to its supervisor, which may already be gone.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(EXIT_FAILED);
    // Only the supervisor's end ends the connection.
    for (int i = 0; i < supervisor->count; i++) connection_close(&supervisor->connections[i]);
    coordinator_close(supervisor->coordinator);
    supervisor->coordinator = NULL;
    return 0;
}

int supervisor_start(Supervisor *supervisor, const Job *job, bool launched, Error *err) {
    Patience alone = {0, job->patience.progress_s};
    supervisor->job = *job;
    supervisor->alone = watchdog_create(1, alone, clock_seconds());
    status_page_set_action(supervisor->page, SUPERVISOR_JOINING);
    if (!launched) supervisor->rank = -1;
    if (supervisor->rank >= 0 && supervisor->rank < job->ranks) return fork_(supervisor, err);
    if (job->patience.progress_s == 0) return 0;
    supervisor->threaded = thread_start(&supervisor->thread, live_, supervisor);
    if (supervisor->threaded) return 0;
    return error_set(err, EXIT_FAILED, "cannot start a thread; raise ulimit -u or -v, or end other processes");
}

StatusPage *supervisor_page(const Supervisor *supervisor) { return supervisor == NULL ? NULL : supervisor->page; }

// --- in the rank

int supervisor_join(Supervisor *supervisor, World *world, const Log *log, Error *err) {
    if (supervisor == NULL || supervisor->by_hand || supervisor->rank < 0 || world_size(world) == 1) return 0;
    Invitation invitation = supervisor->meeting->invitation;
    if (world_broadcast(world, &invitation, sizeof invitation, err) != 0) return -1;
    supervisor->meeting->invitation = invitation;
    if (invitation.count > 0) {
        atomic_store(&supervisor->meeting->invited, 1);
    } else if (world_rank(world) == 0) {
        Log all = log_of_all(log);
        log_line(&all, "no heartbeats: rank 0 has no TCP port that other ranks can reach; if a rank stops, "
                       "only train.timeout_s ends the job");
    }
    return 0;
}

int supervisor_leave(Supervisor *supervisor, int code) {
    status_page_leave(supervisor->page, code);
    if (supervisor->threaded) {
        pthread_cancel(supervisor->thread);
        pthread_join(supervisor->thread, NULL);
    }
    return code; // the page stays mapped: the supervisor reads it until this process ends
}

void supervisor_free(Supervisor *supervisor) {
    if (supervisor == NULL) return;
    watchdog_free(supervisor->alone);
    watchdog_free(supervisor->hub);
    free(supervisor);
}
