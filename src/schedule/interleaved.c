// Interleaved 1F1B (Narayanan et al., SC 2021) and GIS, generalized interleaving (PipeOffload, Wan et al., 2025). Both
// process the microbatches in groups of g: a group runs on chunk 0, then on chunk 1, and so on; backwards visit the
// chunks in the opposite order. They differ in the number of forwards before the first backward:
//
//   interleaved   (v-1)g + 2(p-1-s)    g = p, complete backwards
//   gis           (v-1)g + (p-1-s)     ceil(p/2) <= g <= p, split backwards, W right after I
//
// After this warm-up, forwards and backwards alternate, so a stage keeps one bundle more than its warm-up has forwards.
// GIS keeps fewer because a gradient leaves after I, which takes about as long as a forward.
//
// With n slices a group has all slices of ceil(p/n) microbatches, which is enough to keep every stage busy. The warm-up
// has n-1 more forwards, because the first backward is that of a microbatch's last slice.
#include "kinds.h"

#include "base/units.h"

// Returns the chunk of the k-th forward and sets *place to its place on this chunk. Groups are consecutive; the last
// group may be shorter. With groups of 2 and two chunks: F0.0 F1.0 F0.1 F1.1, then F2.0 F3.0 F2.1 F3.1, where F1.0 has
// place 1 on chunk 0.
static int forward_at_(const ScheduleSpec *spec, int k, int *place) {
    int of = spec->group * spec->slices, first = k / (of * spec->chunks) * of;
    int size = min_int(spec->microbatches * spec->slices - first, of), within = k - first * spec->chunks;
    *place = first + within % size;
    return within / size;
}

// Writes the list of one stage. drain: extra warm-up forwards for each later stage.
static void write_groups_(const ScheduleSpec *spec, int s, int drain, bool split, ActionList *list) {
    int n = spec->slices, all = spec->microbatches * n * spec->chunks, place;
    int warm_up = (spec->chunks - 1) * spec->group * n + drain * (spec->stages - 1 - s) + n - 1;
    for (int k = 0; k < all + warm_up; k++) {
        int chunk = k < all ? forward_at_(spec, k, &place) : 0;
        if (k < all) list_place(list, ACTION_FORWARD, chunk, n, place);
        if (k < warm_up) continue;
        // backwards pass the chunks in the opposite order
        chunk = spec->chunks - 1 - forward_at_(spec, k - warm_up, &place);
        list_place(list, split ? ACTION_INPUT : ACTION_BACKWARD, chunk, n, place);
        if (split) list_place(list, ACTION_WEIGHT, chunk, n, place);
    }
}

void interleaved_stage_(const ScheduleSpec *spec, int s, ActionList *list) { write_groups_(spec, s, 2, false, list); }

void gis_stage_(const ScheduleSpec *spec, int s, ActionList *list) { write_groups_(spec, s, 1, true, list); }
