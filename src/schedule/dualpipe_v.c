// DualPipeV (DeepSeek-AI, DualPipe, 2025), without running a forward and a backward at the same time: two chunks in a
// V, whole backwards in the steady phase, and split ones where a stage would otherwise wait: at the start because the
// gradient has to leave soon, at the end because W can wait. Needs at least 2p microbatches.
#include "build.h"
#include "makers.h"

#include <stdlib.h>

// A list in which every action is the next microbatch of its kind and chunk, and W takes the oldest that waits.
typedef struct Counted {
    ActionList list;
    int forwards[2], backwards[2]; // [chunk] done; backwards: B and I
    Action *waiting;               // [2*microbatches] I, in order; their W are due from `first` on
    int first, count;
} Counted;

static void forward_(Counted *counted, int chunk) {
    list_compute(&counted->list, ACTION_FORWARD, chunk, counted->forwards[chunk]++);
}

static void backward_(Counted *counted, int chunk) {
    list_compute(&counted->list, ACTION_BACKWARD, chunk, counted->backwards[chunk]++);
}

static void input_(Counted *counted, int chunk) {
    Action action = {ACTION_INPUT, counted->backwards[chunk]++, chunk, SCHEDULE_NO_PEER};
    list_push(&counted->list, action);
    counted->waiting[counted->count++] = action;
}

static void weight_(Counted *counted) {
    Action action = counted->waiting[counted->first++];
    action.kind = ACTION_WEIGHT;
    list_push(&counted->list, action);
}

// Writes the six phases of stage s.
static void fill_(Counted *counted, int p, int m, int s) {
    int later = p - s - 1;
    for (int i = 0; i < 2 * later; i++) forward_(counted, 0);
    for (int i = 0; i < s + 1; i++) {
        forward_(counted, 0);
        forward_(counted, 1);
    }
    for (int i = 0; i < later; i++) {
        input_(counted, 1);
        weight_(counted);
        forward_(counted, 1);
    }
    for (int i = 0; i < m - 2 * p + s + 1; i++) {
        forward_(counted, 0);
        backward_(counted, 1);
        forward_(counted, 1);
        backward_(counted, 0);
    }
    for (int i = 0; i < later; i++) {
        backward_(counted, 1);
        forward_(counted, 1);
        backward_(counted, 0);
    }
    // 2(s+1) backwards, chunks 1 and 0 in turn: the first half whole, the second half without their W.
    for (int i = 0; i < 2 * (s + 1); i++) {
        if (i < s + 1)
            backward_(counted, 1 - i % 2);
        else
            input_(counted, 1 - i % 2);
    }
    for (int i = 0; i < later; i++) {
        weight_(counted);
        input_(counted, 0);
    }
    while (counted->first < counted->count) weight_(counted);
}

static int dualpipe_v_stage_(const ScheduleSpec *spec, int s, StageSchedule *stage, Error *err) {
    Counted counted = {.waiting = malloc(2 * (size_t)spec->microbatches * sizeof(Action))};
    if (counted.waiting == NULL) return error_set(err, EXIT_FAILED, "no memory for a schedule of this size");
    fill_(&counted, spec->stages, spec->microbatches, s);
    free(counted.waiting);
    return list_finish(&counted.list, stage, err);
}

Schedule *make_dualpipe_v(const ScheduleSpec *spec, Error *err) {
    Schedule *schedule = schedule_new("dualpipe-v", spec->stages, spec->microbatches, err);
    if (schedule == NULL) return NULL;
    schedule->chunks = 2;
    schedule->placement = PLACEMENT_V;
    for (int s = 0; s < spec->stages; s++) {
        if (dualpipe_v_stage_(spec, s, &schedule->stage[s], err) == 0) continue;
        schedule_free(schedule);
        return NULL;
    }
    schedule_finish(schedule, 0);
    return schedule;
}
