// Messages between ranks: point to point and collectives on a named group. Three implementations: MPI
// (comm/comm_mpi.c), one rank alone (comm_self.c), NCCL (cuda/). Everything is started without blocking and finished by
// test or wait. Messages between the same two ranks of one group arrive in the order they were started. Sums run in
// rank order, so that a result depends on the group's size and nothing else, and is the same on all ranks.
#ifndef COMM_H
#define COMM_H

#include "base/crc64.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Comm Comm;

typedef enum CommType { COMM_FLOAT, COMM_BF16, COMM_DOUBLE } CommType;
typedef enum CommOperation { COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER } CommOperation;

// An operation under way. Plain storage of the caller's; zeroed means none. It must not move while active.
typedef struct CommRequest {
    void *handle[6];
    int64_t detail[4];
    int64_t steps; // grows whenever a test got it a step further
    bool active;
} CommRequest;

struct Comm {
    char name[16]; // "pipeline", "tensor", "data", "pair"
    int rank, size;
    void *self;

    // Prepares the messages that will go one way between this rank and `peer`. Both call it before the first of them,
    // with the same `bytes`, and all ranks of the group that call it do so in one order. `memory` (bytes): where the
    // receiving end will receive, which lets the sender write there; NULL on the sending end, and if it is not known.
    // NULL: nothing has to be prepared.
    int (*connect)(Comm *, int peer, bool sends, void *memory, int64_t bytes, Error *);
    // bytes may exceed 2^31. peer is a rank of this group.
    int (*send)(Comm *, int peer, const void *from, int64_t bytes, CommRequest *, Error *);
    int (*receive)(Comm *, int peer, void *to, int64_t bytes, CommRequest *, Error *);
    // Element-wise sum over the group, in place; bf16 is summed in fp32 and rounded once.
    int (*all_reduce)(Comm *, void *data, int64_t count, CommType, CommRequest *, Error *);
    // out (size, count) from in (count) of each rank; in may be out + rank * count.
    int (*all_gather)(Comm *, void *out, const void *in, int64_t count, CommType, CommRequest *, Error *);
    // out (count) = sum over ranks of their in (size, count), block `rank`; out may be in + rank * count.
    int (*reduce_scatter)(Comm *, void *out, const void *in, int64_t count, CommType, CommRequest *, Error *);
    // Room for what the other ranks of this group send to be summed: `sums` pieces of `bytes`, one for each sum under
    // way, comm_sum_workspace of the largest. It stays the caller's, who takes it back with NULL. A sum for which it is
    // too small fails; while there is none, memory is taken as it is needed. NULL where sums are made by somebody else.
    void (*use_workspace)(Comm *, void *memory, int64_t bytes, int sums);
    // From now on a checksum follows every message of a collective, and what arrived is compared with it before it is
    // summed or kept. All ranks of the group call this. NULL where a library makes its own messages.
    void (*use_checksums)(Comm *, const Crc64 *);
    // 1: complete (the request is free again), 0: not yet, -1: failed with err.
    int (*test)(Comm *, CommRequest *, Error *);
    void (*destroy)(Comm *);
};

// Tests until complete, sleeping in between so that a waiting rank leaves its core to the others. 0, or -1 with err.
int comm_wait(Comm *comm, CommRequest *request, Error *err);

// The pause between two looks that found nothing: it only yields at first, then sleeps, longer each time, up to 200
// microseconds. *looks counts them; 0 at the start of a wait and after every look that found something.
void comm_pause(int *looks);

int64_t comm_type_bytes(CommType type);

// Where ranks sum among themselves, sums go through piece by piece, so that the room they need stays small whatever is
// summed. Elements of the next piece where `rest` are left; whether everybody gets the whole piece of everybody, which
// takes one trip (else rank q gets its block of everybody, and a second trip spreads the sums); bytes that others send
// to a rank meanwhile.
enum { COMM_PIECE_BYTES = 16 << 20, COMM_DIRECT_BYTES = 32 << 10, COMM_DIRECT_ROOM = 1 << 20 };
int64_t comm_piece(CommOperation operation, int64_t rest, CommType type, int size);
bool comm_piece_is_direct(CommOperation operation, int64_t piece, CommType type, int size);
int64_t comm_piece_workspace(CommOperation operation, int64_t piece, CommType type, int size);
// The most that any piece of `count` elements needs. A gather needs none.
int64_t comm_sum_workspace(CommOperation operation, int64_t count, CommType type, int size);

// Seconds to add to the clock of rank `peer` to get rank 0's: the quickest of a dozen round trips between the two,
// which both call this; half that trip bounds the error. The result is known on `peer`; on rank 0 *offset is 0.
int comm_clock_offset(Comm *comm, int peer, double *offset, Error *err);

// A group of one rank.
Comm *comm_self_create(const char *name);

#ifdef __cplusplus
}
#endif

#endif
