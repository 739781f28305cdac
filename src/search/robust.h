// How much a choice may be regretted: the fastest candidates are planned again with other assumptions about the
// hardware, since which of them is the fastest depends on figures that nobody knows exactly.
#pragma once

#include "search.h"

// The assumptions, in words.
extern const char robust_assumptions[];

// Plans the best, the front, the ten best and the fastest up to thirty again, with every assumption, and fills in their
// `robust`: the largest fraction by which the step is longer than that of the fastest of them with the same assumption.
// A candidate that no longer fits, or takes more than twice as long, has 1. -1 with err.
int robust_find(const SearchSpace *space, SearchResult *result, Error *err);
