// Runs stages on clocks (counted.h). All layers of a kind take the same time except at the two ends: the first finds no
// gather in flight, the last writes its own output. So a chunk is counted with at most MOST plain and MOST recomputed
// layers, and each further layer takes as long as the middle one of these.
#include "counted.h"

#include "base/alloc.h"
#include "base/units.h"
#include "config/family.h"
#include "engine/optimizer.h"
#include "model/quantized.h"
#include "ranks/topology.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 3 };

// The groups of the counted rank. CONTEXT_LAST: the context group as its last rank sees it.
enum { TENSOR, CONTEXT, CONTEXT_LAST, DATA, EXPERTS, SAME_EXPERTS, GROUPS };
static const char *const groups_[GROUPS] = {"tensor", "context", "context", "data", "experts", "same experts"};

// Everything that the counted seconds depend on. Compared as bytes after a memset.
typedef struct CountKey {
    char sizes[sizeof(Shape)]; // the Shape; 0 for the end of a step, which does not depend on the micro-batch size
    CountLinks link[GROUPS];
    double fullest; // see Clocks
    double flops;
    bool update; // true: the end of a step; false: the actions of a chunk
    bool brief;  // true: counts only F, and the B of the second microbatch
    bool first, last, sequence, moving, split, beside, sharded, free_groups, theirs;
    int layers, recomputed, dense;
    int size[GROUPS]; // ranks of each group; 0 or 1: no group
} CountKey;

// ---------------------------------------------------------------- links

// Returns the rows of the fullest of e expert ranks over the mean. If the tokens of E experts have a standard deviation
// of `spread` times their mean, those of a rank's E/e experts have spread * sqrt(e / E); the largest of e normal
// numbers is about sqrt(2 ln e) standard deviations above the mean.
static double fullest_(const Config *config) {
    double e = (double)config->parallel.expert, all = (double)config->model.experts;
    return fmin(e, 1 + counted_spread(config) * sqrt(e / all * 2 * log(e)));
}

double counted_spread(const Config *config) {
    static const double GUESS = 0.3, OF = 128; // runs between 0.04 with 8 experts and 0.95 with 128 are known
    double given = config->hardware.expert_spread;
    return given != 0 ? given : GUESS * sqrt((double)config->model.experts / OF);
}

// Returns whether bundles go to partners on other nodes.
static bool partners_are_far_(const Config *config) {
    const ParallelConfig *parallel = &config->parallel;
    int64_t node = config->hardware.gpus_per_node, of_stage = parallel->tensor * parallel->context;
    if (parallel->placement == PLACEMENT_STAGES) of_stage *= parallel->data;
    bool adjacent = parallel->placement == PLACEMENT_ADJACENT;
    int64_t row = of_stage * (adjacent ? 2 : parallel->pipeline); // ranks in a row that a pair spans
    bool shifted = adjacent && parallel->pipeline % 2 == 1 && config_world(config) > of_stage * parallel->pipeline;
    bool moves = config->schedule.bpipe == BPIPE_ON && config->schedule.evict_to == EVICT_TO_PEER;
    bool pairs = moves && parallel->pipeline > 1 && config_world(config) > node;
    return pairs && (row > node || node % row != 0 || shifted);
}

// Returns whether a stage sends and receives across nodes on both sides. With one such side, most schedules wait for
// these messages anyway. Messages from the last stage back to the first are not considered.
static bool neighbours_are_far_(const Config *config, int64_t node) {
    for (int s = 1; s + 1 < config->parallel.pipeline; s++) {
        int64_t at[3];
        for (int i = 0; i < 3; i++) at[i] = topology_rank(&config->parallel, (Coordinates){0, s + i - 1, 0}) / node;
        if (at[0] != at[1] && at[1] != at[2]) return true;
    }
    return false;
}

