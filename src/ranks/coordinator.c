// Keeps each rank's connection. The watchdog keeps the ranks' last reports.
#include "coordinator.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

// A connection, and the rank that it named; -1: none yet. If there are too many connections without a rank, the oldest
// is closed.
typedef struct Contact {
    Connection connection;
    int rank;
} Contact;

typedef struct Peer {
    bool known;   // the rank's supervisor has connected
    double first; // time of its first report; 0: none yet
} Peer;

struct Coordinator {
    Job job;
    int listener; // -1: every rank has connected
    int events;   // epoll descriptor of the contacts
    Invitation invitation;
    Watchdog *dog;
    Peer *peers;              // [ranks]
    Contact *contacts;        // [places]
    int places, newest;       // the newest contact
    int missing;              // ranks that have not connected yet
    int open, left;           // ranks that have reported and not ended; ranks that left cleanly
    bool failed;              // a rank left with an error
    double next;              // time of the next check
    int first, worth;         // rank that decides the message, or -1; its precedence, 2: reported a reason, 1: died
    int64_t when;             // time of that rank's error or end, by clock_wall_ns
    bool over;                // a rank ended without leaving cleanly
    bool died;                // the first rank that ended without leaving cleanly made no report
    bool found;               // the watchdog found a fault, described in `reason`
    int silent;               // rank that has been silent longest, or -1
    char reason[STATUS_TEXT]; // reason given by `first` or the watchdog
};

Coordinator *coordinator_open(const Job *job, const char *folder, Error *err) {
    enum { STRANGERS = 64 };
    Coordinator *coordinator = xcalloc(1, sizeof *coordinator);
    *coordinator = (Coordinator){.job = *job, .first = -1, .silent = -1, .events = epoll_create1(EPOLL_CLOEXEC)};
    coordinator->places = 2 * job->ranks + STRANGERS; // connections of all ranks, and unidentified connections
    coordinator->peers = xcalloc((size_t)job->ranks, sizeof *coordinator->peers);
    coordinator->contacts = xcalloc((size_t)coordinator->places, sizeof *coordinator->contacts);
    coordinator->dog = watchdog_create(job->ranks, job->patience, clock_seconds());
    coordinator->missing = folder != NULL ? job->ranks : job->ranks - 1;
    coordinator->peers[0].known = folder == NULL;
    for (int i = 0; i < coordinator->places; i++)
        coordinator->contacts[i] = (Contact){.connection.file = -1, .rank = -1};
    coordinator->listener = folder != NULL ? connection_listen(folder, err)
                                           : connection_listen_tcp(job->one_host, &coordinator->invitation, err);
    if (coordinator->events < 0) error_set(err, EXIT_FAILED, "cannot create an epoll instance; raise ulimit -n");
    if (coordinator->listener < 0 || coordinator->events < 0) return coordinator_close(coordinator), NULL;
    file_limit(coordinator->places + 64);
    return coordinator;
}

void coordinator_close(Coordinator *coordinator) {
    if (coordinator == NULL) return;
    for (int i = 0; i < coordinator->places; i++) connection_close(&coordinator->contacts[i].connection);
    if (coordinator->listener >= 0) close(coordinator->listener);
    if (coordinator->events >= 0) close(coordinator->events);
    watchdog_free(coordinator->dog);
    free_all(coordinator->peers, coordinator->contacts, coordinator);
}

const Invitation *coordinator_invitation(const Coordinator *coordinator) { return &coordinator->invitation; }

int coordinator_file(const Coordinator *coordinator) { return coordinator->events; }

// --- reports

// Of the ranks that ended, one decides the message: a reported reason takes precedence over a death, because the
// failure may have caused the death; among several reasons, or several deaths, the earliest counts. A rank that left
// without a report never decides it.
void coordinator_hear(Coordinator *coordinator, int rank, const RankStatus *heard, double now) {
    Peer *peer = &coordinator->peers[rank];
    RankStatus status = *heard;
    if (peer->first == 0) coordinator->open++, peer->first = now;
    if (coordinator_status(coordinator, rank)->ending != ENDING_NONE) return;
    // A launcher may kill a rank that was leaving: mpirun kills all ranks once a rank has left with an error. The rank
    // that was leaving is not the cause.
    bool killed = status.ending == ENDING_DIED && (status.signal > 0 || status.code < 0);
    if (killed && coordinator->failed && !coordinator->found && strncmp(watchdog_action(&status), "leaving", 7) == 0)
        status.ending = ENDING_LEFT, status.code = EXIT_FAILED;
    watchdog_hear(coordinator->dog, rank, &status, now);
    if (status.ending == ENDING_NONE) return;

    bool died = status.ending == ENDING_DIED, left = status.ending == ENDING_LEFT;
    int worth = status.text[0] != '\0' ? 2 : died ? 1 : 0;
    bool earlier = worth == coordinator->worth && worth > 0 && status.when < coordinator->when;
    watchdog_excuse(coordinator->dog, rank);
    assert(coordinator->open > 0);
    coordinator->open--;
    coordinator->left += left;
    coordinator->failed = coordinator->failed || (left && status.code != EXIT_DONE);
    coordinator->died = coordinator->died || (died && !coordinator->over && !coordinator->found);
    coordinator->over = coordinator->over || !left;
    if (coordinator->found || (worth <= coordinator->worth && !earlier)) return;
    coordinator->when = status.when;
    coordinator->first = rank;
    coordinator->worth = worth;
    status_copy_text(coordinator->reason, sizeof coordinator->reason, status.text);
}

