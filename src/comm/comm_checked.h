// A group whose messages are checked: behind every message from one rank to another its checksum follows in a message of its own, of
// 8 bytes, over a second group of the same ranks. What arrived is compared with it before anyone reads it. Messages keep their sizes
// and buffers, so no plan changes. Collectives pass through unchecked.
#ifndef COMM_CHECKED_H
#define COMM_CHECKED_H

#include "backend/checksum.h"
#include "comm.h"

// data: the group whose messages are checked, which is destroyed with this one where `owns`. sums: messages in host memory, carrying
// nothing else. Both, and the checksum, are otherwise the caller's. A message that differs fails its receiver's test. NULL with err
// (and data destroyed where `owns`).
Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum, Error *err);

#endif
