// Runs stages on clocks (counted.h). All layers of a kind take the same time except next to an end: the first finds no
// gather in flight, the last writes its own output. So a chunk is counted with at most MOST plain and MOST recomputed
// layers, and each further layer adds what the last one added.
#include "counted.h"

#include "base/alloc.h"
#include "base/units.h"
#include "engine/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 3 };

// What is counted, and everything that its seconds depend on. Compared as bytes after a memset.
typedef struct CountKey {
    char sizes[offsetof(Shape, rope)]; // of the shape; 0 for the end of a step, whatever a microbatch's size is
    double tensor_rate, context_rate, data_rate, expert_rate; // CountLinks
    double fullest;                                           // Clocks
    int tensor_near, context_near, data_near;
    double flops;
    bool update; // the end of a step, else the actions of a chunk
    bool first, last, sequence, copies, moving, split, beside, sharded, free_groups, once;
    int layers, recomputed, dense, tensor_ranks, replicas;
    int expert_ranks, near_experts, same_experts; // ranks that divide the experts, and how many of these are on a node;
                                                  // ranks with the same experts. 0: no experts
} CountKey;

// ---------------------------------------------------------------- links

// Returns the bytes/s of a rank if groups leave their node and `sharing` ranks of a node use its network at once; 0 if
// each group is inside a node. consecutive: the ranks in a row that a group spans; 0: it spans the world.
static double rate_(const CountSource *source, int64_t consecutive, int64_t sharing) {
    const Cost *cost = &source->hardware->cost;
    int64_t node = hardware_domain(source->hardware, source->config);
    bool near = config_world(source->config) <= node || (consecutive > 0 && node % consecutive == 0);
    double network = hardware_network(source->hardware, source->config);
    return near ? 0 : fmin(network / (double)min_i64(sharing, node), cost->tensor);
}

// Returns the most ranks on a node of a group of `size` ranks, `apart` ranks from each other, that is on several nodes.
static int near_(const CountSource *source, int64_t size, int64_t apart) {
    int64_t node = hardware_domain(source->hardware, source->config);
    if (size * apart <= node) return (int)(size + 1) / 2; // it crosses the boundary of two nodes
    return (int)(node > apart ? node / apart : 1);
}

// Returns whether bundles leave the node, so that persistent products leave multiprocessors to messages (engine.c,
// connect_pair_).
static bool moving_(const CountSource *source) {
    const Config *config = source->config;
    const ParallelConfig *parallel = &config->parallel;
    int64_t stages = parallel->placement == PLACEMENT_ADJACENT ? 2 : parallel->pipeline;
    bool peers = config->schedule.bpipe == BPIPE_ON && config->schedule.evict_to == EVICT_TO_PEER;
    return !source->hardware->cpu && peers &&
           parallel->tensor * parallel->context * stages > config->hardware.gpus_per_node;
}

// Returns the rows of the fullest of e expert ranks over the mean. If the tokens of E experts have a standard deviation
// of `spread` times their mean, those of a rank's E/e experts have spread * sqrt(e / E); the largest of e normal
// numbers is about sqrt(2 ln e) standard deviations above the mean. By the same rule, the guess is smaller for fewer
// experts, each of which stands for several smaller ones.
static double fullest_(const Config *config) {
    static const double GUESS = 0.3, OF = 128; // runs between 0.04 with 8 experts and 0.95 with 128 are known
    double e = (double)config->parallel.expert, all = (double)config->model.experts;
    double spread = config->hardware.expert_spread;
    if (spread == 0) spread = GUESS * sqrt(all / OF);
    return fmin(e, 1 + spread * sqrt(e / all * 2 * log(e)));
}

static CountKey key_(const CountSource *source, const Shape *shape) {
    const ParallelConfig *parallel = &source->config->parallel;
    CountKey key;
    memset(&key, 0, sizeof key);
    memcpy(key.sizes, shape, sizeof key.sizes);
    key.tensor_ranks = shape->tensor_ranks;
    key.sequence = shape->sequence;
    key.copies = shape->copies;
    key.tensor_near = near_(source, parallel->tensor, 1);
    key.context_near = near_(source, parallel->context, parallel->tensor);
    key.tensor_rate = rate_(source, parallel->tensor, 1);
    key.context_rate = rate_(source, parallel->context * parallel->tensor, parallel->tensor);
    if (source->config->model.experts > 0) {
        int64_t row = hardware_experts_in_a_row(parallel), node = hardware_domain(source->hardware, source->config);
        key.expert_ranks = (int)parallel->expert;
        key.fullest = fullest_(source->config);
        key.expert_rate = rate_(source, row == parallel->expert ? row : 0, node);
        key.near_experts = (int)min_i64(row, node);
        key.once = source->config->hardware.trainer == TRAINER_NVIDIA;
    }
    key.moving = moving_(source);
    key.split = source->split;
    key.beside = source->beside;
    key.free_groups = source->free_groups;
    key.flops = source->hardware->cost.flops;
    return key;
}

