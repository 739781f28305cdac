#include "star.h"
#include "base/clock.h"

#include "backend/backend.h"
#include "datagrams.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

typedef enum MessageKind { MESSAGE_BEAT = 1, MESSAGE_ANSWER, MESSAGE_BYE, MESSAGE_END } MessageKind;

typedef struct Message {
    uint64_t key; // of this job
    int32_t kind, rank;
    int32_t address;                 // of rank 0's, the one this went to; an answer repeats it
    int32_t node, pid;               // of the sender; END: of the silent rank
    int32_t stage, wait_stage, left; // left: an answer to BYE
    int64_t beats, progress;
    char action[96], wait[64];
} Message;

// What rank 0 knows of a rank besides its page.
typedef struct Ray {
    Place place;
    bool heard, left;
    bool absent;  // given up when the star was settled: what still comes of it no longer counts
    bool visible; // its process can be seen from here
    int32_t node, pid;
} Ray;

typedef struct Invitation {
    uint64_t key;
    Addresses addresses;
} Invitation;

enum { NOT_CONNECTED = -1, BYES = 10 };
static const double connect_s_ = 3;

struct Star {
    int rank, size, node;
    const StatusPage *status_page;
    Invitation invitation;
    Datagrams socket;
    pthread_mutex_t lock; // of dog and rays: settling is the main thread's
    Watchdog *dog;        // rank 0: of all ranks; elsewhere of rank 0 alone
    Ray *rays;            // [size], on rank 0
    atomic_int address;   // of rank 0, the one that answered
    int byes;             // sent
    bool left;            // BYE was answered
    bool endless;         // nobody's silence ends the job
};

// --- messages

static Message star_message_(const Star *star, MessageKind kind) {
    StatusRank page;
    status_page_read_own(star->status_page, &page);
    Message message = {.key = star->invitation.key,
                       .kind = kind,
                       .rank = star->rank,
                       .node = star->node,
                       .pid = getpid(),
                       .stage = page.stage,
                       .wait_stage = page.wait_stage,
                       .beats = page.beats,
                       .progress = page.progress};
    memcpy(message.action, page.action, sizeof message.action);
    memcpy(message.wait, page.wait, sizeof message.wait);
    return message;
}

static StatusRank page_of_(const Message *message) {
    StatusRank page = {.pid = message->pid,
                       .stage = message->stage,
                       .wait_stage = message->wait_stage,
                       .beats = message->beats,
                       .progress = message->progress};
    memcpy(page.action, message->action, sizeof page.action - 1);
    memcpy(page.wait, message->wait, sizeof page.wait - 1);
    return page;
}

static void send_to_hub_(Star *star, MessageKind kind) {
    Message message = star_message_(star, kind);
    int known = atomic_load(&star->address);
    for (int i = 0; i < star->invitation.addresses.count; i++) {
        Place place;
        if (known != NOT_CONNECTED && known != i) continue;
        message.address = i;
        if (datagrams_place(&star->socket, &star->invitation.addresses, i, &place))
            datagrams_send(&star->socket, &place, &message, sizeof message);
    }
}

// --- what comes in

// Ranks of the same program alone: where every process has a world of process numbers to itself, the number may be another's.
static bool is_ours_(int pid) {
    char path[64], own[PATH_MAX] = "", its[PATH_MAX] = "";
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (pid <= 1 || pid == getpid()) return false;
    return readlink("/proc/self/exe", own, sizeof own - 1) > 0 && readlink(path, its, sizeof its - 1) > 0 &&
           strcmp(own, its) == 0;
}

// mpirun kills what does not end by itself, stopped processes too; srun may wait for ever. So a child looks whether the process has gone a
// moment after this one, which is the one whose exit code counts.
static void kill_later_(int pid) {
    enum { LOOKS = 20, PAUSE_NS = 50000000 };
    if (!is_ours_(pid) || fork() != 0) return;
    struct timespec pause = {0, PAUSE_NS};
    for (int look = 0; look < LOOKS && is_ours_(pid); look++) nanosleep(&pause, NULL);
    if (is_ours_(pid)) kill(pid, SIGKILL);
    _exit(EXIT_FAILED);
}

