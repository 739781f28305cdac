// What a search has to say beside its best: what forbids a better one, the smallest world that would do, and how little
// of the given configuration has to change.
#ifndef ANSWERS_H
#define ANSWERS_H

#include "search.h"

// The misfit that is quicker than the best, or any where nothing fits, and lacks the least memory. step: its seconds.
// false: there is none.
bool answer_next_better(const SearchSpace *space, const SearchResult *result, Misfit *misfit, double *step, Error *err);

// What is too much on the fullest stage of a misfit: what it has more of than the others, where it would fit without
// that, else what it has most of. "head, of which the other stages have 3.1 GiB less". Writes it into `text`, and
// returns that.
enum { ANSWER_TEXT = 128 };
char *answer_reason(const SearchSpace *space, const Misfit *misfit, char text[ANSWER_TEXT]);

// The fewest ranks on which the model fits with a sequence a microbatch and everything evicted or recomputed, as far as
// -o leaves that open; ranks 0: none.
typedef struct SearchWorld {
    int64_t ranks, pipeline, tensor, data;
} SearchWorld;
int answer_smallest_world(const SearchSpace *space, SearchWorld *world, Error *err);

// The given configuration in this world: its data ranks fill the world where they can. possible: false where they
// cannot, or a run would refuse it.
int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err);

// How many keys a candidate changes in the given configuration. Numbers that follow from auto do not count.
int answer_distance(const Config *given, const Candidate *candidate);

// Of the candidates that fit and are at most `step` long, the one with the fewest changes; of several the quickest.
// false: there is none.
bool answer_cheapest(const SearchSpace *space, const SearchResult *result, const Config *given, double step,
                     Fit *cheapest);

// Writes the keys that differ as "-o KEY=VALUE ..." and returns how many. Keys without a meaning in `to` are left out.
int answer_changes(const Config *from, const Config *to, FILE *file);

#endif