// ---------------------------------------------------------------- one count

// A stage on clocks.
typedef struct CountedStage {
    Cost cost;
    Clocks clocks;
    Backend *be;
    Comm *tensor, *context[2], *data, *experts, *same_experts;
    Stage stage;
    Error err;
} CountedStage;

// Opens a stage of one chunk with the layers of the key.
static CountedStage *counted_open_(const CountSource *source, const StageShape *stage, const CountKey *key) {
    static const double NOMINAL = 1e14; // FLOP/s
    CountedStage *counting = xcalloc(1, sizeof *counting);
    bool known = key->flops > 0;
    counting->cost = source->hardware->cost;
    if (!known) counting->cost.flops = NOMINAL;
    counting->clocks = (Clocks){.cost = &counting->cost,
                                .own_sums = stage->own_sums,
                                .fullest = fmax(1, key->fullest),
                                .expert_ranks = max_int(1, key->expert_ranks),
                                .once = key->once};
    counting->be =
        count_backend_create(&counting->clocks, source->config->train.precision, source->hardware->capability);
    counting->be->moving = key->moving;
    int t = stage->shape.tensor_ranks, c = stage->shape.context_ranks, d = key->replicas;
    CountLinks tensor = {key->tensor_rate, key->copies, key->tensor_near},
               context = {key->context_rate, false, key->context_near}, data = {key->data_rate, false, key->data_near};
    if (t > 1) counting->tensor = count_comm_create("tensor", 0, t, &counting->clocks, &tensor);
    if (t > 1) count_comm_rest(counting->tensor, !known && stage->shape.overlap && !key->update);
    if (t > 1 && key->free_groups) count_comm_rest(counting->tensor, true);
    for (int i = 0; i < 2 && c > 1; i++) {
        counting->context[i] = count_comm_create("context", i == 0 ? 0 : c - 1, c, &counting->clocks, &context);
        if (key->free_groups) count_comm_rest(counting->context[i], true);
    }
    if (d > 1) counting->data = count_comm_create("data", 0, d, &counting->clocks, &data);
    CountLinks experts = {key->expert_rate, false, key->near_experts};
    if (key->expert_ranks > 1)
        counting->experts = count_comm_create("experts", 0, key->expert_ranks, &counting->clocks, &experts);
    if (key->expert_ranks > 1 && key->free_groups) count_comm_rest(counting->experts, true);
    if (key->same_experts > 1)
        counting->same_experts = count_comm_create("same experts", 0, key->same_experts, &counting->clocks, &data);
    StageShape at = *stage;
    at.stage = 0;
    at.stages = at.chunks = 1;
    at.first_layer = 0;
    at.layers = key->layers;
    at.recomputed = key->recomputed;
    at.first = key->first, at.last = key->last;
    at.chunk[0] = (StageChunk){.layers = key->layers,
                               .recomputed = key->recomputed,
                               .dense = key->dense,
                               .kept = at.shape.slices > 1 ? 1 : 0,
                               .first = key->first,
                               .last = key->last};
    ModelConfig whole = source->config->model;
    whole.layers = max_i64(key->layers, 1), whole.dense_layers = key->dense;
    int status = stage_allocate(&counting->stage, source->model, source->config, &at, &whole, counting->be,
                                counting->tensor, 0, &counting->err);
    assert(status == 0), (void)status;
    stage_use_context(&counting->stage, counting->context);
    counting->stage.pass.experts = counting->experts;
    return counting;
}

static void counted_close_(CountedStage *counting) {
    Comm *comms[] = {counting->tensor, counting->context[0], counting->context[1],
                     counting->data,   counting->experts,    counting->same_experts};
    stage_destroy(&counting->stage);
    for (int i = 0; i < 6; i++)
        if (comms[i] != NULL) comms[i]->destroy(comms[i]);
    counting->be->destroy(counting->be);
    free(counting);
}

