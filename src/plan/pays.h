// Finds which techniques shorten a step among given forecasts: zero bubble, interleaving, slices, evictions.
#pragma once

#include "planner.h"

// Prints "schedule?": for each kind of schedule, by how much the fastest forecast that fits and uses it takes longer or
// less than `own`; for evictions, than the fastest without evictions. bpipe: also prints "BPipe?", for evictions to the
// partner, which "schedule?" then leaves out. named: what to call `own` if its schedule is from a file, else NULL.
// nothing: text for a technique without forecasts.
void pays_print(const Forecast *const *found, int64_t count, const Forecast *own, const char *named, bool bpipe,
                const char *nothing, FILE *file);
