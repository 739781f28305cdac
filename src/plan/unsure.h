// What a planned step is unsure of: the same configuration, planned again with one figure that is not known exactly
// changed. Each doubt is a row of a table in unsure.c.
#pragma once

#include "base/json_out.h"
#include "planner.h"

typedef enum Doubt { DOUBT_PRODUCTS, DOUBT_APART, DOUBT_NETWORK, DOUBT_HALF, DOUBT_RESERVE, DOUBTS } Doubt;

// Planners with the figures of each doubt. They share the lists and the backend of the planner that they were made of.
typedef struct Doubters {
    Planner planner[DOUBTS];
} Doubters;

void doubters_make(Doubters *doubters, const Planner *planner);
void doubters_free(Doubters *doubters);

// A configuration's seconds per step with each doubt; INFINITY: it does not fit. Where a doubt does not apply (without
// tensor ranks, for example), these are the planned seconds.
typedef struct Unsure {
    bool applies[DOUBTS];
    double step[DOUBTS];
    bool skipped; // nothing was planned again, since that takes too long
    bool least;   // a step is longer than its `worth`, and was not planned to its end
} Unsure;

// Plans a configuration of which nothing is `auto` with each doubt. forecast: what was planned for it. worth: seconds
// per step; a longer step need not be known, and may be `worth` seconds in the result. NULL: no limit. The configuration
// is changed, and is at the end what it was. -1 with err.
int unsure_find(Unsure *unsure, const Doubters *doubters, Config *config, const Forecast *forecast,
                const double worth[DOUBTS], Error *err);

// Returns the words of a doubt, "4 GiB more", or `brief` one word, "memory".
const char *unsure_words(int doubt, bool brief);

// Prints "products at 0.85: +17 %; ...; 4 GiB more: does not fit". step: the planned seconds.
void unsure_print(const Unsure *unsure, double step, FILE *file);

// Writes "unsure":[{"what","step_ratio"} or {"what","fits":false}, ...].
void unsure_write_json(const Unsure *unsure, double step, JsonOut *out);
