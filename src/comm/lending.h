// One rank lends memory of its device to another one of the same host, and both check that the data one writes the
// other reads. comm_pushed.c lends the slots of evicted bundles and the receive buffers of messages between stages.
#pragma once

#include "backend/backend.h"
#include "comm.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// The lender and the borrower each call their function, over `control`, a group with messages in host memory. Neither
// returns before the other has reached the same point.

// Lends memory[0, bytes) to rank `peer`; memory is NULL if there is nothing to lend. *lent: whether the borrower mapped
// it. The first 8 bytes are 0 afterwards. Returns -1 with err only if a message or the device fails.
int lending_lend(Backend *be, void *memory, int64_t bytes, Comm *control, int peer, bool *lent, Error *err);

// Maps the memory that rank `peer` lends into *memory; the caller gives it back to the backend. *memory is NULL if it
// cannot be reached, and `why` then says so in one clause. Returns -1 with err only if a message or the device fails.
int lending_borrow(Backend *be, int64_t bytes, Comm *control, int peer, void **memory, char why[256], Error *err);

__END_DECLS
