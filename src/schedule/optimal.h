// The least idle time that any schedule can have, by exhaustive search, for a few stages and microbatches: --optimum.
#pragma once

#include <stdbool.h>

typedef struct OptimalAsk {
    int stages, microbatches; // stages * chunks <= 10, microbatches <= 100
    int chunks;               // on each stage
    bool split;               // F, I and W of a chunk take one unit each; else F takes one and B two
    int slots;                // chunk bundles on each stage
    bool loop;                // where the chunks lie: in a loop, else in a V
    long most_states;         // gives up after so many; 0: searches to the end
} OptimalAsk;

enum { OPTIMAL_NONE = -1, OPTIMAL_TOO_LARGE = -2 };

// Returns the least number of units in which a stage is idle between the start of the first pass and the end of the
// last. OPTIMAL_NONE: more than `most`. OPTIMAL_TOO_LARGE: the search was given up, or the question is beyond its
// limits.
int optimal_idle(const OptimalAsk *ask, int most);