// --- connections

// Reads the messages that arrived on a contact. The first message names its rank; the last one says how the rank ended,
// and closing the contact confirms that. If the contact ends earlier, the supervisor has died.
static void take_(Coordinator *coordinator, Contact *contact, double now) {
    Message message;
    Received received;
    while ((received = connection_receive(&contact->connection, &message)) == RECEIVED_MESSAGE) {
        // The limits keep an invalid message from misleading the watchdog, which visits all stages.
        const RankStatus *said = &message.status;
        int ranks = coordinator->job.ranks;
        bool valid = message.token == coordinator->invitation.supervisor && message.rank >= 0 && message.rank < ranks &&
                     said->stage >= -1 && said->stage < ranks && said->ending >= ENDING_NONE &&
                     said->ending <= ENDING_DIED && said->code >= 0 && said->code <= 255 &&
                     (contact->rank >= 0 ? contact->rank == message.rank : !coordinator->peers[message.rank].known);
        if (!valid) {
            connection_close(&contact->connection);
            received = RECEIVED_END;
            break;
        }
        if (contact->rank < 0) coordinator->missing--;
        contact->rank = message.rank;
        coordinator->peers[message.rank].known = true;
        // A supervisor that has just connected names no action: its rank does not exist yet, so it cannot fall silent.
        if (said->action[0] == '\0' && said->ending == ENDING_NONE) continue;
        coordinator_hear(coordinator, message.rank, said, now);
        if (said->ending != ENDING_NONE) {
            connection_close(&contact->connection);
            contact->rank = -1;
            return;
        }
        Message answer = {coordinator->invitation.coordinator, contact->rank, -1, *coordinator_status(coordinator, 0)};
        connection_send(&contact->connection, &answer);
    }
    if (received == RECEIVED_NOTHING || contact->rank < 0) return;
    RankStatus status = *coordinator_status(coordinator, contact->rank);
    status.ending = ENDING_DIED, status.code = -1, status.when = clock_wall_ns();
    coordinator_hear(coordinator, contact->rank, &status, now);
    contact->rank = -1;
}

void coordinator_take(Coordinator *coordinator, double now) {
    enum { AT_ONCE = 256, EVENTS = 64 };
    struct epoll_event events[EVENTS];
    Connection accepted;
    // Accept waiting connections, at most AT_ONCE per call. The listener is not polled, so a flood of connections from
    // another user cannot keep this process busy. It is closed once every rank has connected.
    for (int i = 0; i < AT_ONCE && coordinator->missing > 0; i++) {
        if (!connection_accept(coordinator->listener, &accepted)) break;
        do coordinator->newest = (coordinator->newest + 1) % coordinator->places;
        while (coordinator->contacts[coordinator->newest].rank >= 0);
        Contact *contact = &coordinator->contacts[coordinator->newest];
        connection_close(&contact->connection);
        contact->connection = accepted;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = coordinator->newest};
        epoll_ctl(coordinator->events, EPOLL_CTL_ADD, accepted.file, &event);
        take_(coordinator, contact, now);
    }
    if (coordinator->missing == 0 && coordinator->listener >= 0) {
        close(coordinator->listener);
        coordinator->listener = -1;
    }
    for (int round = 0, count = EVENTS; round <= coordinator->places / EVENTS && count == EVENTS; round++) {
        count = epoll_wait(coordinator->events, events, EVENTS, 0);
        for (int i = 0; i < count; i++) take_(coordinator, &coordinator->contacts[events[i].data.fd], now);
    }
}

// --- decisions

