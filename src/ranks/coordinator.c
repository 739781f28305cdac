// Keeps the address of each rank's supervisor and its last message counter. The watchdog keeps the ranks' last reports.
//
// The first rank that died decides the message that ends the job. A rank that reported why it failed takes precedence
// over ranks that only died, because its failure may have caused their deaths.
#include "coordinator.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Peer {
    Place place;
    uint64_t counter;
    bool heard;
    double first; // time of the rank's first report
} Peer;

struct Coordinator {
    Job job;
    Channel channel;
    Invitation invitation;
    Watchdog *dog;
    Peer *peers;              // [ranks]
    int open, left;           // ranks heard from that have not ended; ranks that left cleanly
    bool failed;              // a rank left with an error
    bool expects;             // true: when all ranks have met, the timeout of ranks never heard from starts
    double next;              // time of the next check
    int first, worth;         // rank that decides the message, or -1; its precedence, 2: reported a reason, 1: died
    int64_t when;             // time of that rank's error or end, by clock_wall_ns
    bool over;                // a rank ended without leaving cleanly
    bool died;                // the first rank that ended without leaving cleanly made no report
    bool found;               // the watchdog found a fault, described in `reason`
    int silent;               // rank that has been silent longest, or -1
    char reason[STATUS_TEXT]; // reason given by `first` or the watchdog
};

Coordinator *coordinator_open(const Job *job, Error *err) {
    Coordinator *coordinator = xcalloc(1, sizeof *coordinator);
    *coordinator = (Coordinator){.job = *job, .first = -1, .silent = -1, .channel = {.file = -1}};
    coordinator->peers = xcalloc((size_t)job->ranks, sizeof *coordinator->peers);
    coordinator->dog = watchdog_create(job->ranks, job->patience, clock_seconds());
    if (channel_open(&coordinator->channel, job->one_host, err) == 0 &&
        channel_invite(&coordinator->channel, &coordinator->invitation, err) == 0)
        return coordinator;
    coordinator_close(coordinator);
    return NULL;
}

void coordinator_close(Coordinator *coordinator) {
    if (coordinator == NULL) return;
    channel_close(&coordinator->channel);
    watchdog_free(coordinator->dog);
    free_all(coordinator->peers, coordinator);
}

const Invitation *coordinator_invitation(const Coordinator *coordinator) { return &coordinator->invitation; }

int coordinator_file(const Coordinator *coordinator) { return coordinator->channel.file; }

// --- messages

// Records the end of a rank. A reported reason takes precedence over a death; among several reasons, or several deaths,
// the earliest counts. A rank that left without a report never decides the message.
static void coordinator_note_end_(Coordinator *coordinator, int rank, const RankStatus *status) {
    bool died = status->ending == ENDING_DIED;
    int worth = status->text[0] != '\0' ? 2 : died ? 1 : 0;
    bool earlier = worth == coordinator->worth && worth > 0 && status->when < coordinator->when;
    watchdog_excuse(coordinator->dog, rank);
    coordinator->open--;
    coordinator->left += status->ending == ENDING_LEFT;
    coordinator->failed = coordinator->failed || (status->ending == ENDING_LEFT && status->code != EXIT_DONE);
    coordinator->died = coordinator->died || (died && !coordinator->over && !coordinator->found);
    coordinator->over = coordinator->over || status->ending != ENDING_LEFT;
    if (coordinator->found || (worth <= coordinator->worth && !earlier)) return;
    coordinator->when = status->when;
    coordinator->first = rank;
    coordinator->worth = worth;
    status_copy_text(coordinator->reason, sizeof coordinator->reason, status->text);
}

void coordinator_expect_all(Coordinator *coordinator) { coordinator->expects = true; }

void coordinator_hear(Coordinator *coordinator, int rank, const RankStatus *heard, double now) {
    Peer *peer = &coordinator->peers[rank];
    RankStatus status = *heard;
    if (!peer->heard) coordinator->open++, peer->first = now;
    peer->heard = true;
    if (coordinator_status(coordinator, rank)->ending != ENDING_NONE) return;
    // A launcher may kill a rank that was leaving: mpirun kills all ranks once a rank has left with an error. The rank
    // that was leaving is not the cause.
    bool killed = status.ending == ENDING_DIED && status.signal > 0 && coordinator->failed && !coordinator->found;
    if (killed && strcmp(watchdog_action(&status), "leaving") == 0)
        status.ending = ENDING_LEFT, status.code = EXIT_FAILED;
    watchdog_hear(coordinator->dog, rank, &status, now);
    bool met = coordinator->expects && status.stage >= 0; // all ranks have met; from now on silence counts
    for (int other = 0; met && other < coordinator->job.ranks; other++)
        if (!coordinator->peers[other].heard) watchdog_expect(coordinator->dog, other, now);
    if (met) coordinator->expects = false;
    if (status.ending != ENDING_NONE) coordinator_note_end_(coordinator, rank, &status);
}

void coordinator_take(Coordinator *coordinator, double now) {
    int budget = 4096;
    Message message;
    Place from;
    while (channel_receive(&coordinator->channel, coordinator->job.ranks, &from, &message, &budget)) {
        Peer *peer = &coordinator->peers[message.rank];
        bool of_supervisor = message.kind == MESSAGE_BEAT || message.kind == MESSAGE_ENDED;
        if (!of_supervisor || message.counter <= peer->counter) continue;
        peer->counter = message.counter;
        peer->place = from;
        coordinator_hear(coordinator, message.rank, &message.status, now);
        Message answer = {.kind = MESSAGE_ANSWER,
                          .rank = message.rank,
                          .address = message.address,
                          .heard = coordinator_status(coordinator, message.rank)->ending,
                          .status = *coordinator_status(coordinator, 0)};
        channel_send(&coordinator->channel, &from, &answer);
    }
}

// --- decisions

bool coordinator_look(Coordinator *coordinator, const Log *log, double now) {
    char text[WATCHDOG_TEXT];
    if (coordinator->over || coordinator->found) return true;
    if (now < coordinator->next) return false;
    coordinator->next = now + watchdog_interval(coordinator->job.patience) / 2;
    Found found = watchdog_look(coordinator->dog, now, &coordinator->silent);
    // Once a rank has left, all ranks are leaving, so missing progress is no fault. A rank that is cut off while the
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
             why.spoken ? "" : coordinator->job.remedy);
    return why;
}

void coordinator_end(Coordinator *coordinator) {
    int code = coordinator_why(coordinator).code;
    for (int rank = 0; rank < coordinator->job.ranks; rank++) {
        const Peer *peer = &coordinator->peers[rank];
        Message message = {.kind = MESSAGE_END, .rank = rank, .status = {.stage = -1, .wait_stage = -1, .code = code}};
        bool open = peer->heard && coordinator_status(coordinator, rank)->ending == ENDING_NONE;
        if (open && peer->place.length > 0) channel_send(&coordinator->channel, &peer->place, &message);
    }
}

// --- questions

bool coordinator_all_ready(const Coordinator *coordinator) {
    for (int rank = 0; rank < coordinator->job.ranks; rank++)
        if (!coordinator_status(coordinator, rank)->ready) return false;
    return true;
}

int coordinator_unheard(const Coordinator *coordinator, int *first) {
    int count = 0;
    for (int rank = coordinator->job.ranks - 1; rank >= 0; rank--)
        if (!coordinator->peers[rank].heard) *first = rank, count++;
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
