// Places outside a stage's own slots to which its bundles are evicted: host memory, or slots that the paired stage
// lends and that are mapped into this process. The evictor copies and keeps the index; the partner does nothing. Which
// place holds which bundle is kept here, by the one who evicts.
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include "comm/comm.h"
#include "slots.h"

typedef struct OffloadStore {
    Backend *be;
    char *memory; // place i at i * slot_bytes; NULL: there are none
    int *bundle;  // per place; -1: free
    int count;
    int64_t slot_bytes;
    bool borrowed; // the partner's; else host memory
    Event *copied; // the copy under way
} OffloadStore;

// `count` places in host memory. 0, or -1 with err.
int offload_host(OffloadStore *store, Backend *be, int64_t count, int64_t slot_bytes, Error *err);

// Both stages of a pair call this, over `control`, whose messages lie in host memory. The evictor (rank 0) maps the
// slots that the acceptor has in `lent`, and both see that what one writes the other reads. Where that works *alone is
// set on both sides: the evictor moves bundles by itself. Where it does not, `why` tells the evictor's reason, one
// clause, and they go by messages. -1 with err only where the messages fail.
int offload_pair(OffloadStore *store, Backend *be, const SlotPool *lent, Comm *control, bool *alone, char why[256],
                 Error *err);

// Both stages of a pair call this where `alone` was set, before the acceptor releases its slots: memory of a GPU must
// not be freed while another process has it mapped. The evictor gives the slots back, and then the acceptor returns. -1
// with err.
int offload_part(OffloadStore *store, Comm *control, Error *err);

void offload_destroy(OffloadStore *store);

// Starts copying a bundle out (from: own slot) or back (to: own slot). -1 with err where it has no place.
int offload_put(OffloadStore *store, int bundle, const void *from, Error *err);
int offload_get(OffloadStore *store, int bundle, void *to, Error *err);

// Whether the copy started last is complete.
bool offload_done(OffloadStore *store);

#endif
