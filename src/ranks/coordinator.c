// One entry per rank: where its supervisor sends from, its last counter, and how it ended. The watchdog has what ranks
// are doing.
//
// The first rank that died decides what is said; but a rank that reported why it fails takes precedence over those that
// were only seen to die, because their deaths may be consequences.
#include "coordinator.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Peer {
    Place place;
    uint64_t counter;
    bool heard, ready;
    Ending ending;
    int code, signal;
} Peer;

struct Coordinator {
    Job job;
    Channel channel;
    Invitation invitation;
    Watchdog *dog;
    Peer *peers;              // [ranks]
    int open, ready, left;    // ranks that were heard and have not ended; that are ready; that left cleanly
    double next;              // look
    int first, worth;         // the rank that decides what is said, and why it does; -1: none
    int64_t when;             // it ended
    bool over;                // a rank ended without leaving cleanly
    bool died;                // the first of those gave no reason
    bool begun;               // a rank has met all others
    bool found;               // the watchdog found something, and `reason` says what
    int silent;               // rank; -1: none
    char reason[STATUS_TEXT]; // of `first` or of the watchdog
};

Coordinator *coordinator_open(const Job *job, Error *err) {
    Coordinator *coordinator = xcalloc(1, sizeof *coordinator);
    coordinator->job = *job;
    coordinator->first = coordinator->silent = -1;
    coordinator->peers = xcalloc((size_t)job->ranks, sizeof *coordinator->peers);
    coordinator->dog = watchdog_create(job->ranks, job->patience, clock_seconds());
    coordinator->channel.file = -1;
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
    free(coordinator->peers);
    free(coordinator);
}

const Invitation *coordinator_invitation(const Coordinator *coordinator) {
    return &coordinator->invitation;
}

int coordinator_file(const Coordinator *coordinator) {
    return coordinator->channel.file;
}

void coordinator_expect(Coordinator *coordinator, double now) {
    for (int rank = 0; rank < coordinator->job.ranks; rank++)
        if (!coordinator->peers[rank].heard) watchdog_expect(coordinator->dog, rank, now);
}

void coordinator_settle(Coordinator *coordinator) {
    for (int rank = 0; rank < coordinator->job.ranks; rank++)
        if (!coordinator->peers[rank].heard) watchdog_excuse(coordinator->dog, rank);
}

// --- messages

// Returns how much the end of a rank says about why the job ends.
static int coordinator_worth_(const Peer *peer, const char *text) {
    return text[0] != '\0' ? 2 : peer->ending == ENDING_DIED ? 1 : 0;
}

// Returns whether a launcher ended a rank that was leaving after others had: mpirun kills all ranks once one has left
// with an error. Such a rank is not the reason.
static bool coordinator_hurried_(const Coordinator *coordinator, const Message *message) {
    const RankStatus *status = watchdog_status(coordinator->dog, message->rank);
    return message->ending == ENDING_DIED && message->signal > 0 && coordinator->left > 0 &&
           strcmp(watchdog_action(status), "leaving") == 0;
}

static void coordinator_note_end_(Coordinator *coordinator, const Message *message) {
    Peer *peer = &coordinator->peers[message->rank];
    bool hurried = coordinator_hurried_(coordinator, message);
    peer->ending = hurried ? ENDING_LEFT : (Ending)message->ending;
    peer->code = hurried ? EXIT_FAILED : message->code, peer->signal = message->signal;
    watchdog_excuse(coordinator->dog, message->rank);
    coordinator->open--;
    coordinator->left += peer->ending == ENDING_LEFT;
    coordinator->died = coordinator->died || (peer->ending == ENDING_DIED && !coordinator->over && !coordinator->found);
    coordinator->over = coordinator->over || peer->ending != ENDING_LEFT;
    int worth = coordinator_worth_(peer, message->text);
    bool earlier = worth == coordinator->worth && worth > 0 && message->when < coordinator->when;
    if (coordinator->found || (worth <= coordinator->worth && !earlier)) return;
    coordinator->when = message->when;
    coordinator->first = message->rank;
    coordinator->worth = worth;
    status_copy_text(coordinator->reason, sizeof coordinator->reason, message->text);
}

