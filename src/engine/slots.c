// Slots and their states (slots.h).
#include "slots.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

int slots_create(SlotPool *pool, Backend *be, const char *name, MemoryCategory category, int count, int64_t slot_bytes,
                 Error *err) {
    memset(pool, 0, sizeof *pool);
    pool->name = name;
    pool->category = category;
    pool->be = be;
    pool->slot_bytes = slot_bytes;
    if (count == 0) return 0;
    pool->slots = xcalloc((size_t)count, sizeof *pool->slots);
    pool->memory = be->allocate(be, category, count * slot_bytes, name, err);
    if (pool->memory == NULL) return -1;
    pool->count = count;
    for (int i = 0; i < count; i++) {
        pool->slots[i].memory = (char *)pool->memory + i * slot_bytes;
        pool->slots[i].bundle = -1;
    }
    return 0;
}

void slots_destroy(SlotPool *pool) {
    if (pool->memory != NULL) pool->be->release(pool->be, pool->category, pool->memory, pool->count * pool->slot_bytes);
    free(pool->slots);
    memset(pool, 0, sizeof *pool);
}

void slots_begin(SlotPool *pool) {
    pool->most_in_use = 0;
    for (int i = 0; i < pool->count; i++) pool->slots[i].occupied = NULL;
}

Slot *slots_free(SlotPool *pool, bool idle) {
    for (int i = 0; i < pool->count; i++) {
        Slot *slot = &pool->slots[i];
        if (slot->state != SLOT_FREE) continue;
        if (idle && slot->occupied != NULL && !pool->be->event_done(pool->be, (Event *)slot->occupied)) continue;
        return slot;
    }
    return NULL;
}

Slot *slots_find(SlotPool *pool, int bundle) {
    for (int i = 0; i < pool->count; i++)
        if (pool->slots[i].bundle == bundle) return &pool->slots[i];
    return NULL;
}

static const char *state_name_(SlotState state) {
    static const char *const names[] = {"free", "being filled", "holding", "leaving", "being read"};
    return names[state];
}

int slots_move(SlotPool *pool, Slot *slot, SlotState from, SlotState to, int bundle, const char *who, Error *err) {
    if (slot == NULL)
        return error_set(err, EXIT_FAILED,
                         "%s: no %s slot holds bundle %d; this is a defect of the program or its schedule", who,
                         pool->name, bundle);
    int expected = from == SLOT_FREE ? -1 : bundle;
    if (slot->state != from || slot->bundle != expected)
        return error_set(err, EXIT_FAILED,
                         "%s: %s slot %d should be %s (bundle %d) but is %s (bundle %d; -1: none); this is a defect of "
                         "the program or its schedule",
                         who, pool->name, (int)(slot - pool->slots), state_name_(from), expected,
                         state_name_(slot->state), slot->bundle);
    pool->in_use += (from == SLOT_FREE) - (to == SLOT_FREE);
    if (pool->in_use > pool->most_in_use) pool->most_in_use = pool->in_use;
    slot->state = to;
    slot->bundle = to == SLOT_FREE ? -1 : bundle;
    return 0;
}
