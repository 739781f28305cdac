// One stage of the pipeline on one rank: memory for weights, temporaries, tokens and losses, and the path of one
// microbatch through one chunk of its layers.
//
// Two decisions to know. Every size and layout comes from a function that is called once without memory, to count, and
// once with memory, to bind, so the plan's bytes are the bytes allocated. And the head runs inside the forward of the
// last chunk: it leaves the gradient of its input in the bundle, so logits are workspace and never kept.
#include "stage.h"

#include "base/alloc.h"
#include "base/units.h"
#include "muon.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int stage_holding(const Stage *stage, int64_t table_index) {
    const TensorTable *table = &stage->table;
    int virtual_stages = stage->at.stages * stage->at.chunks, g = 0, holder, chunk;
    int64_t layer = (table_index - table->first_layer) / table->per_layer;
    if (table_index >= table->head) g = virtual_stages - 1;
    else if (table_index >= table->first_layer)
        for (int64_t seen = 0; (seen += config_layers(stage->config, virtual_stages, g)) <= layer;) g++;
    Schedule placed = {.stages = stage->at.stages, .chunks = stage->at.chunks, .placement = stage->at.placement};
    schedule_home(&placed, g, &holder, &chunk);
    return holder;
}

// Lays out tensors in table order. This works because each chunk of a stage is deeper in the model than the previous
// chunk.
static void layout_tensors_(StageTensors *tensors, const TensorTable *table, const StageShape *at, const Config *config,
                            int replica) {
    TableRange ranges[2 + STAGE_MOST_CHUNKS];
    int count = 0;
    if (at->first) ranges[count++] = (TableRange){0, table->first_layer};
    for (int c = 0; c < at->chunks; c++) {
        int64_t begin = table->first_layer + at->chunk[c].first_layer * table->per_layer;
        ranges[count++] = (TableRange){begin, begin + at->chunk[c].layers * table->per_layer};
    }
    if (at->last) ranges[count++] = (TableRange){table->head, table->count};
    const Shape *s = &at->shape;
    Split split = {.tensor_rank = s->tensor_rank,
                   .tensor_ranks = s->tensor_ranks,
                   .data_rank = replica,
                   .data_ranks = (int)config_replicas(config)};
    if (table->experts > 0) {
        int e = (int)config->parallel.expert, rank = replica * s->tensor_ranks + s->tensor_rank;
        split.expert_ranks = e, split.expert_rank = rank % e, split.expert_replica = rank / e;
        split.expert_replicas = split.data_ranks * split.tensor_ranks / e;
    }
    tensors_layout(tensors, table, ranges, count, &split, &config->train);
    if (config_shards_gradients(config)) tensors_shard_gradients(tensors);
}

static void layout_gathered_(Stage *stage, Layout *layout) {
    const Shape *s = &stage->at.shape;
    Pass *pass = &stage->pass;
    CommMemory *memory = &stage->gathered;
    if (!s->sequence) return;
    int64_t bytes = block_gathered_bytes(s);
    pass->partial = layout_take(layout, bytes);
    for (int i = 0; i < GATHERED_COUNT; i++)
        pass->gathered[i] = s->overlap ? layout_take(layout, bytes) : pass->partial;
    if (!s->copies) return;
    *memory = (CommMemory){layout->base,  0,
                           pass->partial, layout_take(layout, bytes),
                           bytes,         layout_take(layout, COMM_FLAGS * sizeof *memory->flags)};
    memory->bytes = layout->used = memory_pages(layout->used, stage->at.lent_page);
}

// Gathered rows that other ranks map have their own allocation.
static void layout_mapped_(Stage *stage, Layout *layout) {
    if (stage->at.shape.copies) layout_gathered_(stage, layout);
}

