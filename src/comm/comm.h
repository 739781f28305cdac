// Messages between ranks: point to point and collectives on a named group. MPI (comm_mpi.c), one rank alone
// (comm_self.c), NCCL and host memory (cuda/) carry them; comm_pushed.h, comm_checked.h and comm_emulated.h wrap or
// replace those. Everything is started without blocking and finished by test or wait. Messages between the same two
// ranks of one group arrive in the order they were started. Sums run in rank order (NCCL's in an order of its own), so
// that a result depends on the group's size and nothing else, and is the same on all ranks.
#pragma once

#include "base/crc64.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct Comm Comm;

// Memory of one allocation in which the collectives of a group work. received NULL: there is no more than that.
typedef struct CommMemory {
    void *memory;
    int64_t bytes;
    void *partial, *received; // inputs of reduce_scatter, and as many bytes for the other ranks' inputs
    int64_t part;             // bytes of either
    uint32_t *flags;          // COMM_FLAGS
} CommMemory;
enum { COMM_FLAGS = 1024 };

// Collectives of doubles are of host memory, on GPUs too; all others, and messages, are of the backend's memory.
// Bytes are only gathered.
typedef enum CommType { COMM_FLOAT, COMM_BF16, COMM_DOUBLE, COMM_BYTE } CommType;
typedef enum CommOperation { COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER } CommOperation;

// An operation in progress. The caller owns the storage; zeroed means idle. It must not move while active.
typedef struct CommRequest {
    void *handle[6];
    int64_t detail[4];
    int64_t steps; // grows with every test that made progress
    bool active;
} CommRequest;

// The pauses of a wait.
typedef struct Pause {
    int looks;   // set to 0 at the start of a wait and after every poll that found something
    double busy; // time until which other programs are assumed to need the core
} Pause;

struct Comm {
    char name[16]; // "pipeline", "tensor", "data", "pair"
    int rank, size;
    char why[160]; // after use_memory: why the ranks do not map each other's memory, in one clause
    void *self;
    Pause pause; // how this group waits

    // Prepares the messages that will go one way between this rank and `peer`. Both call it before the first message,
    // with the same `bytes`, and all ranks of the group make these calls in one order. One of the two passes `memory`
    // (bytes), which contains its end of all these messages: the other rank may then write or read there. Neither
    // passes any if bytes is 0. A rank that passes memory for both ways passes the same. The function is NULL if
    // nothing has to be prepared.
    int (*connect)(Comm *, int peer, bool sends, void *memory, int64_t bytes, Error *);
    // Starts a message to the rank `peer` of this group (`sends`), or from it. A send leaves the memory as it is. bytes
    // may exceed 2^31.
    int (*message)(Comm *, bool sends, int peer, void *memory, int64_t bytes, CommRequest *, Error *);
    // Starts a collective.
    //   COMM_ALL_REDUCE      out (count) = element-wise sum over the group, in place: in is out. bf16 is summed in fp32
    //                        and rounded once
    //   COMM_ALL_GATHER      out (size, count) from in (count) of each rank; in may be out + rank * count
    //   COMM_REDUCE_SCATTER  out (count) = sum over ranks of their in (size, count), block `rank`; out may be
    //                        in + rank * count
    int (*collective)(Comm *, CommOperation, void *out, const void *in, int64_t count, CommType, CommRequest *,
                      Error *);
    // Workspace for sums: `sums` pieces of `bytes` for the other ranks' data, one piece per sum in progress,
    // comm_sum_workspace of the largest. The caller owns it; NULL takes it back. A sum that it is too small for fails;
    // without it, memory is allocated as needed. NULL pointer if a library makes the sums.
    void (*use_workspace)(Comm *, void *memory, int64_t bytes, int sums);
    // Names the memory in which most collectives of this group work, so that a library can register it or other ranks
    // can map it; NULL takes it back, before it is released and while nothing is in progress. All ranks of the group
    // call this, with the same layout. Returns 1 if it is used so from now on, 0 if not, -1 with err. NULL pointer if
    // that makes no difference.
    int (*use_memory)(Comm *, const CommMemory *, Error *);
    // From now on a checksum follows every message of a collective, and data are compared with it before they are
    // summed or kept. All ranks of the group call this. NULL if the library does its own point-to-point (NCCL).
    void (*use_checksums)(Comm *, const Crc64 *);
    // Returns 1: complete (the request is free again), 0: not yet, -1: failed with err.
    int (*test)(Comm *, CommRequest *, Error *);
    void (*destroy)(Comm *);
};

// Start a message to a rank, or from one.
static inline int comm_send(Comm *comm, int peer, const void *from, int64_t bytes, CommRequest *request, Error *err) {
    return comm->message(comm, true, peer, (void *)from, bytes, request, err);
}
static inline int comm_receive(Comm *comm, int peer, void *to, int64_t bytes, CommRequest *request, Error *err) {
    return comm->message(comm, false, peer, to, bytes, request, err);
}

// Tests until complete, sleeping in between so that a waiting rank leaves its core to others. Returns 0, or -1 with
// err.
int comm_wait(Comm *comm, CommRequest *request, Error *err);
// Does the same and calls poll(argument, false) after each test; gives up, without err, once that returns false.
int comm_wait_polling(Comm *comm, CommRequest *request, bool (*poll)(void *, bool), void *argument, Error *err);
// Send or receive one message and wait until it is complete. Return 0, or -1 with err.
int comm_send_now(Comm *comm, int peer, const void *from, int64_t bytes, Error *err);
int comm_receive_now(Comm *comm, int peer, void *to, int64_t bytes, Error *err);

// Pauses between two polls that found nothing: yields at first, then sleeps, longer each time, up to 200 microseconds.
// While other programs keep the core it only sleeps.
void comm_pause(Pause *pause);
// Pauses a rank whose work is a GPU's, so that its core has nothing better to do: yields for some hundred microseconds
// before it sleeps, and then for about 20 at a time.
void comm_pause_briefly(int *looks);

int64_t comm_type_bytes(CommType type);

// If ranks make their sums themselves, data are summed piece by piece, so that the workspace is small for any length.
// comm_piece returns the elements of the next piece if `rest` are left; comm_piece_is_direct whether every rank gets
// every rank's complete piece, which takes one trip (else rank q gets block q of every rank, and a second trip spreads
// the sums).
enum { COMM_PIECE_BYTES = 16 << 20, COMM_DIRECT_BYTES = 32 << 10, COMM_DIRECT_WORKSPACE = 1 << 20 };
int64_t comm_piece(CommOperation operation, int64_t rest, CommType type, int size);
bool comm_piece_is_direct(CommOperation operation, int64_t piece, CommType type, int size);
// Returns the most that any piece of `count` elements needs. all_gather needs no scratch.
int64_t comm_sum_workspace(CommOperation operation, int64_t count, CommType type, int size);

// Measures the seconds to add to the clock of rank `peer` to get rank 0's, from the quickest of a dozen round trips;
// half that trip bounds the error. Both ranks call it. The result is known on `peer`; on rank 0 *offset is 0.
int comm_clock_offset(Comm *comm, int peer, double *offset, Error *err);

// Creates a group of one rank.
Comm *comm_self_create(const char *name);

__END_DECLS
