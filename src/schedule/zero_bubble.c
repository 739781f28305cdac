// Zero-bubble schedules (Qi et al., ICLR 2024), which split backwards so that a stage can do W while it would wait for
// I.
//
// zb-d is 1F1B with every W moved back by d = min(s, delay) microbatches on stage s. delay 0 is 1F1B with split
// backwards; delay p-1 is ZB-H1, where every stage keeps p bundles. Each microbatch of delay costs a slot on the later
// stages and takes one W off the bubble.
//
// zb-v places two chunks in a V, so that the first and the last virtual stage share a stage, which can go from its
// forward to its backward at once. All stages keep 2p chunk bundles.
#include "build.h"
#include "makers.h"

static int zb_d_stage_(const ScheduleSpec *spec, int s, StageSchedule *stage, Error *err) {
    ActionList list = {0};
    int m = spec->microbatches, warm_up = spec->stages - s, late = s < spec->delay ? s : spec->delay;
    for (int i = 0; i < warm_up; i++) list_compute(&list, ACTION_FORWARD, 0, i);
    for (int i = 0; i < m; i++) {
        list_compute(&list, ACTION_INPUT, 0, i);
        if (i >= late) list_compute(&list, ACTION_WEIGHT, 0, i - late);
        if (i + warm_up < m) list_compute(&list, ACTION_FORWARD, 0, i + warm_up);
    }
    for (int i = m - late; i < m; i++) list_compute(&list, ACTION_WEIGHT, 0, i);
    return list_finish(&list, stage, err);
}

Schedule *make_zb_d(const ScheduleSpec *spec, Error *err) {
    Schedule *schedule = schedule_new("zb-d", spec->stages, spec->microbatches, err);
    for (int s = 0; schedule != NULL && s < spec->stages; s++) {
        if (zb_d_stage_(spec, s, &schedule->stage[s], err) == 0) continue;
        schedule_free(schedule);
        return NULL;
    }
    if (schedule != NULL) schedule_finish(schedule, 0);
    return schedule;
}

// A list in which every action is the next microbatch of its kind and chunk.
typedef struct Counting {
    ActionList list;
    int microbatches;
    int next[3][2]; // [F, I, W][chunk]
} Counting;

static void next_(Counting *counting, ActionKind kind, int chunk) {
    int *next = &counting->next[kind == ACTION_FORWARD ? 0 : kind == ACTION_INPUT ? 1 : 2][chunk];
    if (*next < counting->microbatches) list_compute(&counting->list, kind, chunk, *next);
    ++*next;
}

static void next_backward_(Counting *counting, int chunk) {
    next_(counting, ACTION_INPUT, chunk);
    next_(counting, ACTION_WEIGHT, chunk);
}

// Counts are for n >= 2p-1 microbatches; those that do not exist are left out.
static int zb_v_stage_(const ScheduleSpec *spec, int s, StageSchedule *stage, Error *err) {
    int p = spec->stages, m = spec->microbatches, n = m > 2 * p - 1 ? m : 2 * p - 1;
    Counting counting = {.microbatches = m};
    const int *forwards = counting.next[0], *weights = counting.next[2];
    for (int i = 0; i < 2 * (p - s) - 1; i++) next_(&counting, ACTION_FORWARD, 0);
    for (int i = 0; i < s; i++) {
        next_(&counting, ACTION_FORWARD, 1);
        next_(&counting, ACTION_FORWARD, 0);
    }
    for (int i = 0; i < p - s; i++) {
        next_(&counting, ACTION_FORWARD, 1);
        next_backward_(&counting, 1);
    }
    while (forwards[1] < forwards[0] || forwards[0] < n) {
        if (forwards[0] < n) next_(&counting, ACTION_FORWARD, 0);
        next_backward_(&counting, 0);
        next_(&counting, ACTION_FORWARD, 1);
        next_backward_(&counting, 1);
    }
    for (int i = 0; i < s; i++) {
        next_(&counting, ACTION_INPUT, 0);
        next_(&counting, ACTION_INPUT, 1);
    }
    for (int i = 0; i < p - s; i++) next_backward_(&counting, 0);
    while (weights[1] < n) next_(&counting, ACTION_WEIGHT, 1);
    while (weights[0] < n) next_(&counting, ACTION_WEIGHT, 0);
    return list_finish(&counting.list, stage, err);
}

Schedule *make_zb_v(const ScheduleSpec *spec, Error *err) {
    Schedule *schedule = schedule_new("zb-v", spec->stages, spec->microbatches, err);
    if (schedule == NULL) return NULL;
    schedule->chunks = 2;
    schedule->placement = PLACEMENT_V;
    for (int s = 0; s < spec->stages; s++) {
        if (zb_v_stage_(spec, s, &schedule->stage[s], err) == 0) continue;
        schedule_free(schedule);
        return NULL;
    }
    schedule_finish(schedule, 0);
    return schedule;
}