// Muon runs after the passes of a step, so it reuses their memory, but not op_workspace, which its products need.
static void layout_workspace_(Stage *stage, Layout *layout) {
    const Shape *s = &stage->at.shape;
    stage->op_workspace = s->workspace_bytes > 0 ? layout_take(layout, s->workspace_bytes) : NULL;
    int64_t passes = layout->used,
            muon = stage->at.layers > 0 ? muon_workspace(&stage->table, &stage->config->train) : 0;
    stage->muon_work = layout_take(layout, 0);
    const Shape dense = shape_dense(s);
    bool both = stage->config->model.dense_layers > 0; // true: the model has layers with and without experts
    int64_t work = both ? layer_work_layout(NULL, NULL, &dense) : 0;
    stage->pass.work = layout_take(layout, max_i64(work, layer_work_layout(NULL, NULL, s)));
    stage->pass.scratch = layout_take(layout, s->scratch_bytes);
    if (!s->copies) layout_gathered_(stage, layout);
    stage->recomputed = stage->at.recomputed > 0 ? layout_take(layout, stage->at.recomputed_bundle) : NULL;
    for (int i = 0; i < 2; i++) stage->pass.quantized[i] = layout_take(layout, quantized_work_bytes(s));
    stage->pass.scales = layout_take(layout, s->fp8 == FP8_TENSOR ? 2 * FACTOR_ONE_SCALE : 0);
    int kind = s->narrow[GATHERED_GRADIENT];
    stage->pass.narrowed =
        layout_take(layout, kind == FACTOR_PLAIN ? 0 : quantized_bytes(s, kind, s->shard_rows, s->hidden));
    stage->gradient = stage->at.first ? layout_take(layout, stage->at.message_bytes) : NULL;
    if (layout->used < passes + muon) layout_take(layout, passes + muon - layout->used);
}

static void layout_head_(Stage *stage, Layout *layout) {
    if (stage->at.last) head_work_layout(&stage->head_work, layout, &stage->at.shape);
}

static void layout_sums_(Stage *stage, Layout *layout) {
    if (stage->at.own_sums) sums_layout(&stage->workspaces, layout, &stage->at.shape, &stage->tensors, false);
}

// Returns the byte offset of a chunk's keys in stage->keys; for chunk == chunks, the size of stage->keys.
static int64_t keys_offset_(const StageShape *at, int chunk) {
    int64_t bytes = 0;
    for (int c = 0; c < chunk && at->shape.slices > 1; c++)
        bytes += at->chunk[c].layers * (at->chunk[c].kept * at->keys_bytes + at->dkeys_bytes);
    return bytes;
}

static void layout_keys_(Stage *stage, Layout *layout) {
    stage->keys = layout_take(layout, keys_offset_(&stage->at, stage->at.chunks));
}

static void layout_data_(Stage *stage, Layout *layout) {
    const StageShape *at = &stage->at;
    int64_t bytes = config_microbatches(stage->config) * at->rows * 4;
    stage->tokens = at->first ? layout_take(layout, bytes) : NULL;
    stage->targets = at->last ? layout_take(layout, bytes) : NULL;
    stage->losses = at->last ? layout_take(layout, bytes) : NULL;
    stage->places = config_uses_documents(stage->config) ? layout_take(layout, bytes) : NULL;
    stage->positions = at->shape.pieces > 1 ? layout_take(layout, at->rows * 4) : NULL;
}

static const struct {
    MemoryCategory category;
    const char *what;
    void (*layout)(Stage *stage, Layout *layout);
} pieces[STAGE_PIECES] = {
    {MEMORY_WORKSPACE, "workspace", layout_workspace_},
    {MEMORY_MESSAGES, "gathered rows", layout_mapped_},
    {MEMORY_HEAD, "logits", layout_head_},
    {MEMORY_KEYS, "keys", layout_keys_},
    {MEMORY_DATA, "tokens and losses", layout_data_},
    {MEMORY_MESSAGES, "sums over ranks", layout_sums_},
};

// Binds a piece to memory at `base`, or only counts if it is NULL. Returns the bytes.
static int64_t piece_layout_(Stage *stage, int piece, void *base) {
    Layout layout = {base, 0};
    pieces[piece].layout(stage, &layout);
    return layout.used;
}

void stage_work_bytes(MemoryBytes *bytes, const TensorTable *table, const Config *config, const StageShape *at) {
    Stage stage = {.at = *at, .config = config, .table = *table};
    for (int i = 0; i < STAGE_PIECES; i++)
        if (pieces[i].layout != layout_sums_) bytes->bytes[pieces[i].category] += piece_layout_(&stage, i, NULL);
}

