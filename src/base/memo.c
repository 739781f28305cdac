// A hash table with open addressing, at most half full. A key and its value are one piece of memory.
#include "memo.h"

#include "alloc.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct Pair {
    uint64_t hash;
    size_t bytes; // bytes of the value
    char *pair;   // the key, then the value; NULL: the place is free
} Pair;

struct Memo {
    pthread_mutex_t lock;
    size_t size; // bytes of a key
    Pair *places;
    uint64_t count, all;
};

Memo *memo_create(size_t size) {
    Memo *memo = xcalloc(1, sizeof *memo);
    assert(size % sizeof(uint64_t) == 0);
    pthread_mutex_init(&memo->lock, NULL);
    memo->size = size;
    memo->all = 256;
    memo->places = xcalloc(memo->all, sizeof *memo->places);
    return memo;
}

void memo_free(Memo *memo) {
    if (memo == NULL) return;
    for (uint64_t i = 0; i < memo->all; i++) free(memo->places[i].pair);
    pthread_mutex_destroy(&memo->lock);
    free_all(memo->places, memo);
}

// Four words at a time, whose products do not wait for each other.
static uint64_t hash_(const void *key, size_t size) {
    enum { LANES = 4 };
    uint64_t lanes[LANES] = {1469598103934665603u, 2, 3, 4}, hash = 0, word;
    for (size_t i = 0; i < size; i += sizeof word) {
        uint64_t *lane = &lanes[i / sizeof word % LANES];
        memcpy(&word, (const char *)key + i, sizeof word);
        *lane = (*lane ^ word) * 1099511628211u, *lane ^= *lane >> 29;
    }
    for (int i = 0; i < LANES; i++) hash = (hash ^ lanes[i]) * 1099511628211u, hash ^= hash >> 29;
    return hash;
}

// Returns the place of a key, or the free place for it.
static Pair *place_(const Memo *memo, const void *key, uint64_t hash) {
    uint64_t at = hash % memo->all;
    while (memo->places[at].pair != NULL &&
           (memo->places[at].hash != hash || memcmp(memo->places[at].pair, key, memo->size) != 0))
        at = (at + 1) % memo->all;
    return &memo->places[at];
}

bool memo_find(Memo *memo, const void *key, void *value) {
    uint64_t hash = hash_(key, memo->size);
    pthread_mutex_lock(&memo->lock);
    const Pair *kept = place_(memo, key, hash);
    bool found = kept->pair != NULL;
    if (found) memcpy(value, kept->pair + memo->size, kept->bytes);
    pthread_mutex_unlock(&memo->lock);
    return found;
}

bool memo_keep(Memo *memo, const void *key, const void *value, size_t bytes) {
    uint64_t hash = hash_(key, memo->size);
    pthread_mutex_lock(&memo->lock);
    if (2 * memo->count >= memo->all) {
        Pair *old = memo->places;
        uint64_t all = memo->all;
        memo->all = 2 * all;
        memo->places = xcalloc(memo->all, sizeof *memo->places);
        for (uint64_t i = 0; i < all; i++)
            if (old[i].pair != NULL) *place_(memo, old[i].pair, old[i].hash) = old[i];
        free(old);
    }
    Pair *kept = place_(memo, key, hash);
    bool fresh = kept->pair == NULL;
    if (fresh) {
        *kept = (Pair){hash, bytes, xmalloc(memo->size + bytes)};
        memcpy(kept->pair, key, memo->size);
        memcpy(kept->pair + memo->size, value, bytes);
        memo->count++;
    }
    pthread_mutex_unlock(&memo->lock);
    return fresh;
}

void memo_each(Memo *memo, void (*visit)(void *value)) {
    for (uint64_t i = 0; i < memo->all; i++)
        if (memo->places[i].pair != NULL) visit(memo->places[i].pair + memo->size);
}
