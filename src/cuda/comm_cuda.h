// Messages between ranks whose memory is a GPU's. Each is made from the host's group of the same ranks, which carries
// what NCCL needs to start and all sums over doubles, since those lie in host memory.
#ifndef COMM_CUDA_H
#define COMM_CUDA_H

#include "backend/backend.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// How a group is used decides which communicators and streams it gets.
typedef enum CommUse {
    // Sums and gathers that compute reads: on a stream of their own, after what compute was given before the call.
    // `test` says complete at once, and what compute is given from then on waits for them on the device.
    COMM_USE_COMPUTE,
    // Sums and gathers beside compute, on a stream of their own: they begin after what compute was given before the
    // call, and are complete when `test` says so.
    COMM_USE_BESIDE,
    // Messages between two ranks. Every way that is connected has a communicator and a stream of its own: a receive
    // that waits holds up nothing else, so that traffic both ways cannot stall itself.
    COMM_USE_NEIGHBOURS
} CommUse;

// Collective over the group. The communicator of sums is made here, those of messages in `connect`. Takes over `host`
// where `owns`, also when it fails. NULL with err.
Comm *comm_nccl_create(Backend *backend, Comm *host, CommUse use, bool owns, Error *err);

// Through host memory and `host`, for ranks that share a GPU, which NCCL refuses. Slow, and alike in what it computes.
Comm *comm_staged_create(Backend *backend, Comm *host, bool owns, Error *err);

#ifdef __cplusplus
}
#endif

#endif
