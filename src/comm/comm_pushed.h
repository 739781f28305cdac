// Messages between the memory of devices, announced through the host. The end that waits for the other one says where
// its memory is ready; only then does the other end start, and only then is anything queued on a device. So no device
// ever waits for a message that is not ready, which would occupy multiprocessors and, on GPUs, could block the loading
// of a kernel.
//
// Inside a host one end lends its memory and the other end copies, by its copy engine: into the memory of a receiver
// (pushed), or out of the memory of a sender (pulled). If the memory cannot be lent (another host), both ends hand the
// message to `far`.
//
// The lender only has to start its messages. While it computes, the other end copies as soon as it wants to, so all
// traffic of a pair of stages moves at the pace of its evictor.
#pragma once

#include "backend/backend.h"
#include "comm.h"

// `host`: the same ranks, messages in host memory. `far`: the same ranks, messages in device memory (NCCL; on a CPU a
// second group of the host's). The result owns both groups. `stream` runs the copies. Messages go between ranks that
// called `connect`; there are no sums.
Comm *comm_pushed_create(Backend *be, Stream stream, Comm *host, Comm *far);

// Counts the directions of this group in which one end copies to or from the other end's memory, and those that go
// through `far`.
void comm_pushed_ways(const Comm *comm, int *direct, int *through_far);

// Returns why the memory of a peer could not be mapped here, in one clause; empty if all of it was.
const char *comm_pushed_why(const Comm *comm);
