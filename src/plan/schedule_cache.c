// Schedules by the layout that they depend on, up to a limit of bytes. A schedule that would exceed the limit is not
// kept, and is freed on return.
#include "schedule_cache.h"
#include "layout.h"
#include "plan.h"

#include "base/alloc.h"
#include "base/memo.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { MOST_BYTES = 512 << 20 };

struct ScheduleCache {
    Memo *lists; // Schedule *
    Memo *least; // config_min_slots
    atomic_llong bytes;
};

// Everything that a list of actions depends on: the layout, and the number of microbatches in microbatches.slots.
typedef struct ListKey {
    RunLayout layout, microbatches;
} ListKey;

static ListKey key_(const RunLayout *layout, int64_t microbatches) {
    return (ListKey){layout_list(layout), {.slots = (int32_t)microbatches}};
}

ScheduleCache *schedule_cache_create(void) {
    ScheduleCache *cache = xcalloc(1, sizeof *cache);
    cache->lists = memo_create(sizeof(ListKey));
    cache->least = memo_create(sizeof(ListKey));
    return cache;
}

static void free_list_(void *value) { schedule_free(*(Schedule **)value); }

void schedule_cache_free(ScheduleCache *cache) {
    if (cache == NULL) return;
    memo_each(cache->lists, free_list_);
    memo_free(cache->lists);
    memo_free(cache->least);
    free(cache);
}

ScheduleLoan schedule_cache_borrow(ScheduleCache *cache, const Config *config, int64_t microbatches, Error *err) {
    RunLayout layout = layout_of(config);
    ListKey key = key_(&layout, microbatches);
    Schedule *list;
    if (cache != NULL && memo_find(cache->lists, &key, &list)) return (ScheduleLoan){list, NULL};
    list = plan_schedule_with(config, microbatches, err);
    if (cache == NULL || list == NULL) return (ScheduleLoan){list, list};
    int64_t bytes = 0;
    for (int s = 0; s < list->stages; s++) bytes += list->stage[s].count * (int64_t)sizeof(Action);
    // If another thread has kept this schedule meanwhile, this copy is freed on return.
    bool kept = atomic_fetch_add(&cache->bytes, bytes) + bytes <= MOST_BYTES &&
                memo_keep(cache->lists, &key, &list, sizeof list);
    if (!kept) atomic_fetch_sub(&cache->bytes, bytes);
    return (ScheduleLoan){list, kept ? NULL : list};
}

int schedule_cache_least_slots(ScheduleCache *cache, const Config *config) {
    RunLayout layout = layout_of(config);
    int least;
    layout.slots = layout.load_ahead = 0;
    ListKey key = key_(&layout, config_microbatches(config));
    if (cache != NULL && memo_find(cache->least, &key, &least)) return least;
    least = config_min_slots(config);
    if (cache != NULL) memo_keep(cache->least, &key, &least, sizeof least);
    return least;
}

void schedule_cache_return(ScheduleLoan *loan) {
    schedule_free(loan->own);
    *loan = (ScheduleLoan){0};
}