// Depends only on the layout, the GPUs of a node and the table of GPUs: correcting a rate between two runs must not
// change the kernels. Does not depend on the list, so --validate, whose list has one chunk, uses the kernels of
// training; except if bundles leave the node, since --validate evicts none.
bool counted_moves(const Gpu *gpu, const Config *config, const StageShape *stage) {
    static const double REACHED = 0.7, FP8 = 1.5; // large products, roughly: share of the peak; gain of 8 bits
    const ParallelConfig *parallel = &config->parallel;
    const Shape *shape = &stage->shape;
    int64_t node = config->hardware.gpus_per_node, senders = parallel->tensor * parallel->context;
    if (partners_are_far_(config)) return true;
    bool persistent = gpu_capability(gpu) >= 90;
    if (!persistent || !neighbours_are_far_(config, max_i64(node, gpu->domain))) return false;
    // By the clock of dry runs, the two messages that a stage sends for a microbatch and the two that it receives make
    // its products wait about as long as one of them takes.
    if (parallel->placement == PLACEMENT_STAGES) senders *= parallel->data;
    int chunks = config->schedule.file[0] != '\0' ? 1 : config_chunks(config);
    double flops = model_flops_per_token(config, false) * (double)shape->rows /
                   (double)(parallel->pipeline * chunks * parallel->tensor);
    double rate = 1e12 * REACHED * gpu_peak(gpu, config->train.precision) * (shape->fp8 == FP8_OFF ? 1 : FP8);
    double network = 1e9 * gpu->network_gb_s * (double)node / (double)gpu->gpus_per_node;
    double message = (double)stage->message_bytes * (double)min_i64(senders, node) / network;
    return message > LINK_CTAS / 128.0 * flops / rate;
}

// Sets the size of a group and, if it leaves its node, how: the fastest of the links that it has in `stages` places.
// The groups of a node share its network; in an exchange, all ranks send at the same time. Only the gathers of weights,
// after the update, begin on all stages at once: what other stages' groups delay during actions is added by the
// simulation of the pipeline (SimulateShares).
static void set_group_(const CountSource *source, const StagePlace *places, int64_t stages, CountKey *key, int group,
                       RankGroup kind, int64_t size) {
    const Hardware *hardware = source->hardware;
    CountLinks fastest = {0}; // the key's are set field by field: the bytes between fields stay 0
    key->size[group] = (int)size;
    for (const StagePlace *place = places; size > 1 && place < places + stages; place++) {
        int64_t near = place->of[kind].near, sharing = place->of[kind].leaving;
        if (sharing == 0) return;
        if (kind == GROUP_EXPERTS) sharing = place->of[GROUP_DATA].here;
        if (key->update) sharing = place->of[kind].crowd;
        double rate = fmin(hardware_network(hardware, source->config) / (double)sharing, hardware->cost.tensor);
        fastest.rate = fmax(fastest.rate, rate);
        fastest.near = max_int(fastest.near, (int)near);
    }
    key->link[group].rate = fastest.rate;
    key->link[group].near = fastest.near;
}

static CountKey key_(const CountSource *source, const StageShape *stage) {
    const Shape *shape = &stage->shape;
    CountKey key;
    memset(&key, 0, sizeof key);
    memcpy(key.sizes, shape, sizeof key.sizes);
    key.sequence = shape->sequence;
    StagePlace *all = source->place == NULL ? hardware_places(source->hardware, source->config) : NULL;
    const StagePlace *places = all != NULL ? all : source->place;
    int64_t stages = all != NULL ? source->config->parallel.pipeline : 1;
    set_group_(source, places, stages, &key, TENSOR, GROUP_TENSOR, shape->tensor_ranks);
    key.link[TENSOR].copies = shape->copies;
    set_group_(source, places, stages, &key, CONTEXT, GROUP_CONTEXT, shape->context_ranks);
    key.size[CONTEXT_LAST] = key.size[CONTEXT], key.link[CONTEXT_LAST] = key.link[CONTEXT];
    if (source->config->model.experts > 0) {
        key.fullest = fullest_(source->config);
        set_group_(source, places, stages, &key, EXPERTS, GROUP_EXPERTS, source->config->parallel.expert);
    }
    free(all);
    key.theirs = source->config->hardware.trainer == TRAINER_NVIDIA;
    key.moving =
        !source->hardware->cpu && counted_moves(key.theirs ? NULL : source->hardware->gpu, source->config, stage);
    key.split = source->split;
    key.sharded = config_shards_gradients(source->config);
    key.beside = source->beside;
    key.free_groups = source->free_groups;
    key.flops = source->hardware->cost.flops;
    return key;
}

