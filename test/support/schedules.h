// Schedules that only tests make, by name, and their simulations.
#pragma once

#include "schedule/kinds.h"
#include "schedule/simulate.h"
#include "unit.h"

#include <string.h>

UNIT_END(Schedule, schedule_free)
UNIT_END(Timeline, timeline_free)
#define AutoSchedule UNIT_ENDS(schedule_free) Schedule
#define AutoTimeline UNIT_ENDS(timeline_free) Timeline

static inline int schedule_kind_index(const char *name) {
    int kind = schedule_kind_count - 1;
    while (kind >= 0 && strcmp(schedule_kinds[kind].name, name) != 0) kind--;
    return kind;
}

static inline Schedule *schedule_gpipe(int stages, int microbatches, Error *err) {
    ScheduleSpec spec = {.stages = stages, .microbatches = microbatches};
    return schedule_make(&schedule_kinds[schedule_kind_index("gpipe")], &spec, err);
}

static inline Schedule *schedule_forward(int stages, int microbatches) {
    Schedule like = {.stages = stages, .chunks = 1, .slices = 1, .edge_buffers = SCHEDULE_EDGE_BUFFERS};
    return schedule_forward_like(&like, microbatches);
}

static inline Schedule *schedule_bpipe(int stages, int microbatches, int slots, Error *err) {
    AutoSchedule *base = schedule_1f1b(stages, microbatches, err);
    Schedule *schedule = base == NULL ? NULL : bpipe_balance(base, slots, EVICT_TO_PEER, 1, err);
    return schedule;
}

static inline Schedule *schedule_parsed(const char *text) { return assert_made(schedule_parse(text, &unit_error)); }

static inline char *written_schedule(const Schedule *schedule) {
    return unit_written(assert_int_equal(schedule_write(schedule, file), 0));
}

static inline void schedule_assert_sound(const Schedule *schedule) {
    Error err = {0};
    if (schedule_check(schedule, &err) == 0) return;
    char *text = written_schedule(schedule);
    print_error("%s\n%s\n", err.text, schedule->stages <= 8 && schedule->microbatches <= 32 ? text : "");
    free(text);
    fail();
}

static inline int64_t schedule_actions(const Schedule *schedule, int stage, ActionKind kind) {
    int64_t count = 0;
    const StageSchedule *list = &schedule->stage[stage];
    for (int64_t i = 0; i < list->count; i++) count += list->actions[i].kind == kind;
    return count;
}

// Returns a simulation's timeline. Fails if there is none, or more slots are in use at a time than the schedule has.
static inline Timeline *schedule_in_its_slots(const Schedule *schedule, Timeline *timeline) {
    if (timeline == NULL) fail_msg("%s", unit_error.text);
    for (int s = 0; s < schedule->stages; s++) {
        assert_true(timeline->stage[s].own_peak <= schedule->stage[s].own_slots);
        assert_true(timeline->stage[s].lent_peak <= schedule->stage[s].lent_slots);
    }
    return timeline;
}

static inline Timeline *schedule_simulated(const Schedule *schedule, const SimulateCosts *costs) {
    return schedule_in_its_slots(schedule, simulate_run(schedule, costs, &unit_error));
}
