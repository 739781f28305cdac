// Tests the promises of comm_pushed.h and lending.h on CPUs. First all ranks form a ring: messages forward are pushed
// into lent memory, messages backward (of three or more ranks) go through `far`. Then one of two ranks lends memory for
// both directions, as in a pair of stages. Started through mpirun by test_comm.py with a file that all ranks map.
//
// `far` is a group of MPI wrapped in a spy: it counts, in the shared file, the messages that each rank has begun to
// send, and fails when a receive is started that no sender has begun.
#include "comm/comm_pushed.h"
#include "comm/lending.h"
#include "ranks_test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_MPI

enum { BUFFERS = 2, MESSAGES = 200, BYTES = 3000, RANKS = 16, BUNDLES = 50, PATIENCE_MS = 60000 };

typedef struct Shared {
    _Atomic int64_t begun[RANKS]; // sends through far
    _Atomic int64_t early;        // receives through far that were started before their send
    _Atomic int64_t moved;        // messages of the pair that its borrower has completed
} Shared;

typedef struct Spy {
    Comm base;
    Comm *inner;
    Shared *shared;
    int64_t received;
} Spy;

static int spy_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                        Error *err) {
    Spy *spy = comm->self;
    if (sends) atomic_fetch_add(&spy->shared->begun[comm->rank], 1);
    // A notice may arrive a moment before the sender's count.
    for (int look = 0; !sends && look < 1000 && atomic_load(&spy->shared->begun[peer]) <= spy->received; look++)
        usleep(100);
    if (!sends && atomic_load(&spy->shared->begun[peer]) <= spy->received) atomic_fetch_add(&spy->shared->early, 1);
    spy->received += !sends;
    return spy->inner->message(spy->inner, sends, peer, memory, bytes, request, err);
}

static int spy_test_(Comm *comm, CommRequest *request, Error *err) {
    Spy *spy = comm->self;
    return spy->inner->test(spy->inner, request, err);
}

static void spy_destroy_(Comm *comm) {
    Spy *spy = comm->self;
    spy->inner->destroy(spy->inner);
    free(spy);
}

static Comm *spy_create(Comm *inner, Shared *shared) {
    Spy *spy = calloc(1, sizeof *spy);
    spy->base = *inner;
    spy->base.self = spy;
    spy->base.message = spy_message_;
    spy->base.test = spy_test_;
    spy->base.destroy = spy_destroy_;
    spy->inner = inner;
    spy->shared = shared;
    return &spy->base;
}

// One end of a way, as the engine's p2p.c uses it: messages in turn through two buffers.
typedef struct End {
    int peer;
    bool sends;
    char *memory;
    int64_t begun, done;
    CommRequest requests[BUFFERS];
} End;

static uint32_t draws;

static void stop_(Test *t, const char *what) { fail_(t, what, 0, 1); }

static bool chance_(uint32_t of) {
    draws = draws * 1664525u + 1013904223u;
    return (draws >> 8) % of == 0;
}

static char value_(int sender, int receiver, int64_t message, int64_t i) {
    return (char)(sender * 31 + receiver * 7 + message * 13 + i);
}

static End end_(Test *t, int peer, bool sends, bool lends) {
    End end = {.peer = peer, .sends = sends};
    end.memory =
        t->be->allocate(t->be, lends ? MEMORY_LENT_SLOTS : MEMORY_MESSAGES, BUFFERS * BYTES, "test", &t->error);
    if (end.memory == NULL) stop_(t, "no memory");
    if (t->comm->connect(t->comm, peer, sends, sends ? NULL : end.memory, BUFFERS * BYTES, &t->error) != 0)
        stop_(t, "connect");
    return end;
}

static void finish_one_(Test *t, End *end) {
    char *buffer = end->memory + end->done % BUFFERS * BYTES;
    for (int64_t i = 0; i < BYTES && !end->sends; i++)
        if (buffer[i] != value_(end->peer, t->rank, end->done, i)) stop_(t, "a message arrived with other bytes");
    if (!end->sends) memset(buffer, 0, BYTES);
    end->done++;
}

// Completes and starts messages where possible, but skips some starts, so that both ends are early and late in turn.
static void progress_(Test *t, End *end) {
    while (end->done < end->begun) {
        int done = t->comm->test(t->comm, &end->requests[end->done % BUFFERS], &t->error);
        if (done < 0) stop_(t, "test");
        if (done == 0) break;
        finish_one_(t, end);
    }
    if (end->begun == MESSAGES || end->begun - end->done == BUFFERS || chance_(2)) return;
    char *buffer = end->memory + end->begun % BUFFERS * BYTES;
    CommRequest *request = &end->requests[end->begun % BUFFERS];
    for (int64_t i = 0; i < BYTES && end->sends; i++) buffer[i] = value_(t->rank, end->peer, end->begun, i);
    int begun = t->comm->message(t->comm, end->sends, end->peer, buffer, BYTES, request, &t->error);
    if (begun != 0) stop_(t, "a message cannot be started");
    end->begun++;
    if (chance_(8)) usleep(200);
}

static void exchange_(Test *t, End *ends, int count) {
    for (;;) {
        int done = 0;
        for (int i = 0; i < count; i++) {
            progress_(t, &ends[i]);
            done += ends[i].done == MESSAGES;
        }
        if (done == count) return;
    }
}

