// What a search answers in addition to its best: what forbids a better one, the smallest world that would do, and the
// smallest change to the given configuration that brings most of the gain.
#ifndef ANSWERS_H
#define ANSWERS_H

#include "search.h"

// Finds the misfit that is quicker than the best (or any, if nothing fits) and lacks the least memory. step: its
// seconds. false: there is none.
bool answer_next_better(const SearchSpace *space, const SearchResult *result, Misfit *misfit, double *step, Error *err);

// Finds what is too much on the fullest stage of a misfit: what it has more of than the others if it would fit without
// that, else what it has most of. Writes "head, of which the other stages have 3.1 GiB less" into `text`, and returns
// it.
enum { ANSWER_TEXT = 128 };
char *answer_reason(const SearchSpace *space, const Misfit *misfit, char text[ANSWER_TEXT]);

// The fewest ranks on which the model fits with one sequence a microbatch and everything evicted or recomputed, as far
// as -o leaves that open; ranks 0: none.
typedef struct SearchWorld {
    int64_t ranks, pipeline, tensor, data;
} SearchWorld;
int answer_smallest_world(const SearchSpace *space, SearchWorld *world, Error *err);

// Forecasts the given configuration in this world; its data ranks fill the world if possible. possible: false if they
// cannot, or if a run would refuse it.
int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err);

// Returns how many keys a candidate changes in the given configuration. Numbers that follow from auto do not count.
int answer_distance(const Config *given, const Candidate *candidate);

// Finds, among the candidates that fit and whose step is at most `step`, the one with the fewest changes; of several
// the quickest. false: there is none.
bool answer_cheapest(const SearchSpace *space, const SearchResult *result, const Config *given, double step,
                     Fit *cheapest);

// Writes the keys that differ as "-o KEY=VALUE ..." and returns how many. Keys without a meaning in `to` are left out.
int answer_changes(const Config *from, const Config *to, FILE *file);

#endif
