// The offload store (offload.h). Most of the code is the agreement of a pair at start-up: the acceptor offers its
// slots, the evictor maps them, and a number that each writes and the other reads proves that both see the same memory.
#include "offload.h"
#include "base/alloc.h"
#include "comm/lending.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { EVICTOR, ACCEPTOR }; // ranks of a pair

static void fill_places_(OffloadStore *store, Backend *be, int64_t count, int64_t slot_bytes) {
    store->be = be;
    store->count = (int)count;
    store->slot_bytes = slot_bytes;
    store->bundle = xmalloc((size_t)count * sizeof *store->bundle);
    store->copied = be->event_create(be);
    for (int i = 0; i < store->count; i++) store->bundle[i] = -1;
}

int offload_host(OffloadStore *store, Backend *be, int64_t count, int64_t slot_bytes, Error *err) {
    if (count == 0) return 0;
    fill_places_(store, be, count, slot_bytes);
    int64_t bytes = count * slot_bytes;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(err, EXIT_FAILED, "out of host memory for %lld evicted bundles of %lld bytes",
                         (long long)count, (long long)slot_bytes);
    store->memory = (char *)memory;
    return be->pin == NULL ? 0 : be->pin(be, memory, bytes, err);
}

void offload_destroy(OffloadStore *store) {
    int64_t bytes = store->count * store->slot_bytes;
    Backend *be = store->be;
    if (be == NULL) return;
    if (store->memory != NULL && store->borrowed) be->give_back(be, store->memory, bytes);
    if (store->memory != NULL && !store->borrowed) {
        if (be->unpin != NULL) be->unpin(be, store->memory);
        munmap(store->memory, (size_t)bytes);
    }
    if (store->copied != NULL) be->event_destroy(be, store->copied);
    free(store->bundle);
    memset(store, 0, sizeof *store);
}

// --- the pair agrees

static int offload_send_(Comm *control, const void *from, int64_t bytes, Error *err) {
    CommRequest request = {0};
    if (control->send(control, 1 - control->rank, from, bytes, &request, err) != 0) return -1;
    return comm_wait(control, &request, err);
}

static int offload_receive_(Comm *control, void *to, int64_t bytes, Error *err) {
    CommRequest request = {0};
    if (control->receive(control, 1 - control->rank, to, bytes, &request, err) != 0) return -1;
    return comm_wait(control, &request, err);
}

static int lend_(Backend *be, const SlotPool *lent, Comm *control, bool *alone, Error *err) {
    int64_t offer[2] = {lent->count, lent->slot_bytes};
    if (offload_send_(control, offer, sizeof offer, err) != 0) return -1;
    if (lent->count == 0) return 0;
    return lending_lend(be, lent->memory, lent->count * lent->slot_bytes, control, EVICTOR, alone, err);
}

static int borrow_(OffloadStore *store, Backend *be, Comm *control, bool *alone, char why[256], Error *err) {
    int64_t offer[2];
    if (offload_receive_(control, offer, sizeof offer, err) != 0) return -1;
    if (offer[0] == 0) return 0;
    fill_places_(store, be, offer[0], offer[1]);
    store->borrowed = true;
    void *memory = NULL;
    if (lending_borrow(be, offer[0] * offer[1], control, ACCEPTOR, &memory, why, err) != 0) return -1;
    store->memory = memory;
    *alone = memory != NULL;
    if (memory == NULL) offload_destroy(store);
    return 0;
}

int offload_pair(OffloadStore *store, Backend *be, const SlotPool *lent, Comm *control, bool *alone, char why[256],
                 Error *err) {
    *alone = false;
    why[0] = '\0';
    if (control->rank == ACCEPTOR) return lend_(be, lent, control, alone, err);
    return borrow_(store, be, control, alone, why, err);
}

int offload_part(OffloadStore *store, Comm *control, Error *err) {
    char done = 1;
    if (control->rank == ACCEPTOR) return offload_receive_(control, &done, sizeof done, err);
    offload_destroy(store);
    return offload_send_(control, &done, sizeof done, err);
}

// --- copies

static int offload_find_(OffloadStore *store, int holding, int bundle, Error *err) {
    for (int i = 0; i < store->count; i++)
        if (store->bundle[i] == holding) return i;
    return error_set(err, EXIT_FAILED, "no place %s for bundle %d; this is a defect of the program or its schedule",
                     store->borrowed ? "in the partner's slots" : "in host memory", bundle);
}

static void offload_copy_(OffloadStore *store, void *to, const void *from) {
    store->be->copy(store->be, STREAM_EVICT, to, from, store->slot_bytes);
    store->be->event_record(store->be, store->copied, STREAM_EVICT);
}

int offload_put(OffloadStore *store, int bundle, const void *from, Error *err) {
    int place = offload_find_(store, -1, bundle, err);
    if (place < 0) return -1;
    store->bundle[place] = bundle;
    offload_copy_(store, store->memory + place * store->slot_bytes, from);
    return 0;
}

int offload_get(OffloadStore *store, int bundle, void *to, Error *err) {
    int place = offload_find_(store, bundle, bundle, err);
    if (place < 0) return -1;
    store->bundle[place] = -1;
    offload_copy_(store, to, store->memory + place * store->slot_bytes);
    return 0;
}

bool offload_done(OffloadStore *store) {
    return store->be->event_done(store->be, store->copied);
}