// ---------------------------------------------------------------- other programs

// NVIDIA's programs know a tensor's single scale before its numbers (delayed scaling), so norms and activations write
// eight bits and tensor ranks gather them. This trainer does that only with scales along rows. So those programs are
// counted with row scales, but with the product rate of one scale per tensor, which is in the hardware's costs. Their
// dispatchers are counted by Clocks.once. `config` receives the configuration.
static CountSource as_theirs_(const CountSource *source, Config *config, StageShape *stage) {
    CountSource theirs = *source;
    if (source->config->hardware.trainer != TRAINER_NVIDIA || source->config->train.fp8 != FP8_TENSOR) return theirs;
    *config = *source->config;
    config->train.fp8 = source->hardware->capability >= 100 ? FP8_MX : FP8_BLOCK;
    stage->shape.fp8 = config->train.fp8;
    quantized_shape(&stage->shape, families[config->model.family].biased);
    theirs.config = config;
    return theirs;
}

// ---------------------------------------------------------------- one count

typedef struct CountedStage {
    Cost cost;
    Clocks clocks;
    Backend *be;
    Comm *group[GROUPS]; // NULL: one rank
    Stage stage;
    int64_t layers_seen;
    int marks;
    Account mark[2 * MOST]; // account at each layer's end, in the order in which the layers ran
    Error err;
} CountedStage;

static bool mark_layer_(void *argument, bool moved) {
    CountedStage *counting = (CountedStage *)argument;
    int64_t layers = counting->stage.layers_queued;
    if (layers != counting->layers_seen && counting->marks < 2 * MOST)
        counting->mark[counting->marks++] = counting->clocks.spent;
    counting->layers_seen = layers, (void)moved;
    return true;
}

// Opens a stage of one chunk with the layers of the key.
static CountedStage *counted_open_(const CountSource *source, const StageShape *stage, const CountKey *key) {
    static const double NOMINAL = 1e14; // FLOP/s
    CountedStage *counting = xcalloc(1, sizeof *counting);
    bool known = key->flops > 0;
    counting->cost = source->hardware->cost;
    if (!known) counting->cost.flops = NOMINAL;
    counting->clocks = (Clocks){.cost = &counting->cost,
                                .flops_per_sent_byte = cost_flops_per_sent_byte(&counting->cost, source->config),
                                .own_sums = stage->own_sums,
                                .fullest = fmax(1, key->fullest),
                                .expert_ranks = max_int(1, key->size[EXPERTS]),
                                .once = key->theirs};
    counting->be =
        count_backend_create(&counting->clocks, source->config->train.precision, source->hardware->capability);
    counting->be->moving = key->moving;
    for (int g = 0; g < GROUPS; g++) {
        bool summed = g == DATA || g == SAME_EXPERTS, apart = g == TENSOR && !known && stage->shape.overlap;
        int size = key->size[g], rank = g == CONTEXT_LAST ? size - 1 : 0;
        if (size <= 1) continue;
        CountLinks links = key->link[g];
        links.beside = summed;
        counting->group[g] = count_comm_create(groups_[g], rank, size, &counting->clocks, &links);
        count_comm_rest(counting->group[g], (apart && !key->update) || (key->free_groups && !summed));
    }
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
                                counting->group[TENSOR], 0, &counting->err);
    assert(status == 0), (void)status;
    stage_use_context(&counting->stage, &counting->group[CONTEXT]);
    counting->stage.pass.experts = counting->group[EXPERTS];
    counting->stage.pass.poll = mark_layer_, counting->stage.pass.poll_argument = counting;
    return counting;
}

