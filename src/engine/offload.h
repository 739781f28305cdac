// Where evicted bundles go: host memory, or slots lent by the partner and mapped into this process. The evictor copies
// and keeps the index of which place holds which bundle; the partner does nothing.
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include "comm/comm.h"
#include "slots.h"

typedef struct OffloadStore {
    Backend *be;
    char *memory; // place i at i * slot_bytes; NULL: none
    int *bundle;  // per place; -1: free
    int count;
    int64_t slot_bytes;
    bool borrowed; // the partner's memory; else host memory
    Event *copied; // the copy in progress
} OffloadStore;

// Allocates `count` places in host memory. Returns 0, or -1 with err.
int offload_host(OffloadStore *store, Backend *be, int64_t count, int64_t slot_bytes, Error *err);

// Both stages of a pair call this, over `control`, a group with messages in host memory. The evictor (rank 0) maps the
// acceptor's slots `lent`, and both check that what one writes the other reads. If so, *alone is set on both sides: the
// evictor will move bundles by itself. If not, `why` has the evictor's reason, one clause, and bundles go by messages.
// Returns -1 with err only if the messages fail.
int offload_pair(OffloadStore *store, Backend *be, const SlotPool *lent, Comm *control, bool *alone, char why[256],
                 Error *err);

// Both stages of a pair call this if `alone` was set, before the acceptor releases its slots: memory of a GPU must not
// be freed while another process has it mapped. The evictor gives the slots back, and then the acceptor returns. -1
// with err.
int offload_part(OffloadStore *store, Comm *control, Error *err);

void offload_destroy(OffloadStore *store);

// Start copying a bundle out (from: own slot) or back (to: own slot). -1 with err if it has no place.
int offload_put(OffloadStore *store, int bundle, const void *from, Error *err);
int offload_get(OffloadStore *store, int bundle, void *to, Error *err);

// Returns whether the copy started last is complete.
bool offload_done(OffloadStore *store);

#endif
