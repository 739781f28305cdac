// A group that checks its messages and collectives. Every message is followed by its checksum, a message of 8 bytes
// over a second group of the same ranks. The data are compared with the checksum before anything reads them. Messages
// keep their sizes and buffers, so plans do not change.
//
// Collectives over MPI consist of messages, each checked on arrival, before it is summed. With a library's collectives
// (NCCL), each part of a gather is compared with its sender's input, and all ranks compare checksums of an all-reduce's
// result, which must be equal. A library's reduce-scatter is not checked: no two ranks have the same result.
#pragma once

#include "backend/checksum.h"
#include "comm.h"

// data: the group to check; destroyed with the result if `owns`. sums: a group in host memory, used only for checksums.
// The caller keeps `sums`, `checksum` and, unless `owns`, `data`. If a checksum differs, the receiver's test fails.
Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum);
