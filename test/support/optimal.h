// The least idle time that any schedule can have, by exhaustive search, for a few stages and microbatches.
#ifndef OPTIMAL_H
#define OPTIMAL_H

#include <stdbool.h>

typedef struct OptimalAsk {
    int stages, microbatches; // stages * chunks <= 10, microbatches <= 100
    int chunks;               // on each stage
    bool split;               // F, I and W of a chunk take one unit each; else F takes one and B two
    int slots;                // chunk bundles on each stage
    bool loop;                // where the chunks lie: in a loop, else in a V
} OptimalAsk;

// Units in which a stage is idle between the start of the first pass and the end of the last, the least there is. -1
// where there is none up to `most`, or memory runs out. states: how many the search has seen; may be NULL.
int optimal_idle(const OptimalAsk *ask, int most, long *states);

#endif
