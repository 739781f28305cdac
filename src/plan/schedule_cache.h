// A cache of schedules, for the next configuration with the same schedule. A schedule depends on stages, microbatches
// and the keys of `schedule`, but not on tensor and data ranks or the size of a microbatch, so a search over those
// needs the same few schedules again and again. Several threads may share a cache.
#pragma once

#include "bpipe.h"
#include "config/config.h"

typedef struct ScheduleCache ScheduleCache;

ScheduleCache *schedule_cache_create(void);
void schedule_cache_free(ScheduleCache *cache);

// A borrowed schedule. own: the same schedule if the cache does not keep it, freed on return; else NULL.
typedef struct ScheduleLoan {
    const Schedule *schedule; // NULL: it could not be made
    Schedule *own;
} ScheduleLoan;

// Borrows a configuration's schedule for this number of microbatches. Makes it (plan_schedule_with) if the cache lacks
// it; if that fails, `schedule` is NULL, with err. cache may be NULL. Returned with schedule_cache_return.
ScheduleLoan schedule_cache_borrow(ScheduleCache *cache, const Config *config, int64_t microbatches, Error *err);
void schedule_cache_return(ScheduleLoan *loan);

// Returns config_min_slots. cache may be NULL.
int schedule_cache_least_slots(ScheduleCache *cache, const Config *config);
