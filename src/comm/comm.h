// Point-to-point messages and collectives of a named group of ranks. Eight implementations, some on top of others:
//
//   mpi       comm_mpi.h        messages and sums in host memory; carries the start-up and doubles of the others
//   self      comm.c            a group of one rank; in a run without MPI, every group
//   nccl      cuda_library.h    GPU memory; NCCL's start-up data and sums of doubles go over its mpi
//   staged    cuda_library.h    GPU memory through host memory and its mpi, where ranks share a GPU
//   copy      cuda_library.h    gathers and sums by copy engines, within a host; the rest goes to the group it wraps
//   pushed    comm_pushed.h     messages by copies into mapped memory, announced over mpi; what cannot be mapped, such
//                               as another host's memory, goes through the group it wraps as `far`
//   emulated  comm_emulated.h   a stage without neighbours (--emulate-stage)
//   counted   device/count.h    collectives that only advance a clock, for plans
//
// Who takes a message, by group (run_create.c, device_comm of device.c); a[b]: a wraps b:
//
//   group             ranks on CPUs      with a GPU each                  that share a GPU
//   pipeline          mpi                pushed[nccl]                     staged
//   pair (bundles)    pushed[mpi]        pushed[nccl]                     pushed[staged]
//   tensor, context   mpi                copy[nccl], nccl (1)             copy[staged], staged (1)
//   data, tied        mpi                nccl                             staged
//   experts (2)       mpi                nccl                             staged
//
// (1) The copies are there where config_copies allows them (config.h).
// (2) Two groups: the ranks that divide the experts, and "same experts", which sum the gradients of an expert.
//
// Every operation starts without blocking; test or wait completes it. Messages between the same two ranks of a
// group arrive in the order in which they were started. Sums run in rank order (NCCL's in its own order), so a result
// depends only on the data and the group's size, and is the same on all ranks.
#pragma once

#include "base/log.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct Comm Comm;

// The allocation in which a group's collectives work. received NULL: only `memory` and `bytes` are set.
typedef struct CommMemory {
    void *memory;
    int64_t bytes;
    void *partial, *received; // input of reduce_scatter; the other ranks' inputs, of the same size
    int64_t part;             // bytes of `partial`, and of `received`
    uint32_t *flags;          // [COMM_FLAGS] flags that order the copies between devices
} CommMemory;
enum { COMM_FLAGS = 1024 };

// Collectives of doubles work on host memory, also with GPUs. All other collectives and all messages work on the
// backend's memory. COMM_BYTE can only be gathered.
typedef enum CommType { COMM_FLOAT, COMM_BF16, COMM_DOUBLE, COMM_BYTE } CommType;
typedef enum CommOperation {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_REDUCE,
    COMM_BROADCAST
} CommOperation;
enum { NO_ROOT = -1 };

// An operation in progress. The caller owns the storage; zeroed means idle. It must not move while active.
typedef struct CommRequest {
    void *handle[6];
    int64_t detail[4];
    int64_t steps; // grows with every test that made progress
    bool active;
    // Set on every rank before a collective starts: its memory was already free when the group's last collective
    // without this mark started, so that collective's announcement serves both.
    bool follows;
} CommRequest;

// State that a caller of comm_pause keeps between polls.
typedef struct Pause {
    int looks;   // polls that found nothing; the caller sets it to 0 at the start of a wait and after progress
    double busy; // time until which other programs are assumed to need the core
} Pause;

struct Comm {
    char name[16]; // purpose of the group, for messages: "pipeline", "tensor", ...
    int rank, size;
    char why[160]; // reason why the last use_memory did not map the other ranks' memory, as one clause; may be empty
    void *self;
    Pause pause; // state of the pauses of comm_wait and comm_wait_polling

