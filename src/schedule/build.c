// Building blocks of schedules: the growing list that every maker fills, and what a finished list says about slots. Own
// slots are counted without regard to evictions and then cut to the bound, so that a stage that evicts nothing gets
// exactly what it uses.
#include "build.h"

#include <stdlib.h>
#include <string.h>

void list_push(ActionList *list, Action action) {
    if (list->failed) return;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        Action *actions = realloc(list->actions, (size_t)capacity * sizeof *actions);
        list->failed = actions == NULL;
        if (list->failed) return;
        list->actions = actions;
        list->capacity = capacity;
    }
    list->actions[list->count++] = action;
}

void list_compute(ActionList *list, ActionKind kind, int chunk, int microbatch) {
    list_push(list, (Action){kind, microbatch, chunk, SCHEDULE_NO_PEER});
}

int list_finish(ActionList *list, StageSchedule *stage, Error *err) {
    free(stage->actions);
    stage->actions = list->actions;
    stage->count = list->count;
    return list->failed ? error_set(err, EXIT_FAILED, "no memory for a schedule of this size") : 0;
}

Schedule *schedule_new(const char *name, int stages, int microbatches, Error *err) {
    Schedule *schedule = calloc(1, sizeof *schedule);
    StageSchedule *stage = calloc((size_t)stages, sizeof *stage);
    if (schedule == NULL || stage == NULL) {
        free(schedule);
        free(stage);
        error_set(err, EXIT_FAILED, "no memory for a schedule of %d stages", stages);
        return NULL;
    }
    snprintf(schedule->name, sizeof schedule->name, "%s", name);
    schedule->stages = stages;
    schedule->chunks = 1;
    schedule->placement = PLACEMENT_LOOP;
    schedule->microbatches = microbatches;
    schedule->edge_buffers = SCHEDULE_EDGE_BUFFERS;
    schedule->forward_only = strcmp(name, "forward") == 0;
    schedule->stage = stage;
    return schedule;
}

void schedule_free(Schedule *schedule) {
    if (schedule == NULL) return;
    for (int s = 0; s < schedule->stages; s++) free(schedule->stage[s].actions);
    free(schedule->stage);
    free(schedule);
}

bool action_computes(ActionKind kind) {
    return kind == ACTION_FORWARD || kind == ACTION_BACKWARD || kind == ACTION_INPUT || kind == ACTION_WEIGHT;
}

int schedule_virtual(const Schedule *schedule, int stage, int chunk) {
    bool back = schedule->placement == PLACEMENT_V && chunk % 2 == 1;
    return chunk * schedule->stages + (back ? schedule->stages - 1 - stage : stage);
}

void schedule_home(const Schedule *schedule, int virtual_stage, int *stage, int *chunk) {
    int at = virtual_stage % schedule->stages;
    *chunk = virtual_stage / schedule->stages;
    *stage = schedule->placement == PLACEMENT_V && *chunk % 2 == 1 ? schedule->stages - 1 - at : at;
}

// What one walk over a list tells: the most bundles between their F and the B or W that frees their slot, the most that
// the partner has here, and whether a backward is split.
typedef struct ListCounts {
    int own, lent;
    bool split;
} ListCounts;

static ListCounts list_counts_(const StageSchedule *stage) {
    ListCounts most = {0};
    int own = 0, lent = 0;
    for (int64_t i = 0; i < stage->count; i++) {
        ActionKind kind = stage->actions[i].kind;
        own += (kind == ACTION_FORWARD) - (kind == ACTION_BACKWARD || kind == ACTION_WEIGHT);
        lent += (kind == ACTION_ACCEPT) - (kind == ACTION_RETURN);
        if (own > most.own) most.own = own;
        if (lent > most.lent) most.lent = lent;
        most.split |= kind == ACTION_INPUT || kind == ACTION_WEIGHT;
    }
    return most;
}

int schedule_in_flight(const StageSchedule *stage) {
    return list_counts_(stage).own;
}

void schedule_finish(Schedule *schedule, int slots) {
    schedule->slots = slots;
    schedule->split = false;
    for (int s = 0; s < schedule->stages; s++) {
        StageSchedule *stage = &schedule->stage[s];
        ListCounts counts = list_counts_(stage);
        stage->lent_slots = counts.lent;
        stage->own_slots = schedule->forward_only ? 1 : counts.own;
        schedule->split = schedule->split || counts.split;
        if (slots > 0 && stage->own_slots > slots - stage->lent_slots) stage->own_slots = slots - stage->lent_slots;
        if (slots == 0 && stage->own_slots > schedule->slots) schedule->slots = stage->own_slots;
    }
}
