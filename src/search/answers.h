// Further answers of a search: the memory that a faster configuration lacks, the smallest change to the given
// configuration that brings most of the gain, and the regret of the candidates.
#pragma once

#include "search.h"

// Finds the misfit that lacks the least memory, among the misfits that are faster than the fastest candidate (or all
// misfits, if nothing fits). *step: seconds per step. Returns false if no such misfit is found.
bool answer_next_better(const SearchSpace *space, const SearchResult *result, Candidate *misfit, double *step,
                        Error *err);

// Finds the reason why a misfit's fullest stage is too full. This is the category of memory in which the stage exceeds
// the average of the other stages most. If the stage would not fit even without this excess, the reason is its largest
// category. Writes "head, 3.1 GiB more than the average of the other stages" into `text`, and returns `text`. The text
// is empty if the misfit has no schedule.
enum { ANSWER_TEXT = 128 };
char *answer_reason(const SearchSpace *space, const Candidate *misfit, char text[ANSWER_TEXT]);

// Forecasts the given configuration in this world, with as many data ranks as fill the world. forecast->possible: false
// if no number of data ranks fills it, or if a run would refuse the configuration. -1 with err.
int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err);

// Finds the candidate with the fewest changes among the found candidates with a step of at most `step` seconds. If
// several have equally few changes, finds the fastest of them. Returns false if there is no such candidate.
bool answer_cheapest(const SearchResult *result, const Config *given, double step, Candidate *cheapest);

// Plans the best, the front, the ten best and the fastest forty candidates again with every doubt of plan/unsure.h. A
// candidate's regret with a doubt is the fraction by which its step is longer than the fastest step with that doubt.
// Sets `robust`, the largest regret, and `fails`; then chooses `best` and `tightest` again and sets `unsure`. A
// candidate survives if it fits with 4 GiB more in reserve, and has no regret above 5 % with slower products, half the
// network and tensor collectives that are not overlapped. -1 with err.
int robust_find(const SearchSpace *space, SearchResult *result, Error *err);
