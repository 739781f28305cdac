// Messages between the memory of devices, announced through the host. The receiver says where the next message may go;
// only then does its sender start, and only then is anything queued on a device. So no device ever waits for a message
// that is not ready, which would occupy multiprocessors and, on GPUs, could block the loading of a kernel.
//
// Inside a host the sender's copy engine writes straight into the receiver's memory. If that memory cannot be lent
// (another host), both ends hand the message to `far`.
#ifndef COMM_PUSHED_H
#define COMM_PUSHED_H

#include "backend/backend.h"
#include "comm.h"

// `host`: the same ranks, messages in host memory. `far`: the same ranks, messages in device memory (NCCL; on a CPU a
// second group of the host's). The result takes ownership of `far`, and of `host` if `owns`. Messages go between ranks
// that called `connect`; there are no sums.
Comm *comm_pushed_create(Backend *be, Comm *host, Comm *far, bool owns);

// Counts the directions of this group that write into the receiver's memory, and those that go through `far`.
void comm_pushed_ways(const Comm *comm, int *pushed, int *through_far);

#endif