void stage_state_bytes(MemoryBytes *bytes, StateBytes *states, int64_t *staged, const TensorTable *table,
                       const Config *config, const StageShape *at) {
    Stage stage = {.at = *at, .config = config};
    layout_tensors_(&stage.tensors, table, at, config, 0);
    tensors_bytes(&stage.tensors, bytes);
    Layout sums = {NULL, 0}, host = {NULL, 0};
    layout_sums_(&stage, &sums);
    bytes->bytes[MEMORY_MESSAGES] += sums.used;
    if (config->hardware.share_gpu && !at->own_sums)
        sums_layout(&stage.workspaces, &host, &at->shape, &stage.tensors, true);
    *staged = host.used;
    *states = tensors_states(&stage.tensors);
    tensors_free(&stage.tensors, NULL);
}

// Writes the positions of this context rank's tokens.
static void write_positions_(Stage *stage) {
    const Shape *s = &stage->at.shape;
    int64_t length = s->seq / s->pieces, row = 0;
    int32_t *host = xmalloc((size_t)s->rows * sizeof *host);
    for (int piece = 0; piece < s->pieces; piece++)
        for (int64_t i = 0, first = context_place(s, piece); i < length; i++)
            for (int64_t b = 0; b < s->batch; b++) host[row++] = (int32_t)(first + i);
    assert(row == s->rows);
    stage->be->upload(stage->be, stage->positions, host, s->rows * (int64_t)sizeof *host);
    free(host);
}

int stage_allocate(Stage *stage, const Model *model, const Config *config, const StageShape *at,
                   const ModelConfig *whole, Backend *be, Comm *tensor, int replica, Error *err) {
    *stage = (Stage){.at = *at, .model = model, .config = config, .be = be};
    stage->microbatches = stage->most_microbatches = config_microbatches(config);
    stage->at.shape.context_rank = replica % stage->at.shape.context_ranks;
    stage->dense = shape_dense(&stage->at.shape);
    stage->again = shape_recomputed(&stage->at.shape);
    stage->pass = (Pass){.be = be, .tensor = tensor, .model = model, .shape = &stage->at.shape};
    stage->table = model_table(model, whole);
    stage->pass.rope = stage->rope = model_rope(whole);
    // A layer's tensors are at the same places in all layers. A chunk may have no layer.
    const TensorTable *table = &stage->table;
    for (int role = 0; role < LAYER_ROLES; role++) stage->pass.place[role] = -1;
    for (int64_t i = 0; i < table->per_layer && table->first_layer + i < table->head; i++) {
        int role = table->specs[table->first_layer + i].role;
        if (role != LAYER_NONE) stage->pass.place[role] = (int)i;
    }
    layout_tensors_(&stage->tensors, table, &stage->at, config, replica);
    if (tensors_allocate(&stage->tensors, be, err) != 0) return -1;
    const Tensor *tensors = stage->tensors.tensors;
    stage->embedding = at->first ? tensors : NULL;
    stage->layers = tensors + (at->first ? table->first_layer : 0);
    stage->head = at->last ? stage->layers + at->layers * table->per_layer : NULL;
    const Shape *s = &stage->at.shape;
    for (int i = 0; i < STAGE_PIECES; i++) {
        int64_t bytes = piece_layout_(stage, i, NULL), bound;
        if (bytes == 0) continue;
        stage->memory[i].memory = be->allocate(be, pieces[i].category, bytes, pieces[i].what, err);
        if (stage->memory[i].memory == NULL) return -1;
        stage->memory[i].bytes = bound = piece_layout_(stage, i, stage->memory[i].memory);
        assert(bound == bytes);
    }
    if (be->use_workspace != NULL) be->use_workspace(be, stage->op_workspace, s->shard_rows, s->hidden, &s->attention);
    sums_lend(tensor, &stage->workspaces.tensor);
    if (stage->places != NULL)
        stage->host_places = xmalloc((size_t)(stage->most_microbatches * stage->at.rows) * sizeof(int32_t));
    if (stage->positions != NULL) write_positions_(stage);

    // The tensor group's library registers the memory of sums and gathers: the mapped memory, or else the workspace.
    if (tensor == NULL || tensor->use_memory == NULL) return 0;
    CommMemory memory = stage->gathered;
    if (memory.memory == NULL)
        memory = (CommMemory){.memory = stage->memory[0].memory, .bytes = stage->memory[0].bytes};
    int registered = tensor->use_memory(tensor, &memory, err);
    stage->registered = registered > 0;
    return registered < 0 ? -1 : 0;
}

