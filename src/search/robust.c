// The assumptions are rows of a table. Jitter is simulated: the durations of a short list's actions vary at random, and
// the plan's pipeline time is multiplied by the resulting factor.
#include "answers.h"

#include "base/alloc.h"
#include "base/random.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char robust_assumptions[] = "products at 0.6, 0.7 and 0.85 of the peak, half the network, twice the latency, 4 "
                                  "GiB more in reserve, and actions "
                                  "that vary by 5 % (mean and 95th percentile of 200 draws)";

// The figures that change; 0: unchanged.
typedef struct Assumption {
    double efficiency;       // efficiency of products
    double network, latency; // factors on the network's bandwidth and on the latency
    double reserve;          // GiB added to the reserve
} Assumption;

static const Assumption assumptions_[] = {{.efficiency = 0.60}, {.efficiency = 0.70}, {.efficiency = 0.85},
                                          {.network = 0.5},     {.latency = 2},       {.reserve = 4}};
// FEW draws tell for which candidates jitter may decide; these get DRAWS.
enum { PLANNED = sizeof assumptions_ / sizeof *assumptions_, ASSUMPTIONS = PLANNED + 2, AGAIN = 30 };
enum { FEW = 20, DRAWS = 200 };

// A candidate that is planned again.
typedef struct Again {
    Candidate *candidate;
    double step[ASSUMPTIONS]; // seconds; INFINITY: does not fit
    double drawn[1 + DRAWS];  // seconds of a short list, unvaried and by draw
    int draws;
    int status;
    Error err;
} Again;

static void assume_(Hardware *hardware, const Assumption *at) {
    Cost *cost = &hardware->cost;
    int64_t *memory = hardware->memory_bytes > 0 ? &hardware->memory_bytes : &hardware->host_bytes;
    if (at->efficiency > 0) cost->efficiency = at->efficiency;
    if (at->network > 0) cost->network *= at->network;
    if (at->latency > 0) cost->latency *= at->latency;
    if (*memory > 0) *memory = max_i64(*memory - (int64_t)(at->reserve * GIB), 1);
}

// ---------------------------------------------------------------- jitter

// Writes the duration of every action, varied by normally distributed numbers that depend on `draw`; draw 0: unvaried.
static void vary_(const Schedule *schedule, const SimulateCosts *costs, int draw, double **durations) {
    static const double JITTER = 0.05;
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            Action at = schedule->stage[s].actions[i];
            const double *of = at.kind == ACTION_FORWARD    ? costs->forward
                               : at.kind == ACTION_BACKWARD ? costs->backward
                               : at.kind == ACTION_INPUT    ? costs->input
                                                            : costs->weight;
            if (at.peer != SCHEDULE_NO_PEER) continue;
            double jitter = draw > 0 ? JITTER * (double)random_normal((uint64_t)draw, (uint64_t)s, (uint64_t)i) : 0;
            int of_all = (s * schedule->chunks + at.chunk) * schedule->slices + at.slice;
            durations[s][i] = of[of_all] * (1 + jitter);
        }
}

// Simulates the draws up to `draws`.
static int draw_jitter_(Again *again, const Schedule *schedule, const SimulateCosts *costs, int draws, Error *err) {
    double **durations = xcalloc((size_t)schedule->stages, sizeof *durations);
    SimulateCosts varied = *costs;
    varied.totals_only = true;
    varied.action = (const double *const *)durations;
    int draw = again->draws == 0 ? 0 : again->draws + 1, status = 0;
    for (int s = 0; s < schedule->stages; s++)
        durations[s] = xmalloc((size_t)schedule->stage[s].count * sizeof **durations);
    for (; draw <= draws && status == 0; draw++) {
        vary_(schedule, costs, draw, durations);
        Timeline *timeline = simulate_run(schedule, &varied, err);
        if (timeline == NULL) status = -1;
        else again->drawn[draw] = timeline->makespan;
        timeline_free(timeline);
    }
    for (int s = 0; s < schedule->stages; s++) free(durations[s]);
    free(durations);
    again->draws = draws;
    return status;
}

// Writes the steps with jitter: the pipeline takes as many times longer as a short list does, on average and at the
// 95th percentile.
static void take_draws_(Again *again) {
    const PlanTime *time = &again->candidate->forecast.time;
    double sorted[DRAWS], sum = 0, plain = again->drawn[0];
    int draws = again->draws;
    memcpy(sorted, again->drawn + 1, (size_t)draws * sizeof *sorted);
    qsort(sorted, (size_t)draws, sizeof *sorted, compare_doubles);
    for (int i = 0; i < draws; i++) sum += sorted[i];
    again->step[PLANNED] = time->step + (sum / draws / plain - 1) * time->pipeline;
    again->step[PLANNED + 1] = time->step + (sorted[draws * 95 / 100 - 1] / plain - 1) * time->pipeline;
}

