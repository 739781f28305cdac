// One rank lends device memory to another rank of the same host. Both check that each rank reads the data that the
// other wrote. comm_pushed.c lends the slots of evicted bundles and the receive buffers of messages between stages.
#pragma once

#include "backend/backend.h"
#include "comm.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// The lender calls lending_lend and the borrower lending_borrow. `control` is a group for messages in host memory. Each
// of the two calls waits for the other.

// Lends memory[0, bytes) to rank `peer`; memory is NULL if there is nothing to lend. *lent: whether the borrower mapped
// it. The first MiB is 0 afterwards. Returns -1 with err only if a message or the device fails.
int lending_lend(Backend *be, void *memory, int64_t bytes, Comm *control, int peer, bool *lent, Error *err);

// Maps the memory that rank `peer` lends and sets *memory to its address here; the caller returns it with
// Backend.give_back. If the memory cannot be mapped, sets *memory to NULL and `why` to the reason, a clause. Returns -1
// with err only if a message or the device fails.
int lending_borrow(Backend *be, int64_t bytes, Comm *control, int peer, void **memory, char why[256], Error *err);

__END_DECLS
