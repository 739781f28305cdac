// Further answers of a search, after the best configuration. Each answer evaluates a few candidates that the search
// skipped; bounds limit their number.
#include "answers.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/heap.h"
#include "bound.h"
#include "config/config_schema.h"
#include "plan/foreign.h"
#include "plan/verdict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- limits that exclude a better layout

// Returns whether misfit a is examined before b: it lacks less memory, or as much and has `all` set, or comes first.
static bool misfit_before_(const void *misfits, int64_t a, int64_t b) {
    const Candidate *one = (const Candidate *)misfits + a, *other = (const Candidate *)misfits + b;
    if (one->forecast.lacks != other->forecast.lacks) return one->forecast.lacks < other->forecast.lacks;
    if (one->all != other->all) return one->all;
    return one->order != other->order ? one->order < other->order : a < b;
}

static void misfits_push_(Heap *waiting, CandidateList *misfits, const Candidate *misfit) {
    xpush(misfits->items, misfits->count, *misfit);
    heap_push(waiting, misfits->items, misfits->count - 1);
}

// Replaces the misfits at the top of the heap that stand for several candidates (`all`) with those candidates. -1 with
// err.
static int open_misfits_(const SearchSpace *space, double most, Heap *waiting, CandidateList *misfits, Error *err) {
    enum { BATCH = 16 };
    CandidateList opened[BATCH];
    Candidate batch[BATCH];
    Error errors[BATCH] = {{0}};
    int count = 0, status = 0;
    while (count < BATCH && waiting->count > 0 && misfits->items[waiting->indices[0]].all)
        batch[count++] = misfits->items[heap_pop(waiting, misfits->items)];
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) search_open_misfit(space, &batch[i], most, &opened[i], &errors[i]);
    for (int i = 0; i < count; i++) {
        if (errors[i].code != 0 && status == 0) status = error_set(err, errors[i].code, "%s", errors[i].text);
        for (int64_t k = 0; k < opened[i].count; k++) misfits_push_(waiting, misfits, &opened[i].items[k]);
        free(opened[i].items);
    }
    return status;
}

bool answer_next_better(const SearchSpace *space, const SearchResult *result, Candidate *misfit, double *step,
                        Error *err) {
    enum { MOST_LOOKS = 256 };
    static const double LEAST_GAIN = 0.99; // a smaller gain is within the plan's error
    double best = result->best >= 0 ? result->found.items[result->fastest].forecast.time.step * LEAST_GAIN : 0;
    CandidateList misfits = {0};
    Heap waiting = {.before = misfit_before_};
    Config config = *space->keys.base;
    bool found = false;
    for (int64_t i = 0; i < result->misfits.count; i++)
        if (best == 0 || result->misfits.items[i].bound <= best)
            misfits_push_(&waiting, &misfits, &result->misfits.items[i]);
    for (int looks = 0; looks < MOST_LOOKS && !found && waiting.count > 0;) {
        if (misfits.items[waiting.indices[0]].all) {
            if (open_misfits_(space, best > 0 ? best : INFINITY, &waiting, &misfits, err) != 0) break;
            continue;
        }
        Candidate next = misfits.items[heap_pop(&waiting, misfits.items)];
        Forecast forecast;
        if (!space_set(space, &next.forecast.layout, &config)) continue;
        if (planner_forecast_within(space->planner, &config, best > 0 ? best : INFINITY, &forecast, err) != 0) break;
        found = forecast.possible && (best == 0 || (forecast.time.known && forecast.time.step < best));
        *misfit = next;
        *step = forecast.time.step;
        looks++;
    }
    free_all(misfits.items, waiting.indices);
    return found;
}

char *answer_reason(const SearchSpace *space, const Candidate *misfit, char text[ANSWER_TEXT]) {
    Config config;
    Error ignored = {0};
    char bytes[32];
    text[0] = '\0';
    if (!space_config(space, &misfit->forecast.layout, &config)) return text;
    ScheduleLoan loan = planner_borrow(space->planner, &config, &ignored);
    if (loan.schedule == NULL) return text;
    Plan plan = planner_plan(space->planner, &config, loan.schedule);
    // c: the category in which the fullest stage exceeds the average of the other stages most.
    int stage = misfit->forecast.fullest, c = 0, largest = 0;
    const PlanStage *fullest = &plan.stage[stage];
    double surplus = 0;
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        double others = 0, own = (double)fullest->memory.bytes[i];
        for (int s = 0; s < plan.stages; s++)
            if (s != stage) others += (double)plan.stage[s].memory.bytes[i] / (plan.stages - 1);
        if (plan.stages > 1 && own - others > surplus) c = i, surplus = own - others;
        if (fullest->memory.bytes[i] > fullest->memory.bytes[largest]) largest = i;
    }
    if (surplus > 0 && surplus >= misfit->forecast.lacks)
        snprintf(text, ANSWER_TEXT, "%s, %s more than the average of the other stages", memory_name((MemoryCategory)c),
                 grid_bytes((int64_t)surplus, bytes));
    else
        snprintf(text, ANSWER_TEXT, "the largest part is %s, %s", memory_name((MemoryCategory)largest),
                 grid_bytes(fullest->memory.bytes[largest], bytes));
    plan_free(&plan);
    schedule_cache_return(&loan);
    return text;
}

// ---------------------------------------------------------------- the user's layout

int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err) {
    Error ignored = {0};
    memset(forecast, 0, sizeof *forecast);
    *given = *space->keys.asked;
    int64_t part = given->parallel.pipeline * given->parallel.tensor * given->parallel.context;
    if (space->keys.world % part != 0) return 0;
    given->parallel.data = space->keys.world / part;
    if (given->program != 0 && foreign_take(given, foreign_row(given->program)->word, false, &ignored) != 0) return 0;
    // Decides the keys that are left open, as --plan does.
    Log quiet = {.program = "", .rank = -1, .stage = -1, .level = LOG_QUIET};
    if (config_check(given, &ignored) != 0) return 0;
    if (verdict_resolve(given, space->planner->model, &quiet, &ignored) != 0) return 0; // no schedule fits
    // Sets split_backward back to auto if it was auto and is now off. layout_distance counts auto as on for a schedule
    // that always splits, else as off. So a schedule that always splits does not count as a change of split_backward.
    bool open = space->keys.base->schedule.split_backward == SPLIT_AUTO && given->schedule.split_backward == SPLIT_OFF;
    if (open) given->schedule.split_backward = SPLIT_AUTO;
    return planner_forecast_run(space->planner, given, forecast, err);
}

// ---------------------------------------------------------------- the cheapest change

bool answer_cheapest(const SearchResult *result, const Config *given, double step, Candidate *cheapest) {
    static const LayoutMask ALL_KEYS = ~(LayoutMask)0;
    RunLayout from = layout_of(given);
    int least = INT32_MAX;
    bool survives = result->found.items[result->best].fails == DOUBTS; // the best
    for (int64_t i = 0; i < result->found.count; i++) {
        const Candidate *found = &result->found.items[i];
        int changes = layout_distance(&from, &found->forecast.layout, ALL_KEYS);
        double own = found->forecast.time.step;
        if (survives && !(found->robust >= 0 && found->fails == DOUBTS)) continue;
        if (own > step || changes > least || (changes == least && own >= cheapest->forecast.time.step)) continue;
        least = changes;
        *cheapest = *found;
    }
    return least < INT32_MAX;
}