// Simulates only a few rounds of microbatches, which are enough: a stage waits for its neighbours in every round.
static int jitter_(Again *again, const SearchSpace *space, int draws, Error *err) {
    const Planner *planner = space->planner;
    TimeSource source = planner_source(planner);
    Config config;
    space_config(space, &again->candidate->forecast.layout, &config);
    ScheduleLoan loan = schedule_cache_borrow(planner->lists, &config, config_fewer_microbatches(&config, 0), err);
    if (loan.schedule == NULL) return -1;
    Plan plan = planner_plan(planner, &config, loan.schedule);
    PlanCosts costs = {0};
    int status = plan_costs_make(&costs, &config, loan.schedule, &plan, &source, err);
    if (status == 0) status = draw_jitter_(again, loan.schedule, &costs.costs, draws, err);
    if (status == 0) take_draws_(again);
    plan_costs_free(&costs);
    plan_free(&plan);
    schedule_cache_return(&loan);
    return status;
}

// ---------------------------------------------------------------- regret

// Plans a candidate with each assumption; more in reserve only changes whether it fits. assumed: the planners.
static int plan_again_(Again *again, const SearchSpace *space, const Planner *assumed, Error *err) {
    Config config;
    space_config(space, &again->candidate->forecast.layout, &config);
    for (int i = 0; i < PLANNED; i++) {
        bool timed = assumptions_[i].reserve == 0;
        Forecast forecast;
        if (planner_forecast_config(&assumed[i], &config, timed, &forecast, err) != 0) return -1;
        again->step[i] = !forecast.fits ? INFINITY : timed ? forecast.time.step : again->candidate->forecast.time.step;
    }
    return jitter_(again, space, FEW, err);
}

// Returns the largest regret of a candidate with the assumptions first .. last.
static double regret_(const Again *of, const Again *all, int count, int first, int last) {
    double most = 0;
    for (int a = first; a <= last; a++) {
        double least = INFINITY;
        for (int i = 0; i < count; i++) least = fmin(least, all[i].step[a]);
        if (isfinite(least)) most = fmax(most, fmin(of->step[a] / least - 1, 1));
    }
    return most;
}

// Returns whether jitter may decide a candidate's regret, or that of others.
static bool jitter_decides_(const Again *of, const Again *all, int count) {
    static const double ERROR = 0.01; // of a regret by few draws
    double regret = regret_(of, all, count, PLANNED, ASSUMPTIONS - 1);
    return regret < ERROR || regret + ERROR > regret_(of, all, count, 0, PLANNED - 1);
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

// Lists the candidates to plan again. The caller frees the list.
static Again *chosen_(SearchResult *result, int *count) {
    int64_t all = result->found.count;
    Candidate *items = result->found.items, **sorted = xmalloc((size_t)all * sizeof *sorted);
    Again *again = xcalloc((size_t)(1 + result->front_count + result->ten_count + AGAIN), sizeof *again);
    *count = 0;
    choose_(again, count, &items[result->best]);
    for (int i = 0; i < result->front_count; i++) choose_(again, count, &items[result->front[i]]);
    for (int i = 0; i < result->ten_count; i++) choose_(again, count, &items[result->ten[i]]);
    for (int64_t i = 0; i < all; i++) sorted[i] = &items[i];
    qsort(sorted, (size_t)all, sizeof *sorted, compare_steps_);
    for (int64_t i = 0; i < all && i < AGAIN; i++) choose_(again, count, sorted[i]);
    free(sorted);
    return again;
}

int robust_find(const SearchSpace *space, SearchResult *result, Error *err) {
    int count, status = 0;
    if (result->best < 0) return 0;
    Again *again = chosen_(result, &count);
    bool *decides = xcalloc((size_t)count, sizeof *decides);
    Planner assumed[PLANNED];
    for (int i = 0; i < PLANNED; i++) {
        assumed[i] = *space->planner;
        assume_(&assumed[i].hardware, &assumptions_[i]);
        assumed[i].counted = counted_memo();
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) again[i].status = plan_again_(&again[i], space, assumed, &again[i].err);
    for (int i = 0; i < count; i++) decides[i] = jitter_decides_(&again[i], again, count);
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++)
        if (again[i].status == 0 && decides[i]) again[i].status = jitter_(&again[i], space, DRAWS, &again[i].err);
    for (int i = 0; i < count && status == 0; i++)
        if (again[i].status != 0) status = error_set(err, again[i].err.code, "%s", again[i].err.text);
    for (int i = 0; i < count; i++) again[i].candidate->robust = regret_(&again[i], again, count, 0, ASSUMPTIONS - 1);
    for (int i = 0; i < PLANNED; i++) memo_free(assumed[i].counted);
    free_all(again, decides);
    return status;
}
