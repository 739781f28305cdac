// Interleaved 1F1B (Narayanan et al., SC 2021) and GIS, generalized interleaving (PipeOffload, Wan et al., 2025). Both
// take the microbatches in groups of g: all of a group on chunk 0, then all of it on chunk 1, and so on; backwards go
// in the opposite order. They differ in the number of forwards before the first backward:
//
//   interleaved   (v-1)g + 2(p-1-s)    g = p, whole backwards
//   gis           (v-1)g + (p-1-s)     ceil(p/2) <= g <= p, split backwards, W right after I
//
// After those, forwards and backwards alternate, so a stage keeps one bundle more than that. GIS keeps fewer because a
// gradient leaves after I, which takes about as long as a forward.
#include "kinds.h"

#include "base/units.h"

// Returns chunk and microbatch of the k-th forward: consecutive groups of g, the last one possibly shorter. With g = 2
// and two chunks: F0.0 F1.0 F0.1 F1.1, then F2.0 F3.0 F2.1 F3.1, where F1.0 is microbatch 1 on chunk 0.
static Action forward_at_(const ScheduleSpec *spec, int k) {
    int group = k / (spec->group * spec->chunks), first = group * spec->group;
    int size = min_int(spec->microbatches - first, spec->group), within = k - first * spec->chunks;
    return (Action){ACTION_FORWARD, first + within % size, within / size, SCHEDULE_NO_PEER};
}

// Writes one stage. drain: forwards in the warm-up for each later stage.
static void write_groups_(const ScheduleSpec *spec, int s, int drain, bool split, ActionList *list) {
    int all = spec->microbatches * spec->chunks;
    int warm_up = min_int((spec->chunks - 1) * spec->group + drain * (spec->stages - 1 - s), all);
    for (int k = 0; k < warm_up; k++) list_push(list, forward_at_(spec, k));
    for (int k = 0; k < all; k++) {
        if (warm_up + k < all) list_push(list, forward_at_(spec, warm_up + k));
        Action forward = forward_at_(spec, k);
        int chunk = spec->chunks - 1 - forward.chunk; // backwards pass the chunks in the opposite order
        list_compute(list, split ? ACTION_INPUT : ACTION_BACKWARD, chunk, forward.microbatch);
        if (split) list_compute(list, ACTION_WEIGHT, chunk, forward.microbatch);
    }
}

void interleaved_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    write_groups_(spec, s, 2, false, list);
}

void gis_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    write_groups_(spec, s, 1, true, list);
}
