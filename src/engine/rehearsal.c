// The rehearsal reads from the list how backwards run: whole (B), split (I and W), or both.
#include "rehearsal.h"

// Runs microbatch 0 through one chunk and back, from zeros. One slot is enough. parts: in one part, in two.
static int rehearse_chunk_(Stage *stage, int chunk, const ChunkLinks *links, void *bundle, float scale,
                           const bool parts[2], Error *err) {
    const P2pLink *in = links->in, *out = links->out;
    void *x = p2p_buffer(&in[P2P_FORWARD]), *y = p2p_buffer(&out[P2P_FORWARD]);
    void *dy = p2p_buffer(&in[P2P_BACKWARD]), *dx = p2p_buffer(&out[P2P_BACKWARD]);
    if (x != NULL) stage->be->zero(stage->be, x, stage->at.message_bytes);
    if (dy != NULL) stage->be->zero(stage->be, dy, stage->at.message_bytes);
    for (int split = 0; split < 2; split++) {
        if (!parts[split]) continue;
        if (stage_forward(stage, chunk, 0, bundle, x, y, scale, err) != 0) return -1;
        if (scale > 0.0f && stage_backward(stage, chunk, 0, bundle, dy, dx, split == 1, err) != 0) return -1;
        if (split == 1 && stage_weights(stage, chunk, 0, bundle, err) != 0) return -1;
    }
    return 0;
}

int rehearse(Stage *stage, const Schedule *schedule, const Links *links, void *bundle, Error *err) {
    const StageSchedule *list = &schedule->stage[stage->at.stage];
    bool parts[2] = {schedule->forward_only, false};
    void (*layer_done)(void *, int64_t) = stage->layer_done;
    int status = 0;
    for (int64_t i = 0; i < list->count; i++) {
        parts[0] |= list->actions[i].kind == ACTION_BACKWARD;
        parts[1] |= list->actions[i].kind == ACTION_INPUT;
    }
    stage->layer_done = NULL; // what it would report is no step's gradient
    for (int c = 0; status == 0 && c < schedule->chunks; c++)
        status = rehearse_chunk_(stage, c, &links->chunk[c], bundle, schedule->forward_only ? 0.0f : 1.0f, parts, err);
    stage->layer_done = layer_done;
    return status == 0 ? stage->be->synchronize(stage->be, err) : -1;
}