// Returns what was counted since the last call.
static Account counted_read_(CountedStage *counting) {
    Account spent = counting->clocks.spent;
    counting->clocks.spent = (Account){0};
    assert(counting->err.code == 0);
    return spent;
}

// Counts every action on every slice; backwards run from the last slice to the first. Bundle and messages have memory
// of their own, as in a run.
static void count_actions_(CountedStage *counting, const CountKey *key, ChunkTimes *times) {
    Stage *stage = &counting->stage;
    Backend *be = counting->be;
    Error *err = &counting->err;
    int64_t bytes = stage->at.message_bytes, slices = stage->at.shape.slices;
    void *bundle = be->allocate(be, MEMORY_OWN_SLOTS, stage->at.bundle_bytes, "bundle", err);
    void *in = be->allocate(be, MEMORY_MESSAGES, bytes, "input", err);
    void *out = be->allocate(be, MEMORY_MESSAGES, bytes, "output", err);
    counted_read_(counting);
    for (int64_t i = 0; i < slices; i++) {
        stage_forward(stage, 0, i, bundle, in, out, 1.0f, err);
        times[i].forward = counted_read_(counting);
    }
    for (int64_t i = slices - 1; i >= 0; i--) {
        stage_backward(stage, 0, i, bundle, in, out, false, err);
        times[i].backward = counted_read_(counting);
    }
    for (int64_t i = slices - 1; key->split && i >= 0; i--) {
        stage_backward(stage, 0, i, bundle, in, out, true, err);
        times[i].input = counted_read_(counting);
        stage_weights(stage, 0, i, bundle, err);
        times[i].weight = counted_read_(counting);
    }
    be->summing = true;
    for (int64_t i = slices - 1; key->beside && i >= 0; i--) {
        stage_backward(stage, 0, i, bundle, in, out, key->split, err);
        if (key->split) counted_read_(counting), stage_weights(stage, 0, i, bundle, err);
        Account beside = counted_read_(counting);
        times[i].beside = account_total(&beside) - account_total(key->split ? &times[i].weight : &times[i].backward);
    }
}

// Counts the end of a step. The sums of gradients are left out, since a plan simulates how they share the network while
// backwards run (plan_time.c).
static void count_update_(CountedStage *counting, ChunkTimes *times) {
    Error *err = &counting->err;
    OptimizerGroups groups = {.tensor = counting->tensor, .data = counting->data, .experts = counting->same_experts};
    Optimizer *optimizer = optimizer_create(&counting->stage, &groups);
    double norm;
    counted_read_(counting);
    tensors_quantize(&counting->stage.tensors, counting->be);
    Comm *sums[] = {counting->data, counting->same_experts};
    for (int i = 0; i < 2; i++)
        if (sums[i] != NULL) count_comm_rest(sums[i], true);
    optimizer_norm(optimizer, &norm, err);
    for (int i = 0; i < 2; i++)
        if (sums[i] != NULL) count_comm_rest(sums[i], false);
    optimizer_update(optimizer, 1, 0, 1.0, err);
    times->forward = counted_read_(counting);
    optimizer_destroy(optimizer);
}

Memo *counted_memo(void) { return memo_create(sizeof(CountKey)); }

// Recalls the times of a key, or counts and remembers them.
static void count_(const CountSource *source, const StageShape *stage, const CountKey *key, ChunkTimes *times) {
    size_t bytes = (size_t)(key->update ? 1 : stage->shape.slices) * sizeof *times;
    if (source->memo != NULL && memo_find(source->memo, key, times)) return;
    memset(times, 0, bytes);
    CountedStage *counting = counted_open_(source, stage, key);
    if (key->update) count_update_(counting, times);
    else count_actions_(counting, key, times);
    counted_close_(counting);
    if (source->memo != NULL) memo_keep(source->memo, key, times, bytes);
}

// ---------------------------------------------------------------- any number of layers

static void times_add_(ChunkTimes *a, const ChunkTimes *b, double factor, int64_t slices) {
    for (int64_t i = 0; i < slices; i++) {
        account_add(&a[i].forward, &b[i].forward, factor);
        account_add(&a[i].backward, &b[i].backward, factor);
        account_add(&a[i].input, &b[i].input, factor);
        account_add(&a[i].weight, &b[i].weight, factor);
        a[i].beside += factor * b[i].beside;
    }
}

