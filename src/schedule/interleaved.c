// Interleaved 1F1B (Narayanan et al., SC 2021) and GIS, generalized interleaving (PipeOffload, Wan et al., 2025). Both
// take the microbatches in groups of g: all of a group on chunk 0, then all of it on chunk 1, and so on; backwards go
// in the opposite order. They differ in the number of forwards before the first backward:
//
//   interleaved   (v-1)g + 2(p-1-s)    g = p, whole backwards
//   gis           (v-1)g + (p-1-s)     ceil(p/2) <= g <= p, split backwards, W right after I
//
// After those, forwards and backwards alternate, so a stage keeps one bundle more than that. GIS keeps fewer because a
// gradient leaves after I, which takes about as long as a forward.
#include "build.h"
#include "makers.h"

// Returns chunk and microbatch of the k-th forward: consecutive groups of g, the last one possibly shorter.
static Action forward_at_(const ScheduleSpec *spec, int k) {
    int group = k / (spec->group * spec->chunks), first = group * spec->group;
    int size = spec->microbatches - first < spec->group ? spec->microbatches - first : spec->group;
    int within = k - first * spec->chunks;
    return (Action){ACTION_FORWARD, first + within % size, within / size, SCHEDULE_NO_PEER};
}

static Action backward_at_(const ScheduleSpec *spec, int k) {
    Action action = forward_at_(spec, k);
    action.kind = ACTION_BACKWARD;
    action.chunk = spec->chunks - 1 - action.chunk;
    return action;
}

static int fill_stage_(const ScheduleSpec *spec, int warm_up, StageSchedule *stage, Error *err) {
    ActionList list = {0};
    int all = spec->microbatches * spec->chunks;
    if (warm_up > all) warm_up = all;
    for (int k = 0; k < warm_up; k++) list_push(&list, forward_at_(spec, k));
    for (int k = 0; k < all; k++) {
        if (warm_up + k < all) list_push(&list, forward_at_(spec, warm_up + k));
        list_push(&list, backward_at_(spec, k));
    }
    return list_finish(&list, stage, err);
}

// drain: forwards in the warm-up of a stage for each later stage.
static Schedule *make_groups_(const char *name, const ScheduleSpec *spec, int drain, Error *err) {
    Schedule *schedule = schedule_new(name, spec->stages, spec->microbatches, err);
    if (schedule == NULL) return NULL;
    schedule->chunks = spec->chunks;
    for (int s = 0; s < spec->stages; s++) {
        int warm_up = (spec->chunks - 1) * spec->group + drain * (spec->stages - 1 - s);
        if (fill_stage_(spec, warm_up, &schedule->stage[s], err) != 0) {
            schedule_free(schedule);
            return NULL;
        }
    }
    schedule_finish(schedule, 0);
    return schedule;
}

Schedule *make_interleaved(const ScheduleSpec *spec, Error *err) {
    return make_groups_("interleaved", spec, 2, err);
}

// The backward of a chunk on the last stage starts a whole group after its forward on the first one, so with groups
// longer than p/2 more messages than usual are in flight; with two buffers, a large p would hang.
static int gis_edge_buffers_(const ScheduleSpec *spec) {
    int messages = spec->group - spec->stages / 2 + 1;
    return ((messages > 4 ? messages : 4) + 1) / 2;
}

Schedule *make_gis(const ScheduleSpec *spec, Error *err) {
    Schedule *schedule = make_groups_("gis", spec, 1, err);
    if (schedule == NULL) return NULL;
    schedule->edge_buffers = gis_edge_buffers_(spec);
    if (schedule_split(schedule, err) == 0) return schedule;
    schedule_free(schedule);
    return NULL;
}
