// Forward-only schedules for chunks of any placement: validation and sampling run the same stages as training, without
// backwards. The order comes from playing the forwards in units of time: each stage runs the highest of its chunks that
// is ready, so that microbatches leave the pipeline as early as they can. Because the order was played with the actual
// number of buffers, it cannot hang.
#include "build.h"

#include <stdlib.h>

typedef struct Play {
    const Schedule *schedule;
    int *done;        // [virtual stages] forwards done before this unit
    int *started;     // [virtual stages] and including those of this unit
    ActionList *list; // [stages]
} Play;

static bool forward_ready_(const Play *play, int at) {
    const Schedule *schedule = play->schedule;
    int next = play->started[at], stage, chunk, above, depth = 2 * schedule->edge_buffers;
    if (next == schedule->microbatches || (at > 0 && play->done[at - 1] <= next)) return false;
    if (at + 1 == schedule->stages * schedule->chunks) return true;
    schedule_home(schedule, at, &stage, &chunk);
    schedule_home(schedule, at + 1, &above, &chunk);
    if (stage == above) depth = schedule->edge_buffers;
    return play->done[at + 1] > next - depth;
}

// Plays one unit of time. Returns how many forwards ran.
static int play_unit_(Play *play) {
    const Schedule *schedule = play->schedule;
    int ran = 0;
    for (int s = 0; s < schedule->stages; s++) {
        int chunk = schedule->chunks - 1;
        while (chunk >= 0 && !forward_ready_(play, schedule_virtual(schedule, s, chunk))) chunk--;
        if (chunk < 0) continue;
        list_compute(&play->list[s], ACTION_FORWARD, chunk, play->started[schedule_virtual(schedule, s, chunk)]++);
        ran++;
    }
    for (int g = 0; g < schedule->stages * schedule->chunks; g++) play->done[g] = play->started[g];
    return ran;
}

static int play_(Schedule *schedule, Error *err) {
    size_t all = (size_t)schedule->stages * (size_t)schedule->chunks;
    Play play = {.schedule = schedule};
    play.done = calloc(all, sizeof *play.done);
    play.started = calloc(all, sizeof *play.started);
    play.list = calloc((size_t)schedule->stages, sizeof *play.list);
    int status = play.done == NULL || play.started == NULL || play.list == NULL ? -1 : 0;
    if (status != 0) error_set(err, EXIT_FAILED, "no memory for a schedule of this size");
    while (status == 0 && play_unit_(&play) > 0) {}
    for (int s = 0; s < schedule->stages && play.list != NULL; s++) {
        if (list_finish(&play.list[s], &schedule->stage[s], err) != 0) status = -1;
    }
    free(play.done);
    free(play.started);
    free(play.list);
    return status;
}

Schedule *schedule_forward_like(const Schedule *like, int microbatches, Error *err) {
    if (like->chunks == 1) {
        Schedule *plain = schedule_forward(like->stages, microbatches, err);
        if (plain != NULL) plain->edge_buffers = like->edge_buffers;
        return plain;
    }
    Schedule *schedule = schedule_new("forward", like->stages, microbatches, err);
    if (schedule == NULL) return NULL;
    schedule->chunks = like->chunks;
    schedule->placement = like->placement;
    schedule->edge_buffers = like->edge_buffers;
    if (play_(schedule, err) != 0) {
        schedule_free(schedule);
        return NULL;
    }
    schedule_finish(schedule, 1);
    return schedule;
}