int stage_create(Stage *stage, const Model *model, const Config *config, const Schedule *schedule, Backend *be,
                 int index, Comm *tensor, int replica, Error *err) {
    StageShape at;
    stage_shape(&at, config, schedule, be, index, tensor == NULL ? 0 : tensor->rank);
    if (stage_allocate(stage, model, config, &at, &config->model, be, tensor, replica, err) != 0) return -1;
    tensors_init(&stage->tensors, be, config->train.seed, config->model.layers, config->train.init_std);
    return 0;
}

void stage_use_context(Stage *stage, Comm *const context[2]) {
    for (int i = 0; i < 2; i++) {
        stage->pass.context[i] = context[i];
        sums_lend(context[i], &stage->workspaces.context[i]);
    }
}

void stage_destroy(Stage *stage) {
    if (stage->be == NULL) return;
    free_all(stage->rope, stage->host_places);
    const Shape *s = &stage->at.shape;
    if (stage->op_workspace != NULL) stage->be->use_workspace(stage->be, NULL, s->shard_rows, s->hidden, &s->attention);
    Comm *tensor = stage->pass.tensor;
    sums_lend(tensor, NULL);
    for (int i = 0; i < 2; i++) sums_lend(stage->pass.context[i], NULL);
    if (stage->registered) tensor->use_memory(tensor, NULL, NULL);
    for (int i = 0; i < STAGE_PIECES; i++)
        backend_release(stage->be, pieces[i].category, stage->memory[i].memory, stage->memory[i].bytes);
    tensors_free(&stage->tensors, stage->be);
    table_free(&stage->table);
    memset(stage, 0, sizeof *stage);
}

static char *layer_bundle_(const Stage *stage, const StageChunk *chunk, void *bundle, int64_t layer) {
    return (char *)bundle + stage_layer_offset(&stage->at, chunk, layer);
}

static const Tensor *layer_tensors_(const Stage *stage, const StageChunk *chunk, int64_t layer) {
    return stage->layers + (chunk->before + layer) * stage->table.per_layer;
}

// Returns the memory in which a layer runs: the layer's part of the bundle, which holds the layer's input. If the layer
// is recomputed, copies the input to stage->recomputed and returns stage->recomputed.
static void *layer_place_(Stage *stage, const StageChunk *chunk, void *bundle, int64_t layer) {
    void *input = layer_bundle_(stage, chunk, bundle, layer);
    if (layer >= chunk->recomputed) return input;
    stage->be->copy(stage->be, STREAM_COMPUTE, stage->recomputed, input, stage->at.message_bytes);
    return stage->recomputed;
}

static const Shape *layer_shape_(const Stage *stage, const StageChunk *chunk, int64_t layer) {
    if (layer < chunk->dense) return &stage->dense;
    return layer < chunk->recomputed ? &stage->again : &stage->at.shape;
}

static void stage_poll_(Stage *stage) {
    stage->layers_queued++;
    if (stage->pass.poll != NULL) stage->pass.poll(stage->pass.poll_argument, true);
}

static void use_places_(Stage *stage, int64_t unit) {
    const DataConfig *data = &stage->config->data;
    const int32_t *places = stage->documents ? stage->places + unit * stage->at.shape.rows : NULL;
    stage->pass.documents = data->mask_documents ? places : NULL;
    stage->pass.host_documents = places == NULL ? NULL : stage->host_places + (places - stage->places);
    stage->pass.positions = data->reset_positions && places != NULL ? places : stage->positions;
}

// Points the pass at the keys of a layer, if sequences are cut into slices. Microbatch i overwrites the keys of
// microbatch i - kept, after the backward of that microbatch.
static void open_keys_(Stage *stage, const StageChunk *chunk, int64_t unit, int64_t layer) {
    const StageShape *at = &stage->at;
    int64_t slices = at->shape.slices, microbatch = unit / slices;
    if (slices == 1) return;
    assert(chunk->kept > 0);
    char *keys = (char *)stage->keys + keys_offset_(at, (int)(chunk - at->chunk));
    stage->pass.first = unit % slices * at->shape.seq;
    stage->pass.keys = keys + (microbatch % chunk->kept * chunk->layers + layer) * at->keys_bytes;
    stage->pass.dkeys = (void *)(keys + chunk->kept * chunk->layers * at->keys_bytes + layer * at->dkeys_bytes);
}