static void take_beat_(Star *star, const Message *message, const Place *from, double now) {
    Ray *ray = &star->rays[message->rank];
    StatusRank page = page_of_(message);
    if (ray->absent) return;
    if (!ray->heard) ray->visible = message->node == star->node && is_ours_(message->pid);
    ray->place = *from, ray->node = message->node, ray->pid = message->pid;
    ray->heard = true;
    ray->left = ray->left || message->kind == MESSAGE_BYE;
    watchdog_hear(star->dog, message->rank, &page, now);
    if (ray->left) watchdog_excuse(star->dog, message->rank);
    Message answer = star_message_(star, MESSAGE_ANSWER);
    answer.address = message->address;
    answer.left = ray->left;
    datagrams_send(&star->socket, from, &answer, sizeof answer);
}

static void take_answer_(Star *star, const Message *message, double now) {
    StatusRank page = page_of_(message);
    int none = NOT_CONNECTED;
    atomic_compare_exchange_strong(&star->address, &none, message->address);
    star->left = message->left != 0;
    watchdog_hear(star->dog, 0, &page, now);
}

bool star_take(Star *star, double now) {
    Message message;
    Place from;
    bool ends = false;
    pthread_mutex_lock(&star->lock);
    while (!ends && datagrams_receive(&star->socket, &from, &message, sizeof message)) {
        if (message.key != star->invitation.key || message.rank < 0 || message.rank >= star->size) continue;
        bool beat = message.kind == MESSAGE_BEAT || message.kind == MESSAGE_BYE;
        if (star->rank == 0 && beat && message.rank > 0) take_beat_(star, &message, &from, now);
        if (star->rank > 0 && message.kind == MESSAGE_ANSWER) take_answer_(star, &message, now);
        ends = star->rank > 0 && message.kind == MESSAGE_END;
    }
    pthread_mutex_unlock(&star->lock);
    if (ends && message.node == star->node) kill_later_(message.pid);
    return ends;
}

// --- beats

Found star_beat(Star *star, double now, int *rank) {
    pthread_mutex_lock(&star->lock);
    if (star->rank == 0) {
        StatusRank page;
        status_page_read_own(star->status_page, &page);
        watchdog_hear(star->dog, 0, &page, now);
    } else {
        send_to_hub_(star, MESSAGE_BEAT);
    }
    Found found = watchdog_look(star->dog, now, rank);
    pthread_mutex_unlock(&star->lock);
    return found;
}

bool star_bye(Star *star) {
    bool through = star->left || star->byes >= BYES;
    if (star->rank > 0) {
        if (!through && atomic_load(&star->address) != NOT_CONNECTED) send_to_hub_(star, MESSAGE_BYE);
        return through || ++star->byes == BYES;
    }
    // One that says no goodbye falls silent, which ends the wait for it; but not where silence has no end.
    if (star->endless && ++star->byes >= BYES) return true;
    through = true;
    for (int i = 1; i < star->size; i++) through = through && (!star->rays[i].heard || star->rays[i].left);
    return through;
}

int star_dead(Star *star) {
    int dead = -1;
    pthread_mutex_lock(&star->lock);
    for (int i = 1; star->rank == 0 && dead < 0 && i < star->size; i++) {
        const Ray *ray = &star->rays[i];
        if (ray->visible && !ray->left && kill(ray->pid, 0) != 0) dead = i;
    }
    pthread_mutex_unlock(&star->lock);
    return dead;
}

void star_excuse_me(Star *star) {
    if (star->rank > 0 && atomic_load(&star->address) != NOT_CONNECTED) send_to_hub_(star, MESSAGE_BYE);
}

// --- the end

void star_say(Star *star, Found found, int rank, const Log *log, double now) {
    char text[WATCHDOG_TEXT], own[WATCHDOG_TEXT];
    if (star->rank == 0) {
        Log all = log_of_all(log);
        for (int i = 0; found != FOUND_DEAD && watchdog_line(star->dog, i, now, text); i++) log_line(&all, "%s", text);
        watchdog_reason(star->dog, found, rank, now, text);
        log_line(&all, "%s", text);
        return;
    }
    StatusRank page;
    status_page_read_own(star->status_page, &page);
    watchdog_describe(&page, own);
    watchdog_reason(star->dog, found, rank, now, text);
    log_line(log, "%s; this rank %s", text, own);
}

void star_end(Star *star, int silent) {
    enum { TIMES = 3, PAUSE_NS = 20000000 };
    if (star->rank > 0) return;
    Message message = star_message_(star, MESSAGE_END);
    message.pid = 0;
    if (silent > 0) message.node = star->rays[silent].node, message.pid = star->rays[silent].pid;
    for (int time = 0; time < TIMES; time++) {
        struct timespec pause = {0, PAUSE_NS};
        for (int i = 1; i < star->size; i++)
            if (star->rays[i].heard) datagrams_send(&star->socket, &star->rays[i].place, &message, sizeof message);
        nanosleep(&pause, NULL);
    }
    if (message.node == star->node) kill_later_(message.pid);
}

