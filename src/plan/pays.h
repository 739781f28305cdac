// Finds which techniques shorten a step among given forecasts: zero bubble, interleaving, slices, evictions.
#pragma once

#include "planner.h"

// How a layout reduces idle time or memory. A layout that evicts counts only as one of the last two kinds.
typedef enum PaysWay {
    PAYS_PLAIN,
    PAYS_INTERLEAVED,
    PAYS_ZERO_BUBBLE,
    PAYS_SLICES,
    PAYS_PARTNER,
    PAYS_HOST,
    PAYS_WAYS
} PaysWay;
PaysWay pays_way(const RunLayout *layout);

// Prints "schedule?": for each kind of schedule, by how much the fastest forecast that fits and uses it takes longer or
// less than `own`; for evictions, than the fastest without evictions. bpipe: also prints "BPipe?", for evictions to the
// partner, which "schedule?" then leaves out. named: what to call `own` if its schedule is from a file, else NULL.
// nothing: text for a technique without forecasts. found: `count` forecasts, each `stride` bytes after the one before.
void pays_print(const Forecast *found, size_t stride, int64_t count, const Forecast *own, const char *named, bool bpipe,
                const char *nothing, FILE *file);
