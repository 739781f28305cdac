#include "offload.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { EVICTOR, ACCEPTOR }; // ranks of a pair

// The acceptor's word: how many slots it lends, where, and what the first bytes say.
typedef struct Offer {
    int64_t count, slot_bytes;
    uint64_t token;
    char host[40]; // of the running system: a loan is worth nothing elsewhere
    Loan loan;
} Offer;

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

static void host_identity_(char *text, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(text, 0, size);
    if (file == NULL) return;
    if (fgets(text, (int)size, file) == NULL) text[0] = '\0';
    fclose(file);
}

static uint64_t read_token_(Backend *be, const void *from) {
    uint64_t token = 0;
    be->download(be, &token, from, sizeof token);
    return token;
}

static void write_token_(Backend *be, void *to, uint64_t token) {
    be->upload(be, to, &token, sizeof token);
}

static int lend_(Backend *be, const SlotPool *lent, Comm *control, bool *alone, Error *err) {
    Offer offer;
    Error unable = {0};
    memset(&offer, 0, sizeof offer);
    offer.count = lent->count;
    offer.slot_bytes = lent->slot_bytes;
    if (lent->count > 0 && be->lend(be, lent->memory, lent->count * lent->slot_bytes, &offer.loan, &unable) == 0) {
        host_identity_(offer.host, sizeof offer.host);
        offer.token = 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)lent->memory ^ (uint64_t)(clock_seconds() * 1e9);
        write_token_(be, lent->memory, offer.token);
    }
    int64_t mapped = 0, confirmed = 0;
    if (offload_send_(control, &offer, sizeof offer, err) != 0) return -1;
    if (lent->count == 0) return 0;
    if (offload_receive_(control, &mapped, sizeof mapped, err) != 0) return -1;
    if (mapped) confirmed = read_token_(be, lent->memory) == ~offer.token;
    write_token_(be, lent->memory, 0);
    *alone = confirmed != 0;
    return offload_send_(control, &confirmed, sizeof confirmed, err);
}

// The acceptor's slots in this process, written to, or NULL with err.
static void *offload_map_(Backend *be, const Offer *offer, Error *err) {
    char host[sizeof offer->host];
    host_identity_(host, sizeof host);
    if (offer->host[0] == '\0' || memcmp(host, offer->host, sizeof host) != 0) {
        error_set(err, EXIT_FAILED, offer->host[0] == '\0' ? "its slots cannot be lent" : "it is on another host");
        return NULL;
    }
    int64_t bytes = offer->count * offer->slot_bytes;
    void *memory = be->borrow(be, &offer->loan, bytes, err);
    if (memory == NULL) return NULL;
    if (read_token_(be, memory) == offer->token) {
        write_token_(be, memory, ~offer->token);
        return memory;
    }
    be->give_back(be, memory, bytes);
    error_set(err, EXIT_FAILED, "its slots are mapped here, but not to the same memory");
    return NULL;
}

static int borrow_(OffloadStore *store, Backend *be, Comm *control, bool *alone, char why[256], Error *err) {
    Offer offer;
    Error unable = {0};
    if (offload_receive_(control, &offer, sizeof offer, err) != 0) return -1;
    if (offer.count == 0) return 0;
    fill_places_(store, be, offer.count, offer.slot_bytes);
    store->borrowed = true;
    store->memory = (char *)offload_map_(be, &offer, &unable);
    int64_t mapped = store->memory != NULL, confirmed = 0;
    if (offload_send_(control, &mapped, sizeof mapped, err) != 0 ||
        offload_receive_(control, &confirmed, sizeof confirmed, err) != 0)
        return -1;
    *alone = confirmed != 0;
    if (confirmed) return 0;
    snprintf(why, 256, "%.255s", mapped ? "what is written there does not arrive" : unable.text);
    offload_destroy(store);
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
