// The best configurations of a model for a number of ranks: best-first over the candidates of space.h, by the bounds of
// bound.h. A figure comes from the planner alone, so it is what --plan says of the same configuration.
//
// Results depend neither on the number of threads nor on the time: candidates are evaluated in batches of a fixed size,
// in parallel within a batch, and what a batch found counts from the next one on.
#ifndef SEARCH_H
#define SEARCH_H

#include "space.h"

#include <signal.h>

// A candidate that fits, with the plan's figures for it. slots and load_ahead are numbers if something is evicted.
typedef struct Fit {
    Candidate candidate;
    double step, mfu, bubble; // seconds, fractions
    double compared;          // planner_compared_step
    int64_t peak_bytes;       // of the fullest rank
    int fullest;              // its stage
    int64_t order;            // in which candidates are met, for ties
} Fit;

// A candidate that does not fit.
typedef struct Misfit {
    Candidate candidate;
    double bound;   // of its step
    int64_t excess; // bytes that the fullest rank lacks
    int fullest;
    int64_t order;
    bool all; // none of the candidates with this shape, schedule and layers fits, and each lacks at least `excess`
} Misfit;

enum { SEARCH_BEST = 10 };

typedef struct SearchResult {
    Fit *found; // all that fit and were simulated, in the order in which they were met
    int64_t founds;
    Misfit *misfits;
    int64_t misfit_count;
    int best;             // index into found, by compared; -1: nothing fits
    int64_t ties;         // other candidates with the same step as the best
    int ten[SEARCH_BEST]; // the quickest of each cut, micro-batch size and schedule, best first
    int ten_count;
    int *front; // indices: no other candidate is both quicker and smaller; by step, up to SEARCH_SLOWER times the best
    int front_count;
    int64_t evaluated; // configurations whose bytes were counted
    int64_t simulated; // and whose step was simulated
    int64_t shapes;
    double seconds;
    bool stopped; // before it was complete
} SearchResult;

// How much slower than the best a configuration may be and still be on the front.
#define SEARCH_SLOWER 1.10

typedef struct SearchOptions {
    bool exhaustive;                   // prune nothing: for tests
    const volatile sig_atomic_t *stop; // ends the search early where it is set; may be NULL
    void (*progress)(void *argument, const SearchResult *result, double bound); // after every batch; may be NULL
    void *argument;
} SearchOptions;

// Replaces a misfit with `all` set by its candidates, those without recomputed layers: writes them into a list that the
// caller frees. -1 with err.
int search_open_misfit(const SearchSpace *space, const Misfit *misfit, Misfit **misfits, int64_t *count, Error *err);

// Searches. -1 with err; call search_free in either case.
int search_run(SearchResult *result, const SearchSpace *space, const SearchOptions *options, Error *err);
void search_free(SearchResult *result);

#endif
