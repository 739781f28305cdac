// A group whose messages and collectives are checked. Behind every message from one rank to another its checksum
// follows in a message of its own, of 8 bytes, over a second group of the same ranks; what arrived is compared with it
// before anything reads it. Messages keep their sizes and buffers, so no plan changes.
//
// Collectives over MPI are made of messages, each of which is checked on arrival, before it is summed. Of a library's
// collectives (NCCL) each part of a gather is compared with what its rank had, and all ranks compare the checksums of
// an all-reduce's result, which has to be the same bits everywhere. A library's reduce-scatter has no result that two
// ranks share, and is not checked.
#ifndef COMM_CHECKED_H
#define COMM_CHECKED_H

#include "backend/checksum.h"
#include "comm.h"

// data: the group whose messages are checked, which is destroyed with this one where `owns`. sums: messages in host
// memory, carrying nothing else. Both, and the checksum, are otherwise the caller's. What differs fails its receiver's
// test.
Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum);

#endif