// --- life

static int invite_(Star *star, World *world, Error *err) {
    Invitation *invitation = &star->invitation;
    if (star->rank == 0 && datagrams_open(&star->socket, NULL) == 0) {
        datagrams_addresses(&star->socket, &invitation->addresses);
        if (getrandom(&invitation->key, sizeof invitation->key, 0) != sizeof invitation->key)
            invitation->addresses.count = 0;
    }
    return world_broadcast(world, 0, invitation, sizeof *invitation, err);
}

static bool star_allocate_(Star *star, Patience patience) {
    double now = clock_seconds();
    Patience with_hub = {patience.peer_s, 0}; // rank 0 alone knows whether the job moves
    star->dog = watchdog_create(star->rank == 0 ? star->size : 1, star->rank == 0 ? patience : with_hub, now);
    if (star->rank == 0) star->rays = calloc((size_t)star->size, sizeof *star->rays);
    if (star->dog == NULL || (star->rank == 0 && star->rays == NULL)) return false;
    // A rank that never says a word has until the connecting ends, and its patience.
    for (int i = 1; star->rank == 0 && i < star->size; i++) watchdog_expect(star->dog, i, now + connect_s_);
    return true;
}

Star *star_open(World *world, const StatusPage *status_page, Patience patience, Error *err) {
    Star *star = calloc(1, sizeof *star);
    if (star == NULL) {
        error_set(err, EXIT_FAILED, "out of memory");
        return NULL;
    }
    star->rank = world_rank(world), star->size = world_size(world), star->node = world_node(world);
    star->status_page = status_page;
    star->endless = patience.peer_s == 0;
    star->socket.file = -1;
    pthread_mutex_init(&star->lock, NULL);
    atomic_store(&star->address, NOT_CONNECTED);
    if (!star_allocate_(star, patience)) error_set(err, EXIT_FAILED, "out of memory to watch %d ranks", star->size);
    bool invited = err->code == 0 && invite_(star, world, err) == 0 && star->invitation.addresses.count > 0;
    if (invited) {
        if (star->rank > 0) datagrams_open(&star->socket, NULL); // without one it stays unconnected, and rank 0 says so
        return star;
    }
    star_close(star);
    return NULL;
}

void star_close(Star *star) {
    if (star == NULL) return;
    datagrams_close(&star->socket);
    watchdog_free(star->dog);
    pthread_mutex_destroy(&star->lock);
    free(star->rays);
    free(star);
}

int star_file(const Star *star) {
    return star->socket.file;
}

static void excuse_(Star *star, const int *connected, const Log *log) {
    int missing = 0, first = 0;
    pthread_mutex_lock(&star->lock);
    for (int i = star->size - 1; i > 0; i--) {
        if (connected[i]) continue;
        watchdog_excuse(star->dog, i);
        star->rays[i] = (Ray){.absent = true};
        missing++;
        first = i;
    }
    pthread_mutex_unlock(&star->lock);
    if (missing == 0) return;
    Log all = log_of_all(log);
    log_line(&all,
             "heartbeats of %d of %d ranks, first rank %d, do not get through to rank 0 (UDP port %d): where one of "
             "them stops, only train.timeout_s ends the job; open that port between hosts",
             missing, star->size, first, ntohs((uint16_t)star->invitation.addresses.port));
}

int star_settle(Star *star, World *world, const Log *log, bool *connected, Error *err) {
    int looks = 0;
    double until = clock_seconds() + connect_s_;
    while (star->rank > 0 && star->socket.file >= 0 && atomic_load(&star->address) == NOT_CONNECTED &&
           clock_seconds() < until)
        comm_pause(&looks);
    int mine = star->rank == 0 || atomic_load(&star->address) != NOT_CONNECTED;
    int *all = calloc((size_t)star->size, sizeof *all);
    if (all == NULL) return error_set(err, EXIT_FAILED, "out of memory to watch %d ranks", star->size);
    int status = world_gather(world, 0, all, &mine, sizeof mine, err);
    if (status == 0 && star->rank == 0) excuse_(star, all, log);
    *connected = mine != 0;
    free(all);
    return status;
}
