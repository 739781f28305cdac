// The sensitivity of a planned step: the same configuration is planned again with one uncertain figure changed. Each
// doubt is a row of a table in unsure.c.
#pragma once

#include "base/json_out.h"
#include "planner.h"

typedef enum Doubt { DOUBT_PRODUCTS, DOUBT_APART, DOUBT_NETWORK, DOUBT_HALF, DOUBT_RESERVE, DOUBTS } Doubt;

// One planner per doubt, with the changed figure. They share the lists and the backend of the original planner.
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
    bool skipped; // nothing was planned again, because it would take too long
    bool least;   // the step exceeds `worth`, so its planning was stopped
} Unsure;

// Plans a configuration without `auto` keys under each doubt. forecast: its own forecast. worth: seconds per step; a
// longer step may be reported as `worth`. NULL: no limit. The configuration is changed meanwhile and restored at the
// end. -1 with err.
int unsure_find(Unsure *unsure, const Doubters *doubters, Config *config, const Forecast *forecast,
                const double worth[DOUBTS], Error *err);

// Returns why a candidate does not survive a doubt, "too large if 4 GiB more are needed"; brief: one word, "memory".
const char *unsure_words(int doubt, bool brief);

// Prints "step with products at 0.85 of their rate: +17 %; ...; if 4 GiB more are needed: does not fit". step: the
// planned seconds.
void unsure_print(const Unsure *unsure, double step, FILE *file);

// Writes "unsure":[{"what","step_ratio"} or {"what","fits":false}, ...].
void unsure_write_json(const Unsure *unsure, double step, JsonOut *out);