bool coordinator_look(Coordinator *coordinator, const Log *log, double now) {
    char text[WATCHDOG_TEXT];
    if (coordinator->over || coordinator->found) return true;
    if (now < coordinator->next) return false;
    coordinator->next = now + watchdog_interval(coordinator->job.patience) / 2;
    Found found = watchdog_look(coordinator->dog, now, &coordinator->silent);
    // Once a rank has left, all ranks are leaving, so missing progress is not a fault. A rank that is cut off while the
    // ranks leave is still found, because it falls silent.
    if (found == FOUND_WELL || (found == FOUND_STUCK && coordinator->left > 0)) return false;
    coordinator->found = true, coordinator->worth = 0;
    for (int i = 0; watchdog_line(coordinator->dog, i, now, text); i++) log_line(log, "%s", text);
    watchdog_reason(coordinator->dog, found, coordinator->silent, now, text);
    status_copy_text(coordinator->reason, sizeof coordinator->reason, text);
    return true;
}

JobEnd coordinator_why(const Coordinator *coordinator) {
    int rank = coordinator->found ? coordinator->silent : coordinator->first;
    const RankStatus *status = rank >= 0 ? coordinator_status(coordinator, rank) : NULL;
    JobEnd why = {.code = EXIT_FAILED,
                  .rank = rank,
                  .stage = status != NULL ? status->stage : -1,
                  .silent = coordinator->found,
                  .spoken = coordinator->worth == 2,
                  .lost = coordinator->died || coordinator->found};
    char what[STATUS_TEXT];
    for (int i = 0; i < coordinator->job.ranks; i++) {
        const RankStatus *rank_status = coordinator_status(coordinator, i);
        if (rank_status->step > why.step) why.step = rank_status->step;
        if (rank_status->began > 0) why.began = rank_status->began; // the same on all ranks
        why.saved = why.saved || rank_status->saved;
    }
    status_copy_text(what, sizeof what, coordinator->reason);
    if (status != NULL) status_copy_text(why.action, sizeof why.action, status->action);
    if (status != NULL && !coordinator->found && !why.spoken) { // the rank died without a report
        char name[WATCHDOG_NAME], how[128] = "died";
        const char *hint = status->signal == SIGKILL  ? "; the kernel does that when memory runs out"
                           : status->signal == SIGBUS ? "; /dev/shm may be full"
                                                      : "";
        watchdog_name(rank, status->stage, name);
        if (status->signal > 0)
            snprintf(how, sizeof how, "was killed by signal %d (%s)", status->signal, strsignal(status->signal));
        else if (status->code >= 0) snprintf(how, sizeof how, "ended with exit code %d", status->code);
        snprintf(what, sizeof what, "%s %s while at %s%s", name, how, watchdog_action(status), hint);
    }
    if (why.spoken) why.code = status->code;
    snprintf(why.text, sizeof why.text, "%s%s%s", what, why.spoken ? "" : "; ",
             why.spoken ? "" : coordinator->job.remedy[why.saved]);
    return why;
}

void coordinator_end(Coordinator *coordinator) {
    Message message = {.token = coordinator->invitation.coordinator, .end = coordinator_why(coordinator).code};
    for (int i = 0; i < coordinator->places; i++) {
        message.rank = coordinator->contacts[i].rank;
        if (message.rank >= 0) connection_send(&coordinator->contacts[i].connection, &message);
    }
}

// --- questions

bool coordinator_all_ready(const Coordinator *coordinator) {
    for (int rank = 0; rank < coordinator->job.ranks; rank++)
        if (!coordinator_status(coordinator, rank)->ready) return false;
    return true;
}

int coordinator_unknown(const Coordinator *coordinator, int *first) {
    int count = 0;
    for (int rank = coordinator->job.ranks - 1; rank >= 0; rank--)
        if (!coordinator->peers[rank].known) *first = rank, count++;
    return count;
}

int coordinator_slowest(const Coordinator *coordinator, double *first) {
    int slowest = 0;
    for (int rank = 1; rank < coordinator->job.ranks; rank++)
        if (coordinator->peers[rank].first > coordinator->peers[slowest].first) slowest = rank;
    *first = coordinator->peers[slowest].first;
    return slowest;
}

int coordinator_open_ranks(const Coordinator *coordinator) { return coordinator->open; }

int coordinator_code(const Coordinator *coordinator) {
    int code = EXIT_DONE;
    for (int rank = 0; rank < coordinator->job.ranks; rank++) {
        const RankStatus *status = coordinator_status(coordinator, rank);
        if (status->ending != ENDING_LEFT) return -1;
        if (code == EXIT_DONE) code = status->code;
    }
    return code;
}

const RankStatus *coordinator_status(const Coordinator *coordinator, int rank) {
    return watchdog_status(coordinator->dog, rank);
}
