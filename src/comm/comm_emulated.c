// A group with one real rank (comm_emulated.h). A request stores the time at which its message would arrive; test
// compares it with the clock. Messages share one link: each begins when the previous message has arrived, even if an
// acceptor has started several messages ahead (engine.c).
#include "comm_emulated.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BUFFERS = 256 };

typedef struct Emulated {
    Backend *be;
    EmulatedPeers peers;
    double free;  // clock_seconds() when the latest message arrives; the next message begins then
    Event *moved; // event after the latest copy to or from the scratch
    const void *filled[MOST_BUFFERS];
    int filled_count;
} Emulated;

// Fills `to` with random numbers of about the size of normed activations, in the run's precision.
static void emulated_fill_(Emulated *self, void *to, int64_t bytes) {
    int64_t element = self->be->element, count = bytes / element;
    float *values = xmalloc((size_t)count * sizeof *values);
    uint16_t *halves = xmalloc((size_t)count * sizeof *halves);
    random_normal_fill(values, count, 0.5f, 1, 1, 0);
    for (int64_t i = 0; i < count; i++) halves[i] = (uint16_t)(fp8_bits(values[i]) >> 16); // bf16, truncated
    self->be->upload(self->be, to, element == 2 ? (const void *)halves : (const void *)values, bytes);
    free_all(values, halves);
}

// Returns whether a buffer was seen before, and records it. A buffer is filled only the first time: filling it at every
// receive would slow down every step.
static bool seen_(Emulated *self, const void *to) {
    for (int i = 0; i < self->filled_count; i++)
        if (self->filled[i] == to) return true;
    if (self->filled_count < MOST_BUFFERS) self->filled[self->filled_count++] = to;
    return false;
}

// Starts a message; detail[0] is its time of arrival, in nanoseconds of clock_seconds(). With scratch, copies as many
// bytes as a real message, so that memory is equally busy. Without scratch, fills a receive buffer with typical numbers
// once, so that kernels do not run on zeros or NaN.
static int emulated_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                             Error *err) {
    Emulated *self = comm->self;
    const EmulatedPeers *peers = &self->peers;
    void *scratch = peers->scratch;
    double needs = peers->rate > 0 ? (double)bytes / peers->rate + peers->latency : 0, now = clock_seconds();
    (void)peer, (void)err;
    self->free = (now > self->free ? now : self->free) + needs;
    *request = (CommRequest){.detail = {(int64_t)(1e9 * self->free)}, .active = true};
    if (scratch == NULL && !sends && !seen_(self, memory)) emulated_fill_(self, memory, bytes);
    if (scratch == NULL) return 0;
    self->be->copy(self->be, STREAM_EVICT, sends ? scratch : memory, sends ? memory : scratch, bytes);
    self->be->event_record(self->be, self->moved, STREAM_EVICT);
    return 0;
}

// Copies this rank's part to its place in the result. host: it is in host memory, as doubles are.
static void emulated_part_(const Emulated *self, void *to, const void *from, int64_t bytes, bool host) {
    if (host) memmove(to, from, (size_t)bytes);
    else if (to != from) self->be->copy(self->be, STREAM_COMPUTE, to, from, bytes);
}

// Completes a collective at once. The first gather into a buffer fills it with copies of this rank's part, since GPUs
// multiply zeros up to an eighth faster, with less power. Later gathers write only this rank's part, except of doubles,
// which are read: the rows for each expert.
static int emulated_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                                CommType type, CommRequest *request, Error *err) {
    Emulated *self = comm->self;
    (void)err;
    int64_t bytes = count * comm_type_bytes(type);
    bool host = type == COMM_DOUBLE, gathers = operation == COMM_ALL_GATHER,
         seen = gathers && !host && seen_(self, out);
    for (int rank = 0; gathers && rank < comm->size; rank++)
        if (rank == comm->rank || !seen) emulated_part_(self, (char *)out + rank * bytes, in, bytes, host);
    if (operation == COMM_REDUCE_SCATTER) emulated_part_(self, out, (const char *)in + comm->rank * bytes, bytes, host);
    if (operation == COMM_REDUCE && comm->rank == root) emulated_part_(self, out, in, bytes, host);
    *request = (CommRequest){0};
    return 0;
}

// Fills the received blocks with typical numbers the first time, and copies this rank's own block.
static int emulated_exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                              CommRequest *request, Error *err) {
    Emulated *self = comm->self;
    int64_t all = 0, to = 0, from = 0;
    (void)err;
    for (int q = 0; q < comm->size; q++) all += received[q];
    if (!seen_(self, out)) emulated_fill_(self, out, all);
    for (int q = 0; q < comm->rank; q++) to += received[q], from += sent[q];
    emulated_part_(self, (char *)out + to, (const char *)in + from, sent[comm->rank], false);
    *request = (CommRequest){0};
    return 0;
}

static int emulated_test_(Comm *comm, CommRequest *request, Error *err) {
    Emulated *self = comm->self;
    (void)err;
    if (!request->active) return 1;
    if ((int64_t)(1e9 * clock_seconds()) < request->detail[0]) return 0;
    if (self->peers.scratch != NULL && !self->be->event_done(self->be, self->moved)) return 0;
    *request = (CommRequest){0};
    return 1;
}

static void emulated_destroy_(Comm *comm) {
    Emulated *self = comm->self;
    self->be->event_destroy(self->be, self->moved);
    free_all(self, comm);
}

Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers) {
    Comm *comm = xcalloc(1, sizeof *comm);
    Emulated *self = xcalloc(1, sizeof *self);
    *self = (Emulated){.be = be, .peers = *peers, .moved = be->event_create(be)};
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->rank = rank;
    comm->size = size;
    comm->self = self;
    comm->message = emulated_message_;
    comm->collective = emulated_collective_;
    comm->exchange = emulated_exchange_;
    comm->test = emulated_test_;
    comm->destroy = emulated_destroy_;
    return comm;
}
