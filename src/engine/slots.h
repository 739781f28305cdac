// Activation slots: the only memory that holds bundles. A stage has a fixed number of equal slots: its own slots, the
// slots that it lends to its partner, and slots in host memory. Every slot records its contents; the proof of the
// schedule promises that no slot is used in a wrong state, so such a use would be a bug.
#pragma once

#include "backend/backend.h"

// A stage's slots: its own, the slots it lends, and slots in host memory for evicted bundles.
typedef struct SlotCounts {
    int own, lent, host;
    int64_t bytes; // bytes of one slot
} SlotCounts;

// The states in which a slot is in flight differ, so that an action on a slot that another action uses is found.
typedef enum SlotState {
    SLOT_FREE,
    SLOT_FILLING, // a forward writes it, or a transfer receives a bundle
    SLOT_HELD,    // holds a bundle
    SLOT_LEAVING, // a transfer sends the bundle
    SLOT_READING, // a backward reads the bundle; if split, from the start of I to the end of W
} SlotState;

typedef struct Slot {
    void *memory;
    SlotState state;
    int bundle;            // number of the bundle (schedule_bundle); -1 if free
    const Event *occupied; // end of the device's last use of a free slot; NULL: the device does not use it
} Slot;

// Used as a category for slots in host memory, which is pinned so that the device copies at full speed.
static const MemoryCategory SLOTS_ON_HOST = MEMORY_CATEGORIES;

typedef struct SlotPool {
    MemoryCategory category;
    Slot *slots;
    int count, in_use, most_in_use;
    void *memory; // one allocation: slot i at i * slot_bytes
    int64_t slot_bytes;
    Backend *be;
} SlotPool;

// Allocates `count` slots (may be 0) of slot_bytes bytes, a multiple of MEMORY_ALIGN. Returns -1 with err.
int slots_create(SlotPool *pool, Backend *be, MemoryCategory category, int count, int64_t slot_bytes, Error *err);
void slots_destroy(SlotPool *pool);

// Begins a run, with the device idle: no slot is occupied, and most_in_use starts at 0. Events of the previous run are
// forgotten, because this run records them again.
void slots_begin(SlotPool *pool);

// Returns the lowest free slot, or NULL. idle: skips slots that the device still uses; transfers need this. A
// forward need not wait for the device, because it follows its slot's last backward on the same stream.
Slot *slots_free(SlotPool *pool, bool idle);

Slot *slots_find(SlotPool *pool, int bundle);

// Moves a slot from state `from`, in which it holds `bundle` unless it is free, to state `to`.
void slots_move(SlotPool *pool, Slot *slot, SlotState from, SlotState to, int bundle);
