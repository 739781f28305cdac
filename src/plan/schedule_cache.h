// Schedules that were made and proved, kept for the next configuration with the same list. A list depends on stages,
// microbatches and the keys of `schedule`, but not on tensor and data ranks or the size of a microbatch, so a search
// over those needs the same few lists again and again. Several threads may share one.
#pragma once

#include "config/config.h"

typedef struct ScheduleCache ScheduleCache;

ScheduleCache *schedule_cache_create(void);
void schedule_cache_free(ScheduleCache *cache);

// A list on loan. `own` is the same one where it is not kept, else NULL.
typedef struct ScheduleLoan {
    const Schedule *schedule; // NULL: it could not be made
    Schedule *own;
} ScheduleLoan;

// Borrows the list of a configuration with so many microbatches (plan_schedule_with), which is made if the cache has no
// schedule; err is from making it. cache may be NULL. Returned with schedule_cache_return.
ScheduleLoan schedule_cache_borrow(ScheduleCache *cache, const Config *config, int64_t microbatches, Error *err);
void schedule_cache_return(ScheduleLoan *loan);
