// Functions common to all groups: type sizes, the pieces of a sum, waiting, and clock offsets. The group of one rank.
#include "comm.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

int64_t comm_type_bytes(CommType type) {
    static const int64_t bytes[] = {[COMM_FLOAT] = 4, [COMM_BF16] = 2, [COMM_DOUBLE] = 8, [COMM_BYTE] = 1};
    return bytes[type];
}

// Returns whether a receiving rank gets a complete piece from every other rank, and so needs scratch for all of them.
static bool receives_complete_(CommOperation operation) {
    return operation == COMM_REDUCE_SCATTER || operation == COMM_REDUCE;
}

int64_t comm_piece(CommOperation operation, int64_t rest, CommType type, int size) {
    int64_t most = COMM_PIECE_BYTES / comm_type_bytes(type) / (receives_complete_(operation) ? size : 1);
    return rest < most ? rest : most;
}

bool comm_piece_is_direct(CommOperation operation, int64_t piece, CommType type, int size) {
    int64_t bytes = piece * comm_type_bytes(type);
    return operation == COMM_ALL_REDUCE && bytes <= COMM_DIRECT_BYTES && (size - 1) * bytes <= COMM_DIRECT_WORKSPACE;
}

// Returns the bytes that a rank receives from all other ranks while a piece is summed.
static int64_t piece_workspace_(CommOperation operation, int64_t piece, CommType type, int size) {
    bool complete = receives_complete_(operation) || comm_piece_is_direct(operation, piece, type, size);
    return (size - 1) * (complete ? piece : (piece + size - 1) / size) * comm_type_bytes(type);
}

int64_t comm_sum_workspace(CommOperation operation, int64_t count, CommType type, int size) {
    if (operation == COMM_ALL_GATHER || operation == COMM_BROADCAST || count == 0) return 0;
    int64_t piece = comm_piece(operation, count, type, size);
    int64_t first = piece_workspace_(operation, piece, type, size);
    int64_t last = piece_workspace_(operation, count % piece, type, size); // a direct last piece may need more memory
    return first > last ? first : last;
}

// Sleeps `ns` nanoseconds. first: lowers the delay that Linux may add from 50 microseconds to 1 (PR_SET_TIMERSLACK).
static void nap_(long ns, bool first) {
    enum { SLACK_NS = 1000 };
    if (first) prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS, 0UL, 0UL, 0UL);
    struct timespec nap = {0, ns};
    nanosleep(&nap, NULL);
}

void comm_pause(Pause *pause) {
    // A poll and its wake-up cost about 8 microseconds: 4 percent of a core if repeated every 200 microseconds, and
    // several ranks of a machine may wait at once. The first polls do not sleep, to keep short waits short. If another
    // program runs on the core, a yield lasts its time slice, but a sleeping rank soon gets the core back. Measured
    // with four ranks that forward two messages, next to two busy loops on two cores: 6 ms per hop with yields, 0.5 ms
    // with sleeps or futexes. The loops then delay only compute, not waits. A shorter slice or spinning gains nothing.
    // Sleeping 200 microseconds from the start makes a tiny step a fifth faster (p=2 t=2 next to three loops: 50 ms
    // instead of 63), but can make larger steps of ranks that share cores a few percent slower.
    enum { YIELDS = 16, SHORTEST_NS = 12500 };
    static const double SLICE_S = 1e-3, BUSY_S = 0.1;
    double now = clock_seconds();
    int look = pause->looks++, naps = look < YIELDS ? 0 : look - YIELDS;
    if (naps > 0 || look == YIELDS || now < pause->busy) {
        nap_((long)SHORTEST_NS << (naps < 16 ? naps / 4 : 4), naps == 0);
        return;
    }
    sched_yield();
    double back = clock_seconds();
    if (back - now > SLICE_S) pause->busy = back + BUSY_S;
}

void comm_pause_briefly(int *looks) {
    // A yield takes a quarter of a microsecond if nothing else can run. The first polls do not sleep: a late wake-up
    // would take longer than the rest of a hop between stages.
    enum { YIELDS = 1000, NAP_NS = 20000 };
    int look = (*looks)++;
    if (look < YIELDS) {
        sched_yield();
        return;
    }
    nap_(NAP_NS, look == YIELDS);
}