// Counts `plain` and `recomputed` layers: at most MOST of each, then `more` times what the last one added.
static void count_layers_(const CountSource *source, const StageShape *stage, CountKey *key, int64_t plain,
                          int64_t recomputed, ChunkTimes *times) {
    int64_t slices = key->update ? 1 : stage->shape.slices, of[2] = {plain, recomputed};
    bool whole_update = source->config->train.optimizer == OPTIMIZER_MUON || key->dense > 0; // dealt, or not alike
    int64_t most = key->update && whole_update ? plain : MOST;
    int counted[2] = {(int)min_i64(plain, most), (int)min_i64(recomputed, MOST)};
    ChunkTimes *fewer = xmalloc((size_t)slices * 2 * sizeof *fewer), *whole = fewer + slices;
    key->layers = counted[0] + counted[1], key->recomputed = counted[1];
    count_(source, stage, key, whole);
    memcpy(times, whole, (size_t)slices * sizeof *times);
    for (int kind = 0; kind < 2; kind++) {
        double more = (double)(of[kind] - counted[kind]);
        if (more == 0) continue;
        key->layers = counted[0] + counted[1] - 1, key->recomputed = counted[1] - kind;
        count_(source, stage, key, fewer);
        times_add_(times, whole, more, slices);
        times_add_(times, fewer, -more, slices);
    }
    free(fewer);
}

void counted_chunk(const CountSource *source, const StageShape *stage, const StageChunk *chunk, ChunkTimes *times) {
    CountKey key = key_(source, &stage->shape);
    key.first = chunk->first, key.last = chunk->last;
    // Layers without experts come first and are few, so that a chunk with some is counted as it is.
    if (chunk->dense > 0) counted_chunk_whole(source, stage, chunk, times);
    else count_layers_(source, stage, &key, chunk->layers - chunk->recomputed, chunk->recomputed, times);
}

void counted_chunk_whole(const CountSource *source, const StageShape *stage, const StageChunk *chunk,
                         ChunkTimes *times) {
    CountKey key = key_(source, &stage->shape);
    key.first = chunk->first, key.last = chunk->last;
    key.layers = (int)chunk->layers, key.recomputed = (int)chunk->recomputed, key.dense = (int)chunk->dense;
    count_(source, stage, &key, times);
}

Account counted_update(const CountSource *source, const StageShape *stage) {
    const ParallelConfig *parallel = &source->config->parallel;
    CountKey key = key_(source, &stage->shape);
    ChunkTimes times;
    memset(key.sizes, 0, sizeof key.sizes);
    key.update = true;
    key.split = key.beside = false;
    key.sharded = config_shards_gradients(source->config);
    key.first = stage->first, key.last = stage->last;
    key.dense = (int)stage->chunk[0].dense;
    key.replicas = (int)config_replicas(source->config);
    if (key.expert_ranks > 0) key.same_experts = key.replicas * key.tensor_ranks / key.expert_ranks;
    int64_t nodes = hardware_nodes_of_data(source->hardware, source->config);
    key.data_near = (int)((key.replicas + nodes - 1) / nodes);
    key.data_rate = rate_(source, 0, parallel->pipeline * parallel->tensor);
    count_layers_(source, stage, &key, stage->layers, 0, &times);
    return times.forward;
}

// Counts chunks of MOST layers, the first `count` of: in the middle of the model, one layer fewer there, with the
// embedding, with the head. Returns what a layer and the ends add.
static PartTimes parts_(const CountSource *source, const StageShape *stage, int count) {
    static const StageChunk chunks[] = {
        {.layers = MOST}, {.layers = MOST - 1}, {.layers = MOST, .first = true}, {.layers = MOST, .last = true}};
    int64_t slices = stage->shape.slices;
    ChunkTimes *times = xmalloc((size_t)slices * sizeof *times);
    double seconds[4] = {0}, forward[4] = {0}, first[4] = {0};
    for (int i = 0; i < count; i++) {
        counted_chunk(source, stage, &chunks[i], times);
        for (int64_t k = 0; k < slices; k++) {
            forward[i] += account_total(&times[k].forward);
            seconds[i] += account_total(&times[k].forward) + account_total(&times[k].backward);
        }
        first[i] = account_total(&times[0].forward);
    }
    free(times);
    return (PartTimes){seconds[0] - seconds[1], forward[0] - forward[1], seconds[2] - seconds[0],
                       seconds[3] - seconds[0], first[0] - first[1]};
}

PartTimes counted_parts(const CountSource *source, const StageShape *stage) { return parts_(source, stage, 4); }

PartTimes counted_layer(const CountSource *source, const StageShape *stage) { return parts_(source, stage, 2); }
