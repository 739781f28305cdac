// One rank lends memory of its device to another one of the same host, and both check that what one writes the other
// reads. Used for evicted bundles and for the receive buffers of messages between stages.
#ifndef LENDING_H
#define LENDING_H

#include "backend/backend.h"
#include "comm.h"

// The lender and the borrower each call their function, over `control`, whose messages lie in host memory. Neither
// returns before the other came this far.

// Lends memory[0, bytes) to rank `peer`; memory is NULL if there is nothing to lend. *lent: whether the borrower has it
// mapped. The first 8 bytes are 0 afterwards. -1 with err only if a message or the device fails.
int lending_lend(Backend *be, void *memory, int64_t bytes, Comm *control, int peer, bool *lent, Error *err);

// *memory: what rank `peer` lends, mapped here; the caller gives it back to the backend. NULL if it cannot be reached,
// and `why` says so in one clause. -1 with err only if a message or the device fails.
int lending_borrow(Backend *be, int64_t bytes, Comm *control, int peer, void **memory, char why[256], Error *err);

#endif
