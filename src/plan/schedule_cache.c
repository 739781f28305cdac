// A hash table that only grows, up to a limit of entries and bytes. A schedule that would exceed a limit is not kept,
// and is freed on return.
#include "schedule_cache.h"
#include "layout.h"
#include "plan.h"

#include "base/alloc.h"
#include "base/memo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1 << 14, MOST_BYTES = 512 << 20 };

// Everything that a list of actions depends on. Compared as bytes, so it has no gaps.
typedef struct ListKey {
    RunLayout layout; // result of layout_list
    int32_t microbatches;
} ListKey;
_Static_assert(sizeof(ListKey) == sizeof(RunLayout) + sizeof(int32_t), "a ListKey has no gaps");

typedef struct Entry {
    ListKey key;
    Schedule *schedule; // NULL: the entry is free
} Entry;

struct ScheduleCache {
    pthread_mutex_t lock;
    Entry *entries;
    int64_t count, bytes;
    Memo *least; // config_min_slots
};

ScheduleCache *schedule_cache_create(void) {
    ScheduleCache *cache = xcalloc(1, sizeof *cache);
    pthread_mutex_init(&cache->lock, NULL);
    cache->entries = xcalloc(ENTRIES, sizeof *cache->entries);
    cache->least = memo_create(2 * sizeof(RunLayout));
    return cache;
}

void schedule_cache_free(ScheduleCache *cache) {
    if (cache == NULL) return;
    for (int i = 0; i < ENTRIES; i++) schedule_free(cache->entries[i].schedule);
    memo_free(cache->least);
    pthread_mutex_destroy(&cache->lock);
    free_all(cache->entries, cache);
}

// Returns the entry of a key, or the free entry for it.
static Entry *entry_of_(ScheduleCache *cache, const ListKey *key) {
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 1469598103934665603u; // FNV-1a
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    Entry *entry = &cache->entries[hash % ENTRIES];
    while (entry->schedule != NULL && memcmp(&entry->key, key, sizeof *key) != 0)
        entry = entry + 1 < cache->entries + ENTRIES ? entry + 1 : cache->entries;
    return entry;
}

static int64_t bytes_of_(const Schedule *schedule) {
    int64_t bytes = 0;
    for (int s = 0; s < schedule->stages; s++) bytes += schedule->stage[s].count * (int64_t)sizeof(Action);
    return bytes;
}

ScheduleLoan schedule_cache_borrow(ScheduleCache *cache, const Config *config, int64_t microbatches, Error *err) {
    RunLayout layout = layout_of(config);
    ListKey key = {layout_list(&layout), (int32_t)microbatches};
    ScheduleLoan loan = {0};
    if (cache != NULL) {
        pthread_mutex_lock(&cache->lock);
        loan.schedule = entry_of_(cache, &key)->schedule;
        pthread_mutex_unlock(&cache->lock);
    }
    if (loan.schedule != NULL) return loan;
    loan.schedule = loan.own = plan_schedule_with(config, microbatches, err);
    if (cache == NULL || loan.own == NULL) return loan;
    pthread_mutex_lock(&cache->lock);
    Entry *entry = entry_of_(cache, &key);
    // Another thread may have added this schedule meanwhile. Then this copy stays in loan.own and is freed on return.
    if (entry->schedule == NULL && cache->count < ENTRIES / 2 && cache->bytes + bytes_of_(loan.own) <= MOST_BYTES) {
        *entry = (Entry){key, loan.own};
        cache->count++;
        cache->bytes += bytes_of_(loan.own);
        loan.own = NULL;
    }
    pthread_mutex_unlock(&cache->lock);
    return loan;
}

int schedule_cache_least_slots(ScheduleCache *cache, const Config *config) {
    RunLayout layout = layout_of(config);
    int least;
    layout.slots = layout.load_ahead = 0;
    RunLayout key[2] = {layout_list(&layout)}; // an even number of integers
    key[1].slots = (int32_t)config_microbatches(config);
    if (cache != NULL && memo_find(cache->least, key, &least)) return least;
    least = config_min_slots(config);
    if (cache != NULL) memo_keep(cache->least, key, &least, sizeof least);
    return least;
}

void schedule_cache_return(ScheduleLoan *loan) {
    schedule_free(loan->own);
    *loan = (ScheduleLoan){0};
}
