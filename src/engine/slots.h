// Activation slots: the only places an activation can be. A stage has a fixed number of equal slots, its own and those
// it lends to its partner, and every slot knows what it holds; using one out of turn is an error that names slot and
// action.
#ifndef SLOTS_H
#define SLOTS_H

#include "backend/backend.h"

// What a stage needs: its own slots, those it lends, and places in host memory for bundles that are evicted there.
typedef struct SlotCounts {
    int own, lent, host;
    int64_t bytes; // of one
} SlotCounts;

typedef enum SlotState {
    SLOT_FREE,
    SLOT_FILLING, // a forward writes it, or a transfer brings a bundle
    SLOT_HELD,    // holds a bundle
    SLOT_LEAVING, // a transfer takes the bundle away
    SLOT_READING, // a backward reads it; where it is split, until the gradients of the weights are taken
} SlotState;

typedef struct Slot {
    void *memory;
    SlotState state;
    int bundle;            // chunk * microbatches + microbatch; -1 where free
    const Event *occupied; // the device still uses a free slot until this is done; NULL: it does not
} Slot;

typedef struct SlotPool {
    const char *name; // "own", "lent"
    MemoryCategory category;
    Slot *slots;
    int count, in_use, most_in_use;
    void *memory; // one allocation: slot i at i * slot_bytes
    int64_t slot_bytes;
    Backend *be;
} SlotPool;

// count may be 0. Bytes taken: count * slot_bytes (a multiple of MEMORY_ALIGN).
int slots_create(SlotPool *pool, Backend *be, const char *name, MemoryCategory category, int count, int64_t slot_bytes,
                 Error *err);
void slots_destroy(SlotPool *pool);

// At the start of a run, with the device idle: no slot waits for it, and most_in_use counts anew. Events of the run
// before will mark other moments.
void slots_begin(SlotPool *pool);

// The lowest free slot, or NULL. Where `idle` is set only one that the device has let go of, for a transfer; a forward
// follows its slot's last backward on the same stream and need not wait.
Slot *slots_free(SlotPool *pool, bool idle);

// The slot that holds the bundle, or NULL.
Slot *slots_find(SlotPool *pool, int bundle);

// Moves a slot from one state to another, on behalf of action `who` ("F3"). -1 with err where the slot is not in
// `from`, or holds another bundle.
int slots_move(SlotPool *pool, Slot *slot, SlotState from, SlotState to, int bundle, const char *who, Error *err);

#endif