// Prepares `count` tensors for a run: waits for their weights, and quantizes those that products read in 8 bits.
static void open_weights_(Stage *stage, const Tensor *first, int64_t count) {
    int64_t begin = first - stage->tensors.tensors;
    if (stage->needs_weights != NULL) stage->needs_weights(stage->zero, begin + count);
    tensors_quantize(&stage->tensors, stage->be, begin, begin + count);
}

bool stage_prepare(Stage *stage, Error *err) {
    const StageChunk *first = &stage->at.chunk[0];
    stage->pass.err = err;
    if (stage->tensors.fp8 == FP8_OFF || stage->prepared == first->layers) return false;
    open_weights_(stage, layer_tensors_(stage, first, stage->prepared++), stage->table.per_layer);
    return true;
}

int stage_forward(Stage *stage, int chunk, int64_t unit, void *bundle, const void *input, void *output, float scale,
                  Error *err) {
    Pass *pass = &stage->pass;
    const StageShape *at = &stage->at;
    const StageChunk *here = &at->chunk[chunk];
    int64_t tokens = unit * at->shape.rows;
    pass->err = err;
    pass->trains = scale != 0;
    if (pass->trains) pass->scale = scale;
    use_places_(stage, unit);
    open_keys_(stage, here, unit, 0);
    // The last chunk's output goes to the end of its bundle, where the head replaces the output by its gradient.
    void *final = here->last ? layer_bundle_(stage, here, bundle, here->layers) : output;
    void *begin = here->layers > 0 ? bundle : final;
    const bool opens = unit == 0; // the run's first use of the chunk's weights
    if (opens && here->first) open_weights_(stage, stage->embedding, stage->table.first_layer);
    // Later stages wait for their input, and their weights arrive meanwhile. The choice of kernels may not depend on
    // whether this step's gathers have ended, nor on whether there were any, as after a resume.
    if (opens && here->first) stage->be->gathering = stage->gather_flops;
    if (here->first) embedding_block_forward(pass, stage->embedding, begin, stage->tokens + tokens);
    else stage->be->copy(stage->be, STREAM_COMPUTE, begin, input, at->message_bytes);
    for (int64_t l = 0; l < here->layers; l++) {
        open_keys_(stage, here, unit, l);
        pass->shape = layer_shape_(stage, here, l);
        int64_t row = (here->first_layer + l) * at->shape.route.experts;
        pass->copies = stage->copies == NULL ? NULL : stage->copies + row;
        const Tensor *tensors = layer_tensors_(stage, here, l);
        bool prepared = chunk == 0 && l < stage->prepared;
        if (opens && !prepared) open_weights_(stage, tensors, stage->table.per_layer);
        void *place = layer_place_(stage, here, bundle, l);
        void *next = l + 1 < here->layers ? layer_bundle_(stage, here, bundle, l + 1) : final;
        // The next norm, of a layer or of the head, writes the output, unless it is the chunk's message, or the input
        // of a recomputed layer, which reads it from the bundle.
        bool ends = l + 1 == here->layers;
        LayerOutput made = (ends ? here->last : l + 1 >= here->recomputed) ? LAYER_LEAVES : LAYER_WRITES;
        layer_forward(pass, tensors, place, next, made);
        stage_poll_(stage);
    }
    pass->shape = &at->shape;
    if (opens && here->last) open_weights_(stage, stage->head, stage->table.count - stage->table.head);
    if (here->last)
        head_block(pass, stage->head, &stage->head_work, final, stage->losses + tokens, stage->targets + tokens, scale);
    if (opens) stage->be->gathering = 0;
    return err->code == 0 ? 0 : -1;
}

static void layer_complete_(Stage *stage, const StageChunk *chunk, int64_t unit, int64_t layer) {
    if (unit == (stage->microbatches - 1) * stage->at.shape.slices && stage->layer_done != NULL)
        stage->layer_done(stage->zero, chunk->before + layer);
}