    // Prepares the messages in one direction between this rank and `peer`. Both ranks call it before the first message,
    // with the same `bytes`, and all ranks of the group make these calls in the same order. One of the two ranks passes
    // `memory` (bytes), which contains its buffers for all these messages; the other rank may then write or read there.
    // If bytes is 0, memory is NULL on both ranks. A rank that passes memory for both directions passes the same
    // memory. The function is NULL if nothing has to be prepared.
    int (*connect)(Comm *, int peer, bool sends, void *memory, int64_t bytes, Error *);
    // Starts a message to rank `peer` of this group if `sends`, else a message from that rank. Sending does not change
    // the memory. bytes may exceed 2^31. The function is NULL in a group of one rank.
    int (*message)(Comm *, bool sends, int peer, void *memory, int64_t bytes, CommRequest *, Error *);
    // Starts a collective. root: the same on all ranks; NO_ROOT for operations without a root.
    //   COMM_ALL_REDUCE      out (count) = element-wise sum over the group, in place: in is out. bf16 is summed in fp32
    //                        and rounded once
    //   COMM_ALL_GATHER      out (size, count) from in (count) of each rank; in may be out + rank * count
    //   COMM_REDUCE_SCATTER  out (count) = sum over ranks of their in (size, count), block `rank`; out may be
    //                        in + rank * count
    //   COMM_REDUCE          the root's out (count) = sum over ranks of their in (count); out may be in. Other ranks'
    //                        out is neither read nor written
    //   COMM_BROADCAST       every rank's out (count) = the root's, in place: in is out
    int (*collective)(Comm *, CommOperation, int root, void *out, const void *in, int64_t count, CommType,
                      CommRequest *, Error *);
    // Starts an exchange of one block with every rank: `in` has this rank's blocks for ranks 0, 1, ..., one after
    // another, and `out` receives the blocks of ranks 0, 1, ... for this rank. sent, received: [size] bytes of the
    // blocks, in host memory, read before the call returns. Rank a sends to b what b receives from a; it may be 0. Only
    // groups of experts need it; other groups may leave it NULL.
    int (*exchange)(Comm *, void *out, const int64_t *received, const void *in, const int64_t *sent, CommRequest *,
                    Error *);
    // Sets the workspace for sums: `sums` pieces of `bytes`, one per sum in progress, for the other ranks' data.
    // `bytes` is comm_sum_workspace of the largest sum. The caller owns the workspace; NULL ends its use. A sum that
    // does not fit fails. Without a workspace, memory is allocated as needed. The function is NULL if a library sums.
    void (*use_workspace)(Comm *, void *memory, int64_t bytes, int sums);
    // Sets the memory in which most collectives of this group work, so that a library can register it or other ranks
    // can map it. NULL ends its use: pass NULL before releasing the memory, while nothing is in progress. All ranks of
    // the group call this, with the same layout. Returns 1 if the memory is now registered or mapped, 0 if not, -1
    // with err. The function is NULL if the group has no use for it.
    int (*use_memory)(Comm *, const CommMemory *, Error *);
    // Returns 1: complete (the request is free again), 0: not yet, -1: failed with err.
    int (*test)(Comm *, CommRequest *, Error *);
    void (*destroy)(Comm *);
};

static inline int comm_send(Comm *comm, int peer, const void *from, int64_t bytes, CommRequest *request, Error *err) {
    return comm->message(comm, true, peer, (void *)from, bytes, request, err);
}
static inline int comm_receive(Comm *comm, int peer, void *to, int64_t bytes, CommRequest *request, Error *err) {
    return comm->message(comm, false, peer, to, bytes, request, err);
}

// Waits until the request completes. Sleeps between tests, so other ranks can use the core. Returns 0, or -1 with err.
int comm_wait(Comm *comm, CommRequest *request, Error *err);
// Like comm_wait, but calls poll(argument, false) between tests. If poll returns false, stops waiting and returns 0.
int comm_wait_polling(Comm *comm, CommRequest *request, bool (*poll)(void *, bool), void *argument, Error *err);
// Send or receive one message and wait until it is complete. Return 0, or -1 with err.
int comm_send_now(Comm *comm, int peer, const void *from, int64_t bytes, Error *err);
int comm_receive_now(Comm *comm, int peer, void *to, int64_t bytes, Error *err);
// Runs a collective without a root to its end. Returns 0, or -1 with err.
int comm_collect_now(Comm *comm, CommOperation operation, void *out, const void *in, int64_t count, CommType type,
                     Error *err);

// Pauses after a poll that found nothing: yields at first, then sleeps, longer and longer up to 200 microseconds. While
// other programs use the core, it only sleeps.
void comm_pause(Pause *pause);
// Pauses a rank that computes on a GPU and needs its core for nothing else: yields for a few hundred microseconds,
// then sleeps for about 20 microseconds per call.
void comm_pause_briefly(int *looks);

int64_t comm_type_bytes(CommType type);

// Ranks that compute their sums themselves do so piece by piece, so that the workspace is small for any length.
// comm_piece returns the elements of the next piece if `rest` elements are left. comm_piece_is_direct returns whether
// every rank receives every rank's complete piece, in one round of messages. Otherwise rank q receives block q of every
// rank, and a second round distributes the sums.
enum { COMM_PIECE_BYTES = 16 << 20, COMM_DIRECT_BYTES = 32 << 10, COMM_DIRECT_WORKSPACE = 1 << 20 };
int64_t comm_piece(CommOperation operation, int64_t rest, CommType type, int size);
bool comm_piece_is_direct(CommOperation operation, int64_t piece, CommType type, int size);
// Returns the workspace, in bytes, for the largest piece of a sum of `count` elements; 0 for gathers and
// broadcasts.
int64_t comm_sum_workspace(CommOperation operation, int64_t count, CommType type, int size);

// Measures how many seconds the clock of rank 0 is ahead of the clock of rank `peer`. Uses the fastest of a dozen round
// trips; half the time of that trip bounds the error. Rank 0 and rank `peer` call this. Sets *offset to the result on
// rank `peer` and to 0 on rank 0.
int comm_clock_offset(Comm *comm, int peer, double *offset, Error *err);

// Creates a group of one rank.
Comm *comm_self_create(const char *name);

__END_DECLS