void coordinator_hear(Coordinator *coordinator, const Message *message, double now) {
    Peer *peer = &coordinator->peers[message->rank];
    RankStatus status = message_status(message);
    coordinator->open += !peer->heard;
    coordinator->ready += status.ready && !peer->ready;
    coordinator->begun = coordinator->begun || status.stage >= 0;
    peer->heard = true, peer->ready = peer->ready || status.ready;
    if (peer->ending != ENDING_NONE) return;
    watchdog_hear(coordinator->dog, message->rank, &status, now);
    if (message->kind == MESSAGE_ENDED && message->ending != ENDING_NONE) coordinator_note_end_(coordinator, message);
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
        coordinator_hear(coordinator, &message, now);
        Message answer = {.kind = MESSAGE_ANSWER};
        message_set_status(&answer, watchdog_status(coordinator->dog, 0));
        answer.rank = message.rank, answer.address = message.address, answer.ending = (int32_t)peer->ending;
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
    // If nothing moves while ranks leave, one of them has not left, and it will fall silent.
    if (found == FOUND_WELL || (found == FOUND_STUCK && coordinator->left > 0)) return false;
    coordinator->found = true, coordinator->worth = 0;
    for (int i = 0; watchdog_line(coordinator->dog, i, now, text); i++) log_line(log, "%s", text);
    watchdog_reason(coordinator->dog, found, coordinator->silent, now, text);
    status_copy_text(coordinator->reason, sizeof coordinator->reason, text);
    return true;
}

static void coordinator_say_death_(const Coordinator *coordinator, int rank, char *text, size_t size) {
    const Peer *peer = &coordinator->peers[rank];
    const RankStatus *status = watchdog_status(coordinator->dog, rank);
    char name[WATCHDOG_NAME], how[128];
    const char *hint = peer->signal == SIGKILL  ? "; the kernel does that when memory runs out"
                       : peer->signal == SIGBUS ? "; /dev/shm may be full"
                                                : "";
    watchdog_name(rank, status->stage, name);
    if (peer->signal > 0)
        snprintf(how, sizeof how, "was killed by signal %d (%s)", peer->signal, strsignal(peer->signal));
    else
        snprintf(how, sizeof how, "ended with exit code %d", peer->code);
    snprintf(text, size, "%s %s while at %s%s", name, how, watchdog_action(status), hint);
}

JobEnd coordinator_why(const Coordinator *coordinator) {
    JobEnd why = {
        .code = EXIT_FAILED, .rank = coordinator->first, .stage = -1, .lost = coordinator->died || coordinator->found};
    char what[STATUS_TEXT];
    status_copy_text(what, sizeof what, coordinator->reason);
    if (coordinator->found) why.rank = coordinator->silent, why.silent = true;
    if (why.rank >= 0) why.stage = watchdog_status(coordinator->dog, why.rank)->stage;
    const Peer *peer = coordinator->first >= 0 && !coordinator->found ? &coordinator->peers[coordinator->first] : NULL;
    if (peer != NULL && coordinator->worth == 2) {
        why.code = peer->code, why.spoken = true;
        snprintf(why.text, sizeof why.text, "%s", what);
        return why;
    }
    if (peer != NULL) coordinator_say_death_(coordinator, coordinator->first, what, sizeof what);
    snprintf(why.text, sizeof why.text, "%s; %s", what, coordinator->job.remedy);
    return why;
}

void coordinator_end(Coordinator *coordinator) {
    int code = coordinator_why(coordinator).code;
    for (int rank = 0; rank < coordinator->job.ranks; rank++) {
        const Peer *peer = &coordinator->peers[rank];
        Message message = {.kind = MESSAGE_END, .rank = rank, .stage = -1, .wait_stage = -1, .code = code};
        if (peer->heard && peer->ending == ENDING_NONE && peer->place.length > 0)
            channel_send(&coordinator->channel, &peer->place, &message);
    }
}

// --- questions

bool coordinator_begun(const Coordinator *coordinator) {
    return coordinator->begun;
}

bool coordinator_all_ready(const Coordinator *coordinator) {
    return coordinator->ready == coordinator->job.ranks;
}

int coordinator_open_ranks(const Coordinator *coordinator) {
    return coordinator->open;
}

bool coordinator_ended(const Coordinator *coordinator, int rank) {
    return coordinator->peers[rank].ending != ENDING_NONE;
}

int coordinator_code(const Coordinator *coordinator) {
    int code = EXIT_DONE;
    for (int rank = 0; rank < coordinator->job.ranks; rank++) {
        if (coordinator->peers[rank].ending != ENDING_LEFT) return -1;
        if (code == EXIT_DONE) code = coordinator->peers[rank].code;
    }
    return code;
}

int64_t coordinator_step(const Coordinator *coordinator) {
    int64_t furthest = 0;
    for (int rank = 0; rank < coordinator->job.ranks; rank++) {
        int64_t step = watchdog_status(coordinator->dog, rank)->step;
        furthest = step > furthest ? step : furthest;
    }
    return furthest;
}

const RankStatus *coordinator_status(const Coordinator *coordinator, int rank) {
    return watchdog_status(coordinator->dog, rank);
}