// Returns the account since the last call.
static Account counted_read_(CountedStage *counting) {
    Account spent = counting->clocks.spent;
    counting->clocks.spent = (Account){0};
    counting->marks = 0;
    assert(counting->err.code == 0);
    return spent;
}

// The times of a chunk's slices, and of one more plain and one more recomputed layer.
typedef struct Counted {
    ChunkTimes *chunk, *more[2]; // [slices]
} Counted;

// Stores an action's account in the slice's times: the chunk's, and those of one more layer of each kind.
// forwards: recomputed layers ran before plain ones, else after them.
static void counted_take_(CountedStage *counting, const CountKey *key, const Counted *counted, int64_t slice,
                          int action, bool forwards) {
    int of[2] = {key->layers - key->recomputed, key->recomputed};
    int first[2] = {forwards ? of[1] : 0, forwards ? 0 : of[0]};
    for (int kind = 0; kind < 2; kind++)
        if (of[kind] == MOST && first[kind] + MOST <= counting->marks) { // the middle one of MOST
            Account *more = &counted->more[kind][slice].of[action];
            *more = counting->mark[first[kind] + 1];
            account_add(more, &counting->mark[first[kind]], -1);
        }
    counted->chunk[slice].of[action] = counted_read_(counting);
}

// Counts every action on every slice; backwards run from the last slice to the first. Bundle and messages have memory
// of their own, as in a run. Counts the second microbatch: a step's first forward also waits for weights and quantizes
// them, and its first backward writes gradients, to which the others add.
static void count_actions_(CountedStage *counting, const CountKey *key, const Counted *counted) {
    Stage *stage = &counting->stage;
    Backend *be = counting->be;
    Error *err = &counting->err;
    int64_t bytes = stage->at.message_bytes, slices = stage->at.shape.slices;
    void *bundle = be->allocate(be, MEMORY_OWN_SLOTS, stage->at.bundle_bytes, "bundle", err);
    void *in = be->allocate(be, MEMORY_MESSAGES, bytes, "input", err);
    void *out = be->allocate(be, MEMORY_MESSAGES, bytes, "output", err);
    counted_read_(counting);
    for (int64_t i = 0; i < slices; i++) {
        stage_forward(stage, 0, slices + i, bundle, in, out, 1.0f, err);
        counted_take_(counting, key, counted, i, TIMED_FORWARD, true);
    }
    for (int64_t i = slices - 1; i >= 0; i--) {
        stage_backward(stage, 0, slices + i, bundle, in, out, false, err);
        counted_take_(counting, key, counted, i, TIMED_BACKWARD, false);
    }
    if (key->brief) return;
    stage_backward(stage, 0, slices - 1, bundle, in, out, false, err);
    counted_take_(counting, key, counted, slices - 1, COUNT_FIRST, false);
    for (int64_t i = slices - 1; key->split && i >= 0; i--) {
        stage_backward(stage, 0, slices + i, bundle, in, out, true, err);
        counted_take_(counting, key, counted, i, TIMED_INPUT, false);
        stage_weights(stage, 0, slices + i, bundle, err);
        counted_take_(counting, key, counted, i, TIMED_WEIGHT, false);
    }
    be->summing = true;
    for (int64_t i = slices - 1; key->beside && i >= 0; i--) {
        stage_backward(stage, 0, slices + i, bundle, in, out, key->split, err);
        counted_take_(counting, key, counted, i, COUNT_BESIDE, false);
        if (!key->split) continue;
        stage_weights(stage, 0, slices + i, bundle, err);
        counted_take_(counting, key, counted, i, COUNT_WEIGHT_BESIDE, false);
    }
    for (int64_t i = 0; i < slices; i++) {
        ChunkTimes *times[] = {&counted->chunk[i], &counted->more[0][i], &counted->more[1][i]};
        for (int k = 0; k < 3; k++) {
            Account *of = times[k]->of;
            if (key->beside) account_add(&of[COUNT_BESIDE], &of[key->split ? TIMED_INPUT : TIMED_BACKWARD], -1);
            if (key->beside && key->split) account_add(&of[COUNT_WEIGHT_BESIDE], &of[TIMED_WEIGHT], -1);
            if (i == slices - 1) account_add(&of[COUNT_FIRST], &of[TIMED_BACKWARD], -1);
        }
    }
}

