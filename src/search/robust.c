// Chooses the best candidate by the sensitivity of its plan. The top candidates are planned again with every doubt of
// plan/unsure.h.
#include "answers.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

// A candidate, and its steps under every doubt.
typedef struct Again {
    Candidate *candidate;
    Unsure unsure;
    int status;
    Error err;
} Again;

// Returns, for one doubt, the fraction by which a candidate takes longer than the fastest one; 1: it does not fit, or
// takes at least twice as long. holding: compares only with candidates that fit with 4 GiB more in reserve.
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

// Plans candidates from `from` on with each doubt, up to steps of `worth` seconds (unsure_find). -1 with err.
static int plan_again_(const SearchSpace *space, const Doubters *doubters, Again *again, int from, int count,
                       const double worth[DOUBTS], Error *err) {
#pragma omp parallel
    {
        Config config = *space->keys.base;
#pragma omp for schedule(dynamic, 1)
        for (int i = from; i < count; i++) {
            const Forecast *forecast = &again[i].candidate->forecast;
            space_set(space, &forecast->layout, &config);
            again[i].status = unsure_find(&again[i].unsure, doubters, &config, forecast, worth, &again[i].err);
        }
    }
    for (int i = from; i < count; i++)
        if (again[i].status != 0) return error_set(err, again[i].err.code, "%s", again[i].err.text);
    return 0;
}

static const double MOST_REGRET_ = 0.05;

// Fills in which doubts candidate `of` survives, and its worst regret.
static void judge_(const Again *of, const Again *all, int count) {
    of->candidate->robust = 0;
    of->candidate->fails = DOUBTS;
    for (int doubt = 0; doubt < DOUBTS; doubt++) {
        double regret = regret_(of, all, count, doubt, true);
        of->candidate->robust = fmax(of->candidate->robust, regret_(of, all, count, doubt, false));
        // A tenth of the network is a fault of the network, not an error of the plan.
        bool fits = isfinite(of->unsure.step[doubt]);
        if (!fits || (doubt != DOUBT_NETWORK && regret > MOST_REGRET_)) of->candidate->fails = doubt;
    }
}

// As in search_run, steps are compared without hardware.step_overhead_ms.
int robust_find(const SearchSpace *space, SearchResult *result, Error *err) {
    enum { FASTEST = 40 };
    int64_t all = result->found.count;
    int count = 0, shown;
    double worth[DOUBTS];
    if (result->best < 0) return 0;
    // 1. The candidates to plan again: the best, the front and the ten best, which answers show; then the fastest.
    Candidate *items = result->found.items, **sorted = xmalloc((size_t)all * sizeof *sorted);
    Again *again = xcalloc((size_t)(1 + result->front_count + result->ten_count + FASTEST), sizeof *again);
    choose_(again, &count, &items[result->best]);
    for (int i = 0; i < result->front_count; i++) choose_(again, &count, &items[result->front[i]]);
    for (int i = 0; i < result->ten_count; i++) choose_(again, &count, &items[result->ten[i]]);
    shown = count;
    for (int64_t i = 0; i < all; i++) sorted[i] = &items[i];
    qsort(sorted, (size_t)all, sizeof *sorted, compare_steps_);
    for (int64_t i = 0; i < all && i < FASTEST; i++) choose_(again, &count, sorted[i]);
    free(sorted);
    Doubters doubters;
    Planner bare = *space->planner;
    bare.hardware.step = 0;
    doubters_make(&doubters, &bare);
    for (int64_t i = 0; i < all; i++) items[i].forecast.time.step -= space->planner->hardware.step;
    // 2. Plan the shown candidates, then the others up to the step above which a candidate cannot matter with a doubt:
    // its regret is too large, and it is not the fastest. With a tenth of the network, only the latter counts.
    int status = plan_again_(space, &doubters, again, 0, shown, NULL, err);
    for (int doubt = 0; doubt < DOUBTS; doubt++) {
        double least[2] = {INFINITY, INFINITY}; // least step of all candidates; of candidates that fit with 4 GiB more
        for (int i = 0; i < shown; i++) {
            double step = again[i].unsure.step[doubt];
            least[0] = fmin(least[0], step);
            if (isfinite(again[i].unsure.step[DOUBT_RESERVE])) least[1] = fmin(least[1], step);
        }
        worth[doubt] = doubt == DOUBT_NETWORK ? least[0] : 1.001 * (1 + MOST_REGRET_) * least[1];
    }
    if (status == 0) status = plan_again_(space, &doubters, again, shown, count, worth, err);
    // 3. The best is the simplest of the candidates that survive and are within 1 % of the fastest. Without such a
    // candidate, the best stays.
    const Candidate *best = NULL, *tight = NULL;
    for (int i = 0; i < count && status == 0; i++) {
        const Candidate *at = again[i].candidate;
        judge_(&again[i], again, count);
        if (at->fails < DOUBTS) {
            if (tight == NULL || at->forecast.time.step < tight->forecast.time.step) tight = at;
        } else if (search_class(result, &at->forecast) == 0 && (best == NULL || search_plainer(at, best))) {
            best = at;
        }
    }
    if (best != NULL) result->best = (int)(best - items);
    if (tight != NULL) result->tightest = (int)(tight - items);
    // 4. The figures shown for the best and the tightest are planned without a limit.
    for (int i = 0; i < count && status == 0; i++) {
        int64_t index = again[i].candidate - items;
        if (again[i].unsure.least && (index == result->best || index == result->tightest)) {
            status = plan_again_(space, &doubters, again, i, i + 1, NULL, err);
            judge_(&again[i], again, count);
        }
        if (index == result->best) result->unsure = again[i].unsure;
    }
    for (int64_t i = 0; i < all; i++) items[i].forecast.time.step += space->planner->hardware.step;
    for (int doubt = 0; doubt < DOUBTS; doubt++) result->unsure.step[doubt] += space->planner->hardware.step;
    doubters_free(&doubters);
    free(again);
    return status;
}