// Connects the ring: forward pushed, backward through far. All ranks connect the ways in the same order.
static int make_ends_(Test *t, End *ends) {
    int count = 0, next = (t->rank + 1) % t->size, last = (t->rank + t->size - 1) % t->size;
    for (int from = 0; from < t->size; from++) {
        if (t->rank == from) ends[count++] = end_(t, next, true, false);
        if (t->rank == (from + 1) % t->size) ends[count++] = end_(t, last, false, true);
    }
    for (int from = 0; from < t->size && t->size > 2; from++) {
        if (t->rank == (from + 1) % t->size) ends[count++] = end_(t, last, true, false);
        if (t->rank == from) ends[count++] = end_(t, next, false, false);
    }
    return count;
}

// Waits for the borrower without calling any function of the group.
static void idle_(Test *t, Shared *shared, int64_t messages) {
    for (int ms = 0; atomic_load(&shared->moved) < messages; ms++) {
        if (ms == PATIENCE_MS) stop_(t, "the borrower cannot go on without the lender");
        usleep(1000);
    }
}

// Starts a message of the pair, and waits for it; the lender first idles until the borrower has completed it.
static void pass_(Test *t, Comm *comm, bool sends, char *memory, Shared *shared, int64_t number) {
    CommRequest request = {0};
    int begun = comm->message(comm, sends, 1 - comm->rank, memory, BYTES, &request, &t->error);
    if (begun != 0) stop_(t, "a message of the pair cannot be started");
    if (comm->rank == 1) idle_(t, shared, number + 1);
    if (comm_wait(comm, &request, &t->error) != 0) stop_(t, "a message of the pair");
    if (comm->rank == 0) atomic_store(&shared->moved, number + 1);
}

static void check_bundle_(Test *t, const char *memory, int64_t bundle, char more) {
    for (int64_t i = 0; i < BYTES; i++)
        if (memory[i] != (char)(value_(0, 1, bundle, i) + more)) stop_(t, "a bundle came with other bytes");
}

// Rank 1 lends two slots. Rank 0 sends every bundle there and gets it back with 1 added to every byte.
static void pair_(Test *t, Shared *shared, Comm *comm, Backend *be) {
    int64_t bytes = 2 * BYTES;
    bool lends = comm->rank == 1;
    char *memory = be->allocate(be, lends ? MEMORY_LENT_SLOTS : MEMORY_OWN_SLOTS, bytes, "slots", &t->error);
    int direct, far;
    for (int sender = 0; sender < 2; sender++)
        if (comm->connect(comm, 1 - comm->rank, comm->rank == sender, lends ? memory : NULL, bytes, &t->error) != 0)
            stop_(t, "connect");
    comm_pushed_ways(comm, &direct, &far);
    if (direct != 2 || far != 0 || comm_pushed_why(comm)[0] != '\0') stop_(t, "one loan serves both directions");
    for (int64_t bundle = 0; bundle < BUNDLES; bundle++) {
        char *slot = memory + bundle % 2 * BYTES;
        for (int64_t i = 0; i < BYTES && !lends; i++) slot[i] = value_(0, 1, bundle, i);
        pass_(t, comm, !lends, slot, shared, 2 * bundle);
        if (lends) check_bundle_(t, slot, bundle, 0);
        for (int64_t i = 0; i < BYTES; i++) slot[i] += lends;
        pass_(t, comm, lends, slot, shared, 2 * bundle + 1);
        if (!lends) check_bundle_(t, slot, bundle, 1);
    }
}

static void run_(Test *t, Shared *shared) {
    End ends[4];
    int count = make_ends_(t, ends), pushed, far;
    comm_pushed_ways(t->comm, &pushed, &far);
    if (pushed != 2 || far != count - 2) stop_(t, "lent memory is written to, and nothing else");
    held_(t, "where memory can be lent messages are pushed into it, elsewhere they go through far");
    exchange_(t, ends, count);
    held_(t, "messages both ways arrive whole and in order, early and late");
    for (int i = 0; i < count; i++) ends[i].begun = ends[i].done = 0;
    exchange_(t, ends, count);
    held_(t, "nothing is left over for a second run");
    if (atomic_load(&shared->early) > 0) stop_(t, "a receive was started that no sender had announced");
    held_(t, "a receive goes to the device only after its sender began");
}

int main(int argc, char **argv) {
    Test t = test_join(&argc, &argv);
    draws = (uint32_t)t.rank + 1;
    t.be = backend_cpu_create(PRECISION_FP32, 1, &t.error);
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, sizeof(Shared)) != 0) stop_(&t, "the shared file");
    Shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    Comm *host = world_split(t.world, "host", 0, t.rank, &t.error);
    Comm *far = world_split(t.world, "far", 0, t.rank, &t.error);
    if (shared == MAP_FAILED || host == NULL || far == NULL || t.be == NULL) stop_(&t, "set-up");
    t.comm = comm_pushed_create(t.be, STREAM_MESSAGES, host, spy_create(far, shared));
    run_(&t, shared);
    int color = t.rank < 2 ? 0 : -1;
    Backend *be = backend_cpu_create(PRECISION_FP32, 1, &t.error); // a backend lends one piece of memory
    host = world_split(t.world, "pair", color, t.rank, &t.error);
    far = world_split(t.world, "pair", color, t.rank, &t.error);
    Comm *pair = host == NULL ? NULL : comm_pushed_create(be, STREAM_EVICT, host, far);
    if (pair != NULL) pair_(&t, shared, pair, be);
    held_(&t, "the end that lends is not needed while the other end copies, out and back");
    if (pair != NULL) pair->destroy(pair);
    t.comm->destroy(t.comm);
    world_leave(t.world, 0);
    return 0;
}

#else
int main(void) {
    fprintf(stderr, "built without MPI\n");
    return 2;
}
#endif
