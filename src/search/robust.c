// Chooses the best candidate by what its plan is unsure of. The candidates that a choice is between are planned again
// with every doubt of plan/unsure.h.
#include "answers.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

// A candidate that is planned again.
typedef struct Again {
    Candidate *candidate;
    Unsure unsure;
    int status;
    Error err;
} Again;

// Returns by which fraction a candidate takes longer than the fastest one, both with a doubt; 1: it does not fit, or
// takes twice as long or longer. holding: only compared with those that fit with 4 GiB more.
static double regret_(const Again *of, const Again *all, int count, int doubt, bool holding) {
    double least = INFINITY;
    for (int i = 0; i < count; i++)
        if (!holding || isfinite(all[i].unsure.step[DOUBT_RESERVE])) least = fmin(least, all[i].unsure.step[doubt]);
    return isinf(least) ? 0 : fmin(of->unsure.step[doubt] / least - 1, 1);
}

static void choose_(Again *again, int *count, Candidate *candidate) {
    for (int i = 0; i < *count; i++)
        if (again[i].candidate == candidate) return;
    again[(*count)++].candidate = candidate;
}

static int compare_steps_(const void *a, const void *b) {
    const Candidate *one = *(Candidate *const *)a, *other = *(Candidate *const *)b;
    double more = one->forecast.time.step - other->forecast.time.step;
    return more != 0 ? (more > 0 ? 1 : -1) : one->order > other->order ? 1 : -1;
}

// Lists the candidates to plan again: the best, the front, the ten best and the fastest. The caller frees the list.
static Again *chosen_(SearchResult *result, int *count) {
    enum { FASTEST = 40 };
    int64_t all = result->found.count;
    Candidate *items = result->found.items, **sorted = xmalloc((size_t)all * sizeof *sorted);
    Again *again = xcalloc((size_t)(1 + result->front_count + result->ten_count + FASTEST), sizeof *again);
    *count = 0;
    choose_(again, count, &items[result->best]);
    for (int i = 0; i < result->front_count; i++) choose_(again, count, &items[result->front[i]]);
    for (int i = 0; i < result->ten_count; i++) choose_(again, count, &items[result->ten[i]]);
    for (int64_t i = 0; i < all; i++) sorted[i] = &items[i];
    qsort(sorted, (size_t)all, sizeof *sorted, compare_steps_);
    for (int64_t i = 0; i < all && i < FASTEST; i++) choose_(again, count, sorted[i]);
    free(sorted);
    return again;
}

// Chooses the best: the plainest of the candidates that survive and are within 1 % of the fastest. If there are none,
// the best stays.
static void choose_best_(SearchResult *result, const Again *again, int count) {
    const Candidate *items = result->found.items, *best = NULL, *tight = NULL;
    for (int i = 0; i < count; i++) {
        const Candidate *at = again[i].candidate;
        if (at->fails < DOUBTS) {
            if (tight == NULL || at->forecast.time.step < tight->forecast.time.step) tight = at;
        } else if (search_class(result, &at->forecast) == 0 && (best == NULL || search_plainer(at, best))) {
            best = at;
        }
    }
    if (best != NULL) result->best = (int)(best - items);
    if (tight != NULL) result->tightest = (int)(tight - items);
    for (int i = 0; i < count; i++)
        if (again[i].candidate == &items[result->best]) result->unsure = again[i].unsure;
}

// As in search_run, steps are compared without hardware.step_overhead_ms.
int robust_find(const SearchSpace *space, SearchResult *result, Error *err) {
    static const double MOST_REGRET = 0.05;
    int count, status = 0;
    if (result->best < 0) return 0;
    Again *again = chosen_(result, &count);
    Doubters doubters;
    Planner bare = *space->planner;
    bare.hardware.step = 0;
    doubters_make(&doubters, &bare);
    for (int64_t i = 0; i < result->found.count; i++)
        result->found.items[i].forecast.time.step -= space->planner->hardware.step;
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) {
        const Forecast *forecast = &again[i].candidate->forecast;
        Config config;
        space_config(space, &forecast->layout, &config);
        again[i].status = unsure_find(&again[i].unsure, &doubters, &config, forecast, &again[i].err);
    }
    for (int i = 0; i < count && status == 0; i++)
        if (again[i].status != 0) status = error_set(err, again[i].err.code, "%s", again[i].err.text);
    for (int i = 0; i < count && status == 0; i++) {
        again[i].candidate->robust = 0;
        again[i].candidate->fails = DOUBTS;
        for (int doubt = 0; doubt < DOUBTS; doubt++) {
            double regret = regret_(&again[i], again, count, doubt, true);
            again[i].candidate->robust =
                fmax(again[i].candidate->robust, regret_(&again[i], again, count, doubt, false));
            // A tenth of the network is a fault of the network, not an error of the plan.
            bool fits = isfinite(again[i].unsure.step[doubt]);
            if (!fits || (doubt != DOUBT_NETWORK && regret > MOST_REGRET)) again[i].candidate->fails = doubt;
        }
    }
    if (status == 0) choose_best_(result, again, count);
    for (int64_t i = 0; i < result->found.count; i++)
        result->found.items[i].forecast.time.step += space->planner->hardware.step;
    for (int doubt = 0; doubt < DOUBTS; doubt++) result->unsure.step[doubt] += space->planner->hardware.step;
    doubters_free(&doubters);
    free(again);
    return status;
}
