// A group whose messages and collectives are checked. After every message from one rank to another its checksum follows
// in a message of 8 bytes, over a second group of the same ranks; the data are compared with it before anything reads
// them. Messages keep their sizes and buffers, so no plan changes.
//
// Collectives over MPI are made of messages, and each is checked on arrival, before it is summed. Of a library's
// collectives (NCCL), each part of a gather is compared with its rank's input, and all ranks compare the checksums of
// an all-reduce's result, which has the same bits everywhere. A library's reduce-scatter has no result that two ranks
// share, and is not checked.
#pragma once

#include "backend/checksum.h"
#include "comm.h"

// data: the group to check; destroyed with this one if `owns`. sums: a group for messages in host memory that carries
// nothing else. The caller keeps `sums`, `checksum` and, unless `owns`, `data`. If data differ, the receiver's test
// fails.
Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum);
