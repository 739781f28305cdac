// Forward-only schedules for chunks of any placement: validation and sampling run the same stages as training, without
// backwards. The order comes from a simulation in units of time: each stage runs the highest of its chunks that is
// ready, so that microbatches leave the pipeline as early as possible. The simulation has the real number of buffers,
// so the order cannot deadlock.
#include "bpipe.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

// Returns whether forward `next` of virtual stage `at` can run. done: [virtual stages] forwards done before this unit.
static bool forward_ready_(const Schedule *schedule, const int *done, int next, int at) {
    int stage, chunk, above, depth = 2 * schedule->edge_buffers;
    if (next == schedule->microbatches * schedule->slices || (at > 0 && done[at - 1] <= next)) return false;
    if (at + 1 == schedule->stages * schedule->chunks) return true;
    schedule_home(schedule, at, &stage, &chunk);
    schedule_home(schedule, at + 1, &above, &chunk);
    if (stage == above) depth = schedule->edge_buffers;
    return done[at + 1] > next - depth;
}

// Example: two stages, two chunks in a V, two microbatches; F0.1 is microbatch 0 on chunk 1. Stage 1, at the turn of
// the V, runs F0.1 before F1.0.
//
//   stage 0  F0.0 F1.0 .    F0.1 .    F1.1
//   stage 1  .    F0.0 F0.1 F1.0 F1.1
Schedule *schedule_forward_like(const Schedule *like, int microbatches) {
    Schedule *schedule = schedule_new("forward", like->stages, microbatches);
    schedule->chunks = like->chunks;
    schedule->slices = like->slices;
    schedule->placement = like->placement;
    schedule->edge_buffers = like->edge_buffers;
    size_t all = (size_t)like->stages * (size_t)like->chunks;
    int *done = xcalloc(all, sizeof *done), *started = xcalloc(all, sizeof *started); // started: done or running
    ActionList *lists = xcalloc((size_t)like->stages, sizeof *lists);
    for (bool ran = true; ran;) { // one unit of time
        ran = false;
        for (int s = 0; s < like->stages; s++) {
            for (int chunk = like->chunks - 1; chunk >= 0; chunk--) {
                int at = schedule_virtual(schedule, s, chunk);
                if (!forward_ready_(schedule, done, started[at], at)) continue;
                list_place(&lists[s], ACTION_FORWARD, chunk, like->slices, started[at]++);
                ran = true;
                break;
            }
        }
        memcpy(done, started, all * sizeof *done);
    }
    for (int s = 0; s < like->stages; s++) list_finish(&lists[s], &schedule->stage[s]);
    schedule_finish(schedule, 1);
    free_all(done, started, lists);
    return schedule;
}
