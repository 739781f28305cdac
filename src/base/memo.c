// A hash table of lists. A key and its value are one piece of memory.
#include "memo.h"

#include "alloc.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LISTS = 1 << 16 }; // a large search keeps some 100,000 values

typedef struct Pair {
    struct Pair *next;
    uint64_t hash;
    size_t bytes; // bytes of the value
    char pair[];  // the key, then the value
} Pair;

struct Memo {
    pthread_mutex_t lock;
    size_t size;                // bytes of a key
    Pair *_Atomic lists[LISTS]; // a pair that is in its list does not change, so finding one needs no lock
};

Memo *memo_create(size_t size) {
    Memo *memo = xcalloc(1, sizeof *memo);
    assert(size % sizeof(uint64_t) == 0);
    pthread_mutex_init(&memo->lock, NULL);
    memo->size = size;
    return memo;
}

void memo_free(Memo *memo) {
    if (memo == NULL) return;
    for (int i = 0; i < LISTS; i++)
        for (Pair *pair = memo->lists[i], *next; pair != NULL; pair = next) {
            next = pair->next;
            free(pair);
        }
    pthread_mutex_destroy(&memo->lock);
    free(memo);
}

static inline uint64_t mix_(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 1099511628211u;
    return hash ^ hash >> 29;
}

// Three words at a time, whose products do not wait for each other; compilers would make vectors of four, whose
// products are slow.
static uint64_t hash_(const void *key, size_t size) {
    uint64_t a = 1469598103934665603u, b = 2, c = 3, words[3];
    size_t at = 0;
    for (; at + sizeof words <= size; at += sizeof words) {
        memcpy(words, (const char *)key + at, sizeof words);
        a = mix_(a, words[0]), b = mix_(b, words[1]), c = mix_(c, words[2]);
    }
    for (; at < size; at += sizeof *words) {
        memcpy(words, (const char *)key + at, sizeof *words);
        a = mix_(a, *words);
    }
    return mix_(mix_(a, b), c);
}

static Pair *find_(const Memo *memo, const void *key, uint64_t hash) {
    Pair *pair = memo->lists[hash % LISTS];
    while (pair != NULL && (pair->hash != hash || memcmp(pair->pair, key, memo->size) != 0)) pair = pair->next;
    return pair;
}

bool memo_find(Memo *memo, const void *key, void *value) {
    const Pair *kept = find_(memo, key, hash_(key, memo->size));
    if (kept != NULL) memcpy(value, kept->pair + memo->size, kept->bytes);
    return kept != NULL;
}

bool memo_keep(Memo *memo, const void *key, const void *value, size_t bytes) {
    uint64_t hash = hash_(key, memo->size);
    pthread_mutex_lock(&memo->lock);
    bool fresh = find_(memo, key, hash) == NULL;
    if (fresh) {
        Pair *kept = xmalloc(sizeof *kept + memo->size + bytes);
        *kept = (Pair){memo->lists[hash % LISTS], hash, bytes};
        memcpy(kept->pair, key, memo->size);
        memcpy(kept->pair + memo->size, value, bytes);
        memo->lists[hash % LISTS] = kept;
    }
    pthread_mutex_unlock(&memo->lock);
    return fresh;
}

void memo_each(Memo *memo, void (*visit)(void *value)) {
    for (int i = 0; i < LISTS; i++)
        for (Pair *pair = memo->lists[i]; pair != NULL; pair = pair->next) visit(pair->pair + memo->size);
}