// Counts the end of a step, and in `backward` the gathers of weights, which begin then. The sums of gradients are left
// out, since a plan simulates how they share the network while backwards run (plan_time.c).
static void count_update_(CountedStage *counting, ChunkTimes *times) {
    Error *err = &counting->err;
    Comm **of = counting->group, *sums[] = {of[DATA], of[SAME_EXPERTS]};
    OptimizerGroups groups = {.tensor = of[TENSOR], .data = of[DATA], .experts = of[SAME_EXPERTS]};
    Optimizer *optimizer = optimizer_create(&counting->stage, &groups);
    double norm;
    counted_read_(counting);
    tensors_quantize(&counting->stage.tensors, counting->be, 0, counting->stage.tensors.count);
    for (int i = 0; i < 2; i++)
        if (sums[i] != NULL) count_comm_rest(sums[i], true);
    optimizer_norm(optimizer, &norm, err);
    for (int i = 0; i < 2; i++)
        if (sums[i] != NULL) count_comm_rest(sums[i], false);
    optimizer_update(optimizer, 1, 0, 1.0, err);
    times->of[TIMED_FORWARD] = counted_read_(counting);
    optimizer_wait(optimizer, err);
    times->of[TIMED_BACKWARD] = counted_read_(counting);
    optimizer_destroy(optimizer);
}

Memo *counted_memo(void) { return memo_create(sizeof(CountKey)); }

// Recalls the times of a key, or counts and remembers them. counted->chunk: [3 * slices]; more[] are parts of it.
static void count_(const CountSource *source, const StageShape *stage, const CountKey *key, const Counted *counted) {
    size_t bytes = 3 * (size_t)(key->update ? 1 : stage->shape.slices) * sizeof *counted->chunk;
    if (source->memo != NULL && memo_find(source->memo, key, counted->chunk)) return;
    memset(counted->chunk, 0, bytes);
    CountedStage *counting = counted_open_(source, stage, key);
    if (key->update) count_update_(counting, counted->chunk);
    else count_actions_(counting, key, counted);
    stage_destroy(&counting->stage);
    for (int g = 0; g < GROUPS; g++)
        if (counting->group[g] != NULL) counting->group[g]->destroy(counting->group[g]);
    counting->be->destroy(counting->be);
    free(counting);
    if (source->memo != NULL) memo_keep(source->memo, key, counted->chunk, bytes);
}

// ---------------------------------------------------------------- any number of layers

static Counted counted_create_(int64_t slices) {
    ChunkTimes *times = xmalloc(3 * (size_t)slices * sizeof *times);
    return (Counted){times, {times + slices, times + 2 * slices}};
}

// Counts a chunk, with at most `most` layers of a kind, and adds the middle one of these for each further layer.
static void count_chunk_(const CountSource *source, const StageShape *stage, const StageChunk *chunk, int64_t most,
                         ChunkTimes *times) {
    Config config;
    StageShape at = *stage;
    CountSource theirs = as_theirs_(source, &config, &at);
    CountKey key = key_(&theirs, &at);
    int64_t slices = at.shape.slices, of[2] = {chunk->layers - chunk->recomputed, chunk->recomputed};
    Counted counted = counted_create_(slices);
    key.first = chunk->first, key.last = chunk->last;
    key.recomputed = (int)min_i64(of[1], most);
    key.layers = (int)min_i64(of[0], most) + key.recomputed, key.dense = (int)chunk->dense;
    count_(&theirs, &at, &key, &counted);
    memcpy(times, counted.chunk, (size_t)slices * sizeof *times);
    for (int kind = 0; kind < 2; kind++)
        for (int64_t i = 0; i < slices && of[kind] > most; i++) {
            double more = (double)(of[kind] - most);
            for (int k = 0; k < COUNTS; k++) account_add(&times[i].of[k], &counted.more[kind][i].of[k], more);
        }
    free(counted.chunk);
}

