// Communication between ranks with GPU memory. Each group is created from the host's group of the same ranks, which
// carries NCCL's start-up data and all sums of doubles, because doubles are in host memory.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

// The use of a group, which decides its communicators and streams.
typedef enum CommUse {
    // Sums and gathers with results that compute reads, on a separate stream. They start after all work queued on
    // compute before the call. `test` reports completion at once and makes later work on compute wait on the device.
    COMM_USE_COMPUTE,
    // Like COMM_USE_COMPUTE, plus exchanges.
    COMM_USE_EXCHANGE,
    // Sums and gathers on a separate stream. They start after all work queued on compute before the call, and are
    // complete when `test` reports it.
    COMM_USE_BESIDE,
    // Messages between two ranks. Every connected direction has its own communicator and stream, so a waiting receive
    // blocks nothing else, and traffic in both directions cannot deadlock.
    COMM_USE_NEIGHBOURS
} CommUse;

// Index into CommRequest.detail. The entry is 1 if the host's group does the work (that group uses the lower entries),
// 2 if comm_copy.cpp does the work, else 0.
enum { COMM_ON_HOST = 3 };

// Creates a group over NCCL; every rank of the group must call this. The communicator for collectives is created here,
// the communicators for messages in `connect`. Takes ownership of `host` if `owns`, even on failure. NULL with err.
Comm *comm_nccl_create(Backend *be, Comm *host, CommUse use, bool owns, Error *err);

// Creates a group for COMM_USE_COMPUTE that gathers and sums by copies once use_memory has mapped every rank's memory
// into the others. `other`, a group of the same ranks that owns `host`, runs the collectives that copies do not
// support, and all collectives before use_memory. If a rank cannot map a peer's memory, or has no NVLink to it, `other`
// runs all collectives; if `demanded`, use_memory fails without the memory, and does without NVLink. Takes ownership of
// `other`, even on failure. NULL with err.
Comm *comm_copy_create(Backend *be, Comm *other, Comm *host, bool demanded, Error *err);

// Creates a group that communicates through host memory and `host`. It is slow, but allows ranks to share a GPU, which
// NCCL refuses. Takes ownership of `host` if `owns`, even on failure. NULL with err.
Comm *comm_staged_create(Backend *be, Comm *host, bool owns, Error *err);
