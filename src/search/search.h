// The best configurations of a model for a number of ranks: best-first over the candidates of space.h, by the bounds of
// bound.h. Every figure comes from the planner, so --plan prints the same figures for a configuration.
//
// Results depend neither on the number of threads nor on timing: candidates are evaluated in batches of a fixed size,
// in parallel within a batch, and the results of a batch are used only from the next batch on.
#pragma once

#include "plan/unsure.h"
#include "plan/space.h"

#include <signal.h>

// A candidate and its forecast. If it evicts, its slots and load_ahead are numbers, not auto.
typedef struct Candidate {
    Forecast forecast; // forecast of the layout
    double bound;      // lower bound of the step, if the candidate does not fit
    int64_t order;     // order of discovery; breaks ties
    double robust;     // worst regret over the doubts of plan/unsure.h; NAN: not planned again
    int fails;         // set with `robust`: a doubt that it fails; DOUBTS: it survives all (robust_find)
    bool all;          // true: no candidate of this shape, schedule and layers fits; each lacks at least forecast.lacks
    bool division;     // true, with `all`: no other candidate of this division fits either
} Candidate;

typedef struct CandidateList {
    Candidate *items;
    int64_t count;
} CandidateList;

enum { SEARCH_BEST = 10 };

typedef struct SearchResult {
    CandidateList found;   // candidates that fit and were simulated, in order of discovery
    CandidateList misfits; // candidates that do not fit
    int best;              // index into found: simplest of class 0, then (robust_find) simplest survivor; -1: none
    int tightest;          // index into found: the fastest that does not survive; -1: none, or unknown
    Unsure unsure;         // doubts of the best, set by robust_find
    int fastest;           // index into found: the shortest step; -1: nothing fits
    int64_t alike;         // other candidates of class 0
    int ten[SEARCH_BEST];  // indices into found: the fastest of each cut, micro-batch size and schedule, best first
    int ten_count;
    int *front; // indices into found, fastest first, each with less memory than the previous one; see SEARCH_SLOWER
    int front_count;
    int64_t evaluated; // configurations tried, including those that a bound excluded
    int64_t simulated; // configurations whose step was simulated
    int64_t divisions; // ways to divide model and batch over the ranks
    double seconds;
    bool stopped; // the search was stopped before it was complete
} SearchResult;

// SEARCH_SLOWER: longest step on the front, relative to the fastest step. SEARCH_ALIKE: longest step, relative to the
// fastest, that counts as equally fast, because a plan cannot tell such steps apart.
#define SEARCH_SLOWER 1.10
#define SEARCH_ALIKE  1.01

// Returns the class of a candidate: 0 if its step is less than 1 % longer than the fastest step. Each further class
// begins 1 % above the start of the previous class.
int search_class(const SearchResult *result, const Forecast *found);

// Returns whether candidate a is simpler than b. The criteria, in this order: no eviction, fewer stages, neither slices
// nor context ranks, the earlier word of schedule.recompute, more free memory, no recomputed layer, and the order of
// discovery.
bool search_plainer(const Candidate *a, const Candidate *b);

typedef struct SearchOptions {
    bool exhaustive;                   // prune nothing: for tests
    const volatile sig_atomic_t *stop; // nonzero ends the search early; may be NULL
    void (*progress)(void *argument, const SearchResult *result, double bound); // after every batch; may be NULL
    void *argument;
} SearchOptions;

// Expands a misfit that has `all` set into its candidates; into none if each takes longer than `most`. Instead of as
// many layers as needed to fit, they recompute none or all. The caller frees opened->items. -1 with err.
int search_open_misfit(const SearchSpace *space, const Candidate *misfit, double most, CandidateList *opened,
                       Error *err);

// Runs the search. -1 with err; call search_free in either case.
int search_run(SearchResult *result, const SearchSpace *space, const SearchOptions *options, Error *err);
void search_free(SearchResult *result);