int comm_wait(Comm *comm, CommRequest *request, Error *err) {
    return comm_wait_polling(comm, request, NULL, NULL, err);
}

int comm_wait_polling(Comm *comm, CommRequest *request, bool (*poll)(void *, bool), void *argument, Error *err) {
    int64_t steps = request->steps;
    comm->pause.looks = 0;
    for (;;) {
        int done = comm->test(comm, request, err);
        if (done != 0) return done < 0 ? -1 : 0;
        if (poll != NULL && !poll(argument, false)) return 0;
        if (request->steps != steps) comm->pause.looks = 0;
        steps = request->steps;
        comm_pause(&comm->pause);
    }
}

int comm_send_now(Comm *comm, int peer, const void *from, int64_t bytes, Error *err) {
    CommRequest request = {0};
    return comm_send(comm, peer, from, bytes, &request, err) != 0 ? -1 : comm_wait(comm, &request, err);
}

int comm_receive_now(Comm *comm, int peer, void *to, int64_t bytes, Error *err) {
    CommRequest request = {0};
    return comm_receive(comm, peer, to, bytes, &request, err) != 0 ? -1 : comm_wait(comm, &request, err);
}

int comm_collect_now(Comm *comm, CommOperation operation, void *out, const void *in, int64_t count, CommType type,
                     Error *err) {
    CommRequest request = {0};
    int started = comm->collective(comm, operation, NO_ROOT, out, in, count, type, &request, err);
    return started != 0 ? -1 : comm_wait(comm, &request, err);
}

enum { CLOCK_ROUNDS = 12 };
static const double SLOW_S = 0.5, CLOCK_ENOUGH = -1; // CLOCK_ENOUGH is sent to end the rounds

// Rank 0 answers each question of the peer with its time, until the rounds end.
int comm_clock_offset(Comm *comm, int peer, double *offset, Error *err) {
    bool answers = comm->rank == 0;
    double quickest = 0;
    *offset = 0;
    if (peer == 0 || (!answers && comm->rank != peer)) return 0;
    for (int round = 0; round < CLOCK_ROUNDS; round++) {
        double theirs, now, sent = clock_seconds();
        if (answers) {
            if (comm_receive_now(comm, peer, &now, sizeof now, err) != 0) return -1;
            if (now < 0) return 0;
            now = clock_seconds();
            if (comm_send_now(comm, peer, &now, sizeof now, err) != 0) return -1;
            continue;
        }
        if (comm_send_now(comm, 0, &sent, sizeof sent, err) != 0) return -1;
        if (comm_receive_now(comm, 0, &theirs, sizeof theirs, err) != 0) return -1;
        double received = clock_seconds();
        if (round == 0 || received - sent < quickest) {
            quickest = received - sent;
            *offset = theirs - (sent + received) / 2;
        }
        // On a link this slow, more rounds would delay the start and gain nothing.
        if (received - sent > SLOW_S && round + 1 < CLOCK_ROUNDS)
            return comm_send_now(comm, 0, &CLOCK_ENOUGH, sizeof CLOCK_ENOUGH, err);
    }
    return 0;
}

// --- a group of one rank: a sum is the data itself, and there is no peer to send to

static int self_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                            CommType type, CommRequest *request, Error *err) {
    (void)comm, (void)operation, (void)root, (void)err;
    if (out != in && count > 0) memcpy(out, in, (size_t)(count * comm_type_bytes(type)));
    *request = (CommRequest){0};
    return 0;
}

static int self_exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                          CommRequest *request, Error *err) {
    (void)received;
    return self_collective_(comm, COMM_ALL_GATHER, NO_ROOT, out, in, sent[0], COMM_BYTE, request, err);
}

static int self_test_(Comm *comm, CommRequest *request, Error *err) {
    (void)comm, (void)err;
    *request = (CommRequest){0};
    return 1;
}

static void self_destroy_(Comm *comm) { free(comm); }

Comm *comm_self_create(const char *name) {
    Comm *comm = xcalloc(1, sizeof *comm);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->size = 1;
    comm->collective = self_collective_;
    comm->exchange = self_exchange_;
    comm->test = self_test_;
    comm->destroy = self_destroy_;
    return comm;
}
