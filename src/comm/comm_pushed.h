// Messages between the memory of devices, announced through the host. A receiver says where the next message may go;
// only then does its sender start, and only then is anything queued on a device. So no device ever waits for one that
// has nothing to send yet, which would hold multiprocessors and, on GPUs, could stop the loading of a kernel.
//
// Inside a host the sender's copy engine writes straight into the receiver's memory. Where that memory cannot be lent
// (another host), both ends hand the message to `far`.
#ifndef COMM_PUSHED_H
#define COMM_PUSHED_H

#include "backend/backend.h"
#include "comm.h"

// `host`: the same ranks, messages in host memory. `far`: the same ranks, messages in device memory (NCCL; the host's
// own group on a CPU if it is another one). The result takes over `far`, and `host` where `owns`. Messages go between
// ranks that called `connect`; there are no sums.
Comm *comm_pushed_create(Backend *be, Comm *host, Comm *far, bool owns);

// How many ways of this group write into memory of the receiver, and how many go through `far`.
void comm_pushed_ways(const Comm *comm, int *pushed, int *through_far);

#endif
