// Which ways to shorten a step or to save memory pay, among forecasts: zero bubble, interleaving, slices, evictions.
#pragma once

#include "planner.h"

// Prints "schedule?": for each kind of schedule, by how much the fastest forecast that fits and uses it takes longer or
// less than `own`; for evictions, than the fastest that evicts nothing. bpipe: also prints "BPipe?", by evictions to
// the partner. nothing: what a way without forecasts is.
void pays_print(const Forecast *const *found, int64_t count, const Forecast *own, bool bpipe, const char *nothing,
                FILE *file);
