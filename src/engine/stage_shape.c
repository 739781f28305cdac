// The sizes of a stage: its chunks of layers, and the bytes of bundles and messages. Plans need only these sizes.
#include "stage.h"

#include "base/units.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Spreads the recomputed layers evenly over the chunks, so that the bundles of all chunks shrink alike. If a chunk has
// too few layers, other chunks recompute more.
static void shape_recomputed_(StageShape *at, int64_t asked) {
    int64_t left = asked;
    for (int c = 0; c < at->chunks; c++) {
        int64_t share = asked * (c + 1) / at->chunks - asked * c / at->chunks;
        at->chunk[c].recomputed = min_i64(share, at->chunk[c].layers);
        left -= at->chunk[c].recomputed;
    }
    for (int c = 0; c < at->chunks; c++) {
        int64_t more = min_i64(left, at->chunk[c].layers - at->chunk[c].recomputed);
        at->chunk[c].recomputed += more;
        left -= more;
    }
    at->recomputed = asked - left;
}

int64_t stage_layer_offset(const StageShape *at, const StageChunk *chunk, int64_t layer) {
    int64_t recomputed = min_i64(layer, chunk->recomputed),
            dense = max_i64(0, min_i64(layer, chunk->dense) - recomputed);
    return recomputed * at->message_bytes + dense * at->dense_bundle + (layer - recomputed - dense) * at->layer_bundle;
}

static void shape_chunks_(StageShape *at, const Config *config, const Schedule *schedule) {
    int virtual_stages = schedule->stages * schedule->chunks, before = 0;
    int64_t first = 0; // layers of the first `before` virtual stages
    // The backward of the first slice is the last to read its microbatch's keys and values. Without backwards, the last
    // slice's forward is the last to read them, before the next microbatch.
    const int *kept = schedule->slices > 1 ? schedule->stage[at->stage].kept : NULL;
    for (int c = 0; c < at->chunks; c++) {
        StageChunk *chunk = &at->chunk[c];
        int g = schedule_virtual(schedule, at->stage, c);
        for (; before < g; before++) first += config_layers(config, virtual_stages, before);
        *chunk = (StageChunk){.first_layer = first,
                              .layers = config_layers(config, virtual_stages, g),
                              .before = at->layers,
                              .kept = kept != NULL ? kept[c] : schedule->slices > 1,
                              .first = g == 0,
                              .last = g == virtual_stages - 1};
        chunk->dense = max_i64(0, min_i64(chunk->layers, config->model.dense_layers - chunk->first_layer));
        at->layers += chunk->layers;
        at->first |= chunk->first;
        at->last |= chunk->last;
    }
    shape_recomputed_(at, config_recompute(config, at->stage));
    for (int c = 0; c < at->chunks; c++) {
        StageChunk *chunk = &at->chunk[c];
        // The space after the layers holds the gradient of the chunk's output. In the last chunk the forward, which
        // includes the head, leaves the gradient there for the backward. In other chunks a split backward leaves it
        // there for stage_weights, except with shape.pointwise. A chunk without layers also has this space, so that no
        // slot is empty.
        bool ends = chunk->last || (schedule->split && !at->shape.pointwise) || chunk->layers == 0;
        chunk->bytes = stage_layer_offset(at, chunk, chunk->layers) + (ends ? at->message_bytes : 0);
        at->bundle_bytes = max_i64(at->bundle_bytes, chunk->bytes);
    }
    at->first_layer = at->chunk[0].first_layer;
}

void stage_shape(StageShape *at, const Config *config, const Schedule *schedule, Backend *be, int stage,
                 int tensor_rank) {
    memset(at, 0, offsetof(StageShape, chunk));
    at->stage = stage;
    at->stages = schedule->stages;
    at->chunks = schedule->chunks;
    at->placement = schedule->placement;
    at->own_sums = be->own_sums;
    at->lent_page = be->lent_page;
    shape_from_config(&at->shape, config, be, stage, tensor_rank);
    at->message_bytes = memory_round(at->shape.shard_rows * at->shape.hidden * at->shape.element);
    const Shape dense = shape_dense(&at->shape), again = shape_recomputed(&at->shape);
    at->layer_bundle = at->dense_bundle = layer_bundle_layout(NULL, NULL, &at->shape);
    at->recomputed_bundle = layer_bundle_layout(NULL, NULL, &again);
    if (config->model.dense_layers > 0) {
        at->dense_bundle = layer_bundle_layout(NULL, NULL, &dense);
        at->recomputed_bundle = max_i64(at->recomputed_bundle, at->dense_bundle);
    }
    at->rows = at->shape.slices * at->shape.rows;
    int64_t keys = 2 * at->shape.attention.kv_heads * at->shape.attention.head_dim * at->rows;
    at->keys_bytes = memory_round(keys * at->shape.element);
    at->dkeys_bytes = memory_round(keys * (int64_t)sizeof(float));
    shape_chunks_(at, config, schedule);
}

void stage_shape_like(StageShape *at, const StageShape *like, const Config *config, const Schedule *schedule,
                      int stage) {
    memcpy(at, like, offsetof(StageShape, chunk));
    at->stage = stage, at->layers = at->bundle_bytes = at->first = at->last = 0;
    shape_chunks_(at, config, schedule);
}

char *stage_layers_text(const StageShape *at, char text[STAGE_LAYERS_TEXT]) {
    for (int c = 0, used = 0; c < at->chunks; c++) {
        const StageChunk *chunk = &at->chunk[c];
        char next[48] = "none";
        long long first = chunk->first_layer, last = first + chunk->layers - 1;
        if (chunk->layers > 0) snprintf(next, sizeof next, "%lld-%lld", first, last);
        bool fits = used + (int)strlen(next) + (c > 0) + 4 < STAGE_LAYERS_TEXT;
        used += snprintf(text + used, (size_t)(STAGE_LAYERS_TEXT - used), "%s%s", c > 0 && fits ? "," : "",
                         fits ? next : "...");
        if (!fits) break;
    }
    return text;
}
