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

static void place_slots_(SlotPool *pool, int count) {
    assert(pool->slot_bytes % MEMORY_ALIGN == 0);
    pool->count = count;
    pool->slots = xcalloc((size_t)count, sizeof *pool->slots);
    for (int i = 0; i < count; i++)
        pool->slots[i] = (Slot){.memory = (char *)pool->memory + i * pool->slot_bytes, .bundle = -1};
}

int slots_create(SlotPool *pool, Backend *be, const char *name, MemoryCategory category, int count, int64_t slot_bytes,
                 Error *err) {
    *pool = (SlotPool){.name = name, .category = category, .slot_bytes = slot_bytes, .be = be};
    if (count == 0) return 0;
    pool->memory = be->allocate(be, category, count * slot_bytes, name, err);
    if (pool->memory == NULL) return -1;
    place_slots_(pool, count);
    return 0;
}

int slots_create_host(SlotPool *pool, Backend *be, int count, int64_t slot_bytes, Error *err) {
    *pool = (SlotPool){.name = "host", .on_host = true, .slot_bytes = slot_bytes, .be = be};
    if (count == 0) return 0;
    int64_t bytes = count * slot_bytes;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(err, EXIT_FAILED,
                         "cannot allocate %.2f GiB of host memory for %d evicted bundles; set schedule.evict_to to "
                         "peer, use more schedule.slots, or run fewer ranks per host",
                         (double)bytes / GIB, count);
    pool->memory = memory;
    place_slots_(pool, count);
    return be->pin == NULL ? 0 : be->pin(be, memory, bytes, err);
}

void slots_destroy(SlotPool *pool) {
    int64_t bytes = pool->count * pool->slot_bytes;
    if (pool->memory != NULL && pool->on_host) {
        if (pool->be->unpin != NULL) pool->be->unpin(pool->be, pool->memory);
        munmap(pool->memory, (size_t)bytes);
    } else if (pool->memory != NULL) {
        pool->be->release(pool->be, pool->category, pool->memory, bytes);
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