// Layers without experts come first and are few, so that a chunk with some is counted as it is.
void counted_chunk(const CountSource *source, const StageShape *stage, const StageChunk *chunk, ChunkTimes *times) {
    count_chunk_(source, stage, chunk, chunk->dense > 0 ? INT64_MAX : MOST, times);
}

void counted_chunk_whole(const CountSource *source, const StageShape *stage, const StageChunk *chunk,
                         ChunkTimes *times) {
    count_chunk_(source, stage, chunk, INT64_MAX, times);
}

UpdateTimes counted_update(const CountSource *source, const StageShape *stage) {
    const ParallelConfig *parallel = &source->config->parallel;
    CountKey key = key_(source, stage);
    memset(key.sizes, 0, sizeof key.sizes);
    key.update = true;
    key.split = key.beside = false;
    key.first = stage->first, key.last = stage->last;
    key.dense = (int)stage->chunk[0].dense;
    int64_t replicas = config_replicas(source->config), experts = key.size[EXPERTS];
    int64_t same = experts > 0 ? replicas * parallel->tensor / experts : 1;
    set_group_(source, source->place, 1, &key, DATA, GROUP_DATA, replicas);
    set_group_(source, source->place, 1, &key, SAME_EXPERTS, GROUP_SAME_EXPERTS, same);
    // All layers add the same, except that Muon assigns matrices to ranks, and layers with and without experts differ.
    bool alike = source->config->train.optimizer != OPTIMIZER_MUON && key.dense == 0;
    int64_t counted = alike ? min_i64(stage->layers, MOST) : stage->layers, more = stage->layers - counted;
    ChunkTimes times[3], fewer[3];
    key.layers = (int)counted;
    count_(source, stage, &key, &(Counted){.chunk = times});
    UpdateTimes spent = {times->of[TIMED_FORWARD], account_total(&times->of[TIMED_BACKWARD])};
    if (more == 0) return spent;
    key.layers = (int)counted - 1;
    count_(source, stage, &key, &(Counted){.chunk = fewer});
    spent.gather += (double)more * (spent.gather - account_total(&fewer->of[TIMED_BACKWARD]));
    account_add(&spent.update, &times->of[TIMED_FORWARD], (double)more);
    account_add(&spent.update, &fewer->of[TIMED_FORWARD], -(double)more);
    return spent;
}

// Counts chunks of MOST layers: in the middle of the model, with the embedding, with the head.
PartTimes counted_parts(const CountSource *source, const StageShape *stage, bool ends) {
    int64_t slices = stage->shape.slices;
    Counted counted = counted_create_(slices);
    Config config;
    StageShape at = *stage;
    CountSource theirs = as_theirs_(source, &config, &at);
    CountKey key = key_(&theirs, &at);
    PartTimes parts = {0};
    double seconds[3] = {0};
    key.brief = true;
    for (int i = 0; i < (ends ? 3 : 1); i++) {
        key.layers = MOST, key.first = i == 1, key.last = i == 2;
        count_(&theirs, &at, &key, &counted);
        const ChunkTimes *layer = counted.more[0];
        for (int64_t k = 0; k < slices; k++) {
            seconds[i] += account_total(&counted.chunk[k].of[TIMED_FORWARD]) +
                          account_total(&counted.chunk[k].of[TIMED_BACKWARD]);
            if (i > 0) continue;
            parts.forward += account_total(&layer[k].of[TIMED_FORWARD]);
            parts.layer += account_total(&layer[k].of[TIMED_FORWARD]) + account_total(&layer[k].of[TIMED_BACKWARD]);
        }
        if (i == 0) parts.first = account_total(&layer->of[TIMED_FORWARD]);
    }
    parts.embedding = ends ? seconds[1] - seconds[0] : 0;
    parts.head = ends ? seconds[2] - seconds[0] : 0;
    free(counted.chunk);
    return parts;
}
