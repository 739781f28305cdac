// The makers against the best that is possible: an exhaustive search proves the least idle time for small p and m, and
// no schedule may be worse where its formula says that it is optimal, nor better, which would be a fault of the
// simulator.
#include "schedule/kinds.h"
#include "schedule/optimal.h"
#include "schedule/simulate.h"
#include "unit.h"

#include <string.h>

TEST(the_search_finds_the_proved_optima) {
    static const struct {
        OptimalAsk ask;
        int idle;
    } rows[] = {
        {{3, 6, 1, true, 2, false, 0}, 7},  {{3, 6, 1, true, 3, false, 0}, 2},   {{3, 6, 1, true, 6, false, 0}, 2},
        {{4, 8, 1, true, 3, false, 0}, 7},  {{4, 8, 1, true, 4, false, 0}, 3},   {{5, 10, 1, true, 4, false, 0}, 7},
        {{5, 10, 1, true, 5, false, 0}, 4}, {{4, 8, 1, false, 3, false, 0}, 15}, {{4, 8, 1, false, 4, false, 0}, 9},
        {{4, 8, 1, false, 6, false, 0}, 9}, {{3, 6, 2, true, 2, false, 0}, 27},  {{3, 6, 2, true, 3, false, 0}, 16},
        {{3, 6, 2, true, 4, false, 0}, 5},  {{3, 6, 2, true, 5, false, 0}, 3},   {{3, 6, 2, true, 6, false, 0}, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int idle = optimal_idle(&rows[i].ask, 30);
        if (idle != rows[i].idle)
            fail_msg("p %d, %d slots: %d, not %d", rows[i].ask.stages, rows[i].ask.slots, idle, rows[i].idle);
    }
    OptimalAsk none = {3, 6, 2, true, 1, false, 0};
    assert_int_equal(optimal_idle(&none, 40), OPTIMAL_NONE);
}

// Idle units of the fullest stage, F, I and W of a chunk taking one each.
static int idle_of(const Schedule *schedule) {
    double one[32], two[32];
    for (int i = 0; i < 32; i++) one[i] = 1, two[i] = 2;
    SimulateCosts costs = {.forward = one, .backward = two, .input = one, .weight = one};
    Error err = {0};
    Timeline *timeline = simulate_run(schedule, &costs, &err);
    if (timeline == NULL) fail_msg("%s", err.text);
    int idle = (int)(timeline->makespan + 0.5) - 3 * schedule->microbatches * schedule->chunks;
    timeline_free(timeline);
    return idle;
}

// By how many units a schedule is worse than the best with its slots and placement.
static int excess_idle(const char *name, ScheduleSpec spec) {
    const ScheduleKind *kind = &schedule_kinds[schedule_kind_index(name)];
    Error err = {0};
    Schedule *schedule = schedule_make(kind, &spec, &err);
    if (schedule == NULL) fail_msg("%s", err.text);
    OptimalAsk ask = {spec.stages,     spec.microbatches, schedule->chunks,
                      schedule->split, schedule->slots,   .loop = schedule->placement == PLACEMENT_LOOP,
                      .most_states = 0};
    int idle = idle_of(schedule), best = optimal_idle(&ask, idle);
    if (best < 0) fail_msg("%s on %d stages is better than the best: %d", name, spec.stages, idle);
    schedule_free(schedule);
    return idle - best;
}

// 1F1B with complete backwards, ZB-H1 with split ones and p slots, V-Half and ZB-V in a V, interleaved in a loop are
// optimal. GIS does W at once; doing it later would save one W on all stages but one.
TEST(schedules_are_the_best_with_their_slots_or_near_it) {
    static const struct {
        const char *name;
        ScheduleSpec spec;
        int excess;
    } rows[] = {
        {"1f1b", {.stages = 2, .microbatches = 4}, 0},
        {"1f1b", {.stages = 3, .microbatches = 6}, 0},
        {"1f1b", {.stages = 4, .microbatches = 8}, 0},
        {"zb-d", {.stages = 2, .microbatches = 4, .delay = SCHEDULE_DELAY_MOST}, 0},
        {"zb-d", {.stages = 3, .microbatches = 6, .delay = SCHEDULE_DELAY_MOST}, 0},
        {"zb-d", {.stages = 4, .microbatches = 8, .delay = SCHEDULE_DELAY_MOST}, 0},
        {"zb-d", {.stages = 5, .microbatches = 7, .delay = SCHEDULE_DELAY_MOST}, 0},
        {"v-half", {.stages = 2, .microbatches = 6}, 0},
        {"v-half", {.stages = 3, .microbatches = 6}, 0},
        {"v-half", {.stages = 4, .microbatches = 8}, 0},
        {"zb-v", {.stages = 2, .microbatches = 6}, 0},
        {"zb-v", {.stages = 3, .microbatches = 6}, 0},
        {"interleaved", {.stages = 2, .microbatches = 6}, 0},
        {"interleaved", {.stages = 2, .microbatches = 4, .chunks = 4}, 0},
        {"interleaved", {.stages = 3, .microbatches = 6}, 0},
        {"gis", {.stages = 2, .microbatches = 4}, 1},
        {"gis", {.stages = 3, .microbatches = 6}, 2},
        {"gis", {.stages = 3, .microbatches = 6, .group = 2}, 2},
        {"v-min", {.stages = 3, .microbatches = 6}, 0},
        {"v-min", {.stages = 4, .microbatches = 8}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(excess_idle(rows[i].name, rows[i].spec), rows[i].excess);
}
