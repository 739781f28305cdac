// Slots and their states (slots.h). A state changes in two steps, at an action's start and at its end:
//
//   own    FREE -F, L-> FILLING -> HELD -E-> LEAVING -> FREE
//                                  HELD -B-> READING -> FREE; if the backward is split, I begins READING and W ends it
//   lent   FREE -A-> FILLING -> HELD -R-> LEAVING -> FREE
//   host   FREE -E-> HELD -L-> FREE
//
// On a GPU a state changes when the host has queued the work. A free slot that the device still reads stores the
// event that ends the read in `occupied`.
#include "slots.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int slots_create(SlotPool *pool, Backend *be, MemoryCategory category, int count, int64_t slot_bytes, Error *err) {
    const char *what = category == MEMORY_OWN_SLOTS ? "own" : "lent";
    int64_t bytes = count * slot_bytes;
    bool on_host = category == SLOTS_ON_HOST;
    *pool = (SlotPool){.category = category, .count = count, .slot_bytes = slot_bytes, .be = be};
    assert(slot_bytes % MEMORY_ALIGN == 0);
    if (count == 0) return 0;
    if (!on_host && (pool->memory = be->allocate(be, category, bytes, what, err)) == NULL) return -1;
    if (on_host) {
        void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return error_set(err, EXIT_FAILED,
                             "cannot allocate %.2f GiB of host memory for %d evicted bundles; set schedule.evict_to to "
                             "peer, use more schedule.slots, or run fewer ranks per host",
                             (double)bytes / GIB, count);
        pool->memory = memory;
    }
    pool->slots = xcalloc((size_t)count, sizeof *pool->slots);
    for (int i = 0; i < count; i++)
        pool->slots[i] = (Slot){.memory = (char *)pool->memory + i * slot_bytes, .bundle = -1};
    return on_host && be->pin != NULL ? be->pin(be, pool->memory, bytes, err) : 0;
}

void slots_destroy(SlotPool *pool) {
    int64_t bytes = pool->count * pool->slot_bytes;
    if (pool->memory != NULL && pool->category == SLOTS_ON_HOST) {
        if (pool->be->unpin != NULL) pool->be->unpin(pool->be, pool->memory);
        munmap(pool->memory, (size_t)bytes);
    } else {
        backend_release(pool->be, pool->category, pool->memory, bytes);
    }
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

void slots_move(SlotPool *pool, Slot *slot, SlotState from, SlotState to, int bundle) {
    assert(slot != NULL && slot->state == from && slot->bundle == (from == SLOT_FREE ? -1 : bundle));
    pool->in_use += (from == SLOT_FREE) - (to == SLOT_FREE);
    if (pool->in_use > pool->most_in_use) pool->most_in_use = pool->in_use;
    slot->state = to;
    slot->bundle = to == SLOT_FREE ? -1 : bundle;
}