// dx carries the gradient of layer l's output. stage_weights reads this gradient again, except with shape.pointwise.
// The last layer's gradient is at the end of the bundle, from the head or from `input`. Any other layer's gradient is
// kept in `x` of the next layer, after the last read of that `x`. A recomputed layer runs its complete backward here
// even if backwards are split, because its recomputed operands do not survive until stage_weights.
int stage_backward(Stage *stage, int chunk, int64_t unit, void *bundle, const void *input, void *output, bool split,
                   Error *err) {
    Pass *pass = &stage->pass;
    const StageShape *at = &stage->at;
    const StageChunk *here = &at->chunk[chunk];
    pass->err = err;
    pass->split = split;
    pass->begins = unit == at->shape.slices - 1;
    use_places_(stage, unit);
    open_keys_(stage, here, unit, 0);
    bool embeds = here->first && at->shape.narrow[GATHERED_GRADIENT] == FACTOR_PLAIN; // the embedding gathers plain dx
    void *dx = here->first ? stage->gradient : output, *end = layer_bundle_(stage, here, bundle, here->layers);
    if (!here->last && pass_keeps_rows(pass)) stage->be->copy(stage->be, STREAM_COMPUTE, end, input, at->message_bytes);
    stage->be->copy(stage->be, STREAM_COMPUTE, dx, here->last ? end : input, at->message_bytes);
    for (int64_t l = here->layers - 1; l >= 0; l--) {
        const Tensor *tensors = layer_tensors_(stage, here, l);
        open_keys_(stage, here, unit, l);
        pass->shape = layer_shape_(stage, here, l);
        bool starts = at->shape.slices > 1 && (unit + 1) % at->shape.slices == 0;
        if (starts) stage->be->zero(stage->be, pass->dkeys, at->dkeys_bytes);
        void *place = layer_place_(stage, here, bundle, l);
        bool again = l < here->recomputed;
        if (again) layer_forward(pass, tensors, place, NULL, LAYER_NO_OUTPUT);
        pass->split = split && !again;
        layer_backward(pass, tensors, place, dx, l > 0 || embeds);
        pass->split = split;
        if (l > here->recomputed && pass_keeps_rows(pass))
            stage->be->copy(stage->be, STREAM_COMPUTE, place, dx, at->message_bytes);
        if (!split || again) layer_complete_(stage, here, unit, l);
        stage_poll_(stage);
    }
    pass->split = false;
    pass->shape = &at->shape;
    if (here->first) embedding_block_backward(pass, stage->embedding, dx, stage->tokens + unit * at->shape.rows);
    return err->code == 0 ? 0 : -1;
}

int stage_weights(Stage *stage, int chunk, int64_t unit, void *bundle, Error *err) {
    Pass *pass = &stage->pass;
    const StageChunk *here = &stage->at.chunk[chunk];
    pass->err = err;
    pass->begins = unit == stage->at.shape.slices - 1;
    for (int64_t l = here->layers - 1; l >= here->recomputed; l--) {
        void *place = layer_bundle_(stage, here, bundle, l);
        pass->shape = layer_shape_(stage, here, l);
        layer_weights(pass, layer_tensors_(stage, here, l), place, layer_bundle_(stage, here, bundle, l + 1),
                      l > here->recomputed ? place : NULL);
        layer_complete_(stage, here, unit, l);
        stage_poll_(stage);
    }
    pass->shape = &stage->at.shape;
    return err->code == 0 ? 0 : -1;
}

void stage_logits(Stage *stage, int64_t row, float *logits) {
    const Shape *s = &stage->at.shape;
    const char *from = (const char *)stage->head_work.logits + row * s->vocab_width * s->element;
    stage->be->download(stage->be, logits, from, s->vocab_count * s->element);
    if (s->element == 4) return;
    // bf16 is a float's upper half: widened in place from the end, so that no value is overwritten before it is read.
    for (int64_t i = s->vocab_count - 1; i >= 0; i--) {
        uint16_t half;
        memcpy(&half, (const char *)logits + 2 * i, sizeof half);
        logits[i] = bf16_to_float(half);
    }
}
