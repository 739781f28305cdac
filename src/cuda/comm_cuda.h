// Messages between ranks whose memory is a GPU's. Each is made from the host's group of the same ranks, which carries
// NCCL's start-up data and all sums over doubles, since those lie in host memory.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// How a group is used decides which communicators and streams it gets.
typedef enum CommUse {
    // Sums and gathers that compute reads, on a stream of their own, after everything queued on compute before the
    // call. `test` reports them complete at once; work queued on compute later waits for them on the device.
    COMM_USE_COMPUTE,
    // Sums and gathers on a stream of their own: they begin after the work that compute was given before the call, and
    // are complete when `test` says so.
    COMM_USE_BESIDE,
    // Messages between two ranks. Every connected direction has a communicator and a stream of its own: a waiting
    // receive holds up nothing else, so traffic in both directions cannot stall itself.
    COMM_USE_NEIGHBOURS
} CommUse;

// The entry of CommRequest.detail that is 1 if the host's group does the work, which uses the entries before it, and 2
// if comm_copy.cpp does.
enum { COMM_ON_HOST = 3 };

// Creates a group over NCCL; collective over the group. The communicator of sums is made here, those of messages in
// `connect`. Takes ownership of `host` if `owns`, even on failure. NULL with err.
Comm *comm_nccl_create(Backend *backend, Comm *host, CommUse use, bool owns, Error *err);

// Creates a group for COMM_USE_COMPUTE that gathers and sums by copies once use_memory has mapped every rank's memory
// into the others. `other`, a group of the same ranks that owns `host`, runs every other collective, and all of them
// before use_memory. If a rank cannot map another one, `other` runs all of them; use_memory fails instead if copies are
// `demanded`. Takes ownership of `other`, even on failure. NULL with err.
Comm *comm_copy_create(Backend *backend, Comm *other, Comm *host, bool demanded, Error *err);

// Creates a group that goes through host memory and `host`, for ranks that share a GPU, which NCCL refuses. It is slow,
// but computes the same. NULL with err.
Comm *comm_staged_create(Backend *backend, Comm *host, bool owns, Error *err);

__END_DECLS
