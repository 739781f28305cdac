// Messages between device memories, announced through the host. One end announces that its memory is ready, and where.
// Only then does the other end start, and only then is work queued on a device. So no device ever waits for a message
// that is not ready. Such a wait would occupy multiprocessors and, on GPUs, could block the loading of a kernel.
//
// Within a host one end lends its memory and the other end's copy engine copies: into a receiver's memory (pushed), or
// out of a sender's memory (pulled). If the memory cannot be lent (another host), the message is sent through `far`.
//
// The lender only has to start its messages. The other end copies when it is ready, even while the lender computes. In
// a BPipe pair the acceptor lends, so the evictor sets the pace of all transfers.
#pragma once

#include "backend/backend.h"
#include "comm.h"

// `host` and `far`: groups of the same ranks, `host` for messages in host memory, `far` for messages in device memory
// (NCCL; on a CPU a second host group). The result owns both groups. `stream` runs the copies. Two ranks must call
// `connect` before they exchange messages. There are no collectives.
Comm *comm_pushed_create(Backend *be, Stream stream, Comm *host, Comm *far);

// Counts this group's directions: *direct, in which one end copies to or from the other end's memory, and *through,
// which use `far`.
void comm_pushed_ways(const Comm *comm, int *direct, int *through_far);

// Returns why the peer's memory could not be mapped, in one clause; empty if the latest mapping succeeded.
const char *comm_pushed_why(const Comm *comm);
