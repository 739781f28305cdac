// Schedules that only tests make, by name.
#pragma once

#include "schedule/kinds.h"

#include <string.h>

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
    Schedule *base = schedule_1f1b(stages, microbatches, err);
    Schedule *schedule = base == NULL ? NULL : bpipe_balance(base, slots, EVICT_TO_PEER, 1, err);
    schedule_free(base);
    return schedule;
}
