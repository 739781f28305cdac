// A search's answers in addition to its best: limits that exclude a better one, the smallest world that suffices, and
// the smallest change to the given configuration that brings most of the gain, and how much a choice may be regretted.
#pragma once

#include "search.h"

// Finds the misfit that is faster than the best (or any, if nothing fits) and lacks the least memory. step: its
// seconds. false: not found.
bool answer_next_better(const SearchSpace *space, const SearchResult *result, Candidate *misfit, double *step,
                        Error *err);

// Finds the reason why a misfit's fullest stage is too full: the category of memory of which it has more than the other
// stages, if it would fit without that, else its largest category. Writes "head, of which the other stages have 3.1 GiB
// less" into `text`, and returns it; an empty text if the misfit has no schedule.
enum { ANSWER_TEXT = 128 };
char *answer_reason(const SearchSpace *space, const Candidate *misfit, char text[ANSWER_TEXT]);

// Returns the bytes that the fullest rank of a misfit lacks.
int64_t answer_lacks(const Candidate *misfit);

// Finds the fewest ranks on which the model fits with one sequence a microbatch and everything evicted or recomputed,
// as far as -o leaves that open. -1 with err.
int answer_smallest_world(const SearchSpace *space, SmallestWorld *world, Error *err);

// Forecasts the given configuration in this world; its data ranks fill the world if possible. possible: false if they
// cannot, or if a run would refuse it.
int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err);

// Finds, among the candidates that were found and whose step is at most `step`, the one with the fewest changes; of
// several the fastest. false: not found.
bool answer_cheapest(const SearchResult *result, const Config *given, double step, Candidate *cheapest);

// Which candidate is the fastest depends on figures of the hardware that nobody knows exactly. The assumptions that
// robust.c makes about them, in words.
extern const char robust_assumptions[];

// Plans the best, the front, the ten best and the fastest up to thirty again, with every assumption, and fills in their
// `robust`: the largest fraction by which the step is longer than that of the fastest of them with the same assumption.
// A candidate that no longer fits, or takes more than twice as long, has 1. -1 with err.
int robust_find(const SearchSpace *space, SearchResult *result, Error *err);
