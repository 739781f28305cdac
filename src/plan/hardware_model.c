// Describes the device of a configuration, and sums the costs of a layer, the embedding and the head on it. The cost of
// a single product, pass or collective is in device/cost.c.
#include "hardware_model.h"
#include "base/grid.h"
#include "backend/attention_scratch.h"
#include "base/units.h"

#include "config/config_schema.h"
#include "config/gpus.h"
#include "device/device.h"
#include "fits.h"
#include "ranks/affinity.h"

#include <math.h>
#include <string.h>

bool hardware_is_cpu(const Config *config) {
    if (config->hardware.device != DEVICE_AUTO) return config->hardware.device == DEVICE_CPU;
    return !device_has_gpus(config, config_world(config));
}

static void describe_gpu_(Hardware *hardware, const Config *config) {
    const HardwareConfig *given = &config->hardware;
    DeviceFigures here = {0};
    // device_figures is not called if both figures are given: loading the GPU code takes longer than most plans.
    if (given->peak_tflops == 0 || given->memory_gib == 0) device_figures(&here, config);
    hardware->peak = 1e12 * (given->peak_tflops > 0 ? given->peak_tflops : here.peak_tflops);
    cost_of_gpu(&hardware->cost, config, hardware->peak);
    hardware->memory_bytes = given->memory_gib > 0 ? (int64_t)(given->memory_gib * GIB) : here.memory_bytes;
}

// Returns the rate of a key for CPUs, in bytes/s. Defaults of these keys are for GPUs, so a key that is not set gives
// 8e9, the rate between ranks of one host over Open MPI's shared memory.
static double cpu_rate_(const Config *config, const char *key, double gb_s) {
    bool untouched = config->place[config_find(key) - config_keys] == CONFIG_DEFAULT;
    return untouched ? 8e9 : gb_s * 1e9;
}

// Describes a CPU: all ranks of a plan share this host, its cores and its memory.
static void describe_cpu_(Hardware *hardware, const Config *config) {
    int64_t world = config_world(config);
    int cores = affinity_allowed(), threads = affinity_threads(world > cores ? cores : (int)world);
    double at_a_time = (double)cores / threads, peak = config->hardware.peak_tflops * 1e12;
    if (peak == 0) peak = 1e12 * backend_cpu_measure_peak(config->train.precision, cores) / (double)world;
    const HardwareConfig *given = &config->hardware;
    hardware->peak = peak;
    hardware->cores_share = at_a_time;
    hardware->cost = (Cost){
        .flops = peak * (double)world / at_a_time,
        .efficiency = 0.90,
        .half = 8,
        .flash_forward = {0.45, 8, 0},
        .flash_backward = {0.45, 8, 0},
        .memory_rate = 8e9 * threads,
        .pair = cpu_rate_(config, "hardware.pair_gb_s", given->pair_gb_s),
        .tensor = cpu_rate_(config, "hardware.tensor_gb_s", given->tensor_gb_s),
        .network = cpu_rate_(config, "hardware.network_gb_s", given->network_gb_s),
        .host = cpu_rate_(config, "hardware.host_gb_s", given->host_gb_s),
        .latency = given->latency_us * 1e-6,
    };
    cost_take_given(&hardware->cost, config);
    hardware->memory_bytes = (int64_t)(config->hardware.memory_gib * GIB);
    hardware->host_bytes = machine_look(false).free_bytes;
}

void hardware_describe(Hardware *hardware, const Config *config, const char *device) {
    memset(hardware, 0, sizeof *hardware);
    hardware->cpu = hardware_is_cpu(config);
    hardware->action = config->hardware.action_us * 1e-6;
    hardware->step = config->hardware.step_overhead_ms * 1e-3;
    snprintf(hardware->device, sizeof hardware->device, "%s", device);
    if (hardware->cpu) describe_cpu_(hardware, config);
    else describe_gpu_(hardware, config);
}

void hardware_take_peak(Hardware *hardware, const Config *config, double peak_tflops) {
    if (config->hardware.peak_tflops > 0 || peak_tflops <= 0) return;
    hardware->cost.flops = hardware->peak = peak_tflops * 1e12;
    if (hardware->cpu) hardware->peak *= hardware->cores_share / (double)config_world(config);
}

int hardware_node(const Hardware *hardware, const Config *config, int rank) {
    return hardware->cpu ? 0 : rank / (int)config->hardware.gpus_per_node;
}

// ---------------------------------------------------------------- compute

// The inputs of the cost functions.
typedef struct Work {
    const Hardware *hardware;
    const Config *config;
    const Shape *shape;
} Work;

static double bytes_(const Work *work, double bytes) { return cost_pass(&work->hardware->cost, bytes); }

// Returns the factor (>= 1) by which persistent products slow down. These products leave multiprocessors free for
// bundles that move to another node (Backend.moving).
static double beside_bundles_(const Work *work) {
    const Config *config = work->config;
    const ParallelConfig *parallel = &config->parallel;
    double all = work->hardware->cost.multiprocessors;
    int64_t pair =
        parallel->tensor * parallel->context * (parallel->placement == PLACEMENT_ADJACENT ? 2 : parallel->pipeline);
    bool peers = config->schedule.bpipe == BPIPE_ON && config->schedule.evict_to == EVICT_TO_PEER;
    bool leaves = work->hardware->cost.persistent && peers && pair > config->hardware.gpus_per_node;
    return leaves && all > LINK_CTAS ? all / (all - LINK_CTAS) : 1;
}

static double product_(const Work *work, double count, int64_t m, int64_t n, int64_t k) {
    return beside_bundles_(work) * cost_product(&work->hardware->cost, count, m, n, k);
}

static double layer_product_(const Work *work, int64_t m, int64_t n, int64_t k) {
    const Cost *cost = &work->hardware->cost;
    bool narrow = work->shape->fp8 != FP8_OFF && !work->hardware->cpu;
    return narrow ? beside_bundles_(work) * cost_product_fp8(cost, m, n, k) : product_(work, 1, m, n, k);
}

// Returns the extra seconds that weight-gradient products take to accumulate into the fp32 gradients of `weights`
// weights.
static double adding_(const Work *work, double weights) {
    return beside_bundles_(work) * cost_adding(&work->hardware->cost, weights);
}

// Returns the bytes of one pass over the residual stream of this rank.
static double hardware_stream_(const Shape *s) { return (double)(s->shard_rows * s->hidden * s->element); }

// Returns the bytes that the passes of softmax move per score. Fused: one read and one write, and one more read in the
// backward. Unfused, in fp32: cast, scale, mask, softmax and cast back, and in the backward the reverse. The CPU
// backend's softmax is always fused.
static double softmax_bytes_(const Work *work, bool backward) {
    const Shape *s = work->shape;
    if (work->hardware->cpu || attention_softmax_fuses(&s->attention, s->element))
        return (double)s->element * (backward ? 3 : 2);
    double cast = (double)s->element + 4;
    return backward ? 2 * cast + 12 + 8 + 8 : 2 * cast + 1 + 8 + 8 + 8;
}

// Adds the core attention of every mode except flash. These modes compute all s*s pairs. A slice computes all keys that
// its last query sees. A context rank has two pieces. On average, a piece sees half of all keys plus half a piece.
static void stored_attention_(const Work *work, PartTime *time) {
    const Shape *s = work->shape;
    const AttentionShape *a = &s->attention;
    int64_t keys = s->pieces > 1 ? (a->seq * s->context_ranks + a->seq / s->pieces) / 2 : attention_keys(a);
    double heads = (double)(a->batch * a->heads), scores = heads * (double)a->seq * (double)keys;
    double one = product_(work, heads, a->seq, keys, a->head_dim);
    double forward = 2 * one + bytes_(work, scores * softmax_bytes_(work, false));
    time->forward += forward;
    time->backward += 4 * one + bytes_(work, scores * softmax_bytes_(work, true));
    if (s->slices * s->context_ranks > 1) // accumulates the gradients of keys and values
        time->backward += adding_(work, 2 * heads * (double)(keys * a->head_dim * s->pieces));
    if (a->mode == ATTENTION_RECOMPUTE) time->backward += forward;
}

static void flash_attention_(const Work *work, PartTime *time) {
    const AttentionShape *a = &work->shape->attention;
    const Cost *cost = &work->hardware->cost;
    int64_t contexts = work->shape->context_ranks, keys = attention_keys(a) * contexts; // keys of all context ranks
    double heads = (double)(a->batch * a->heads) * (a->full ? 2 : 1);                   // cost_flash: causal attention
    double *times[] = {&time->forward, &time->backward};
    for (int back = 0; back < 2; back++) { // a slice: time up to the slice's end minus time up to its start
        double calls = back == 1 ? (double)work->shape->flash_calls : 1;
        *times[back] += calls * cost_flash(cost, heads / calls, keys, a->head_dim, back == 1) / (double)contexts;
        if (a->first > 0) *times[back] -= calls * cost_flash(cost, heads / calls, a->first, a->head_dim, back == 1);
    }
}

// Returns the seconds of a product over all rows that is cut into chunks of rows.
static double in_chunks_(const Work *work, int chunks, int64_t n, int64_t k) {
    const Shape *s = work->shape;
    const Cost *cost = &work->hardware->cost;
    int64_t blocks = s->sequence ? s->tensor_ranks : 1;
    double seconds = 0;
    for (int c = 0; c < chunks; c++) {
        int64_t rows = s->shard_rows * (c + 1) / chunks - s->shard_rows * c / chunks;
        double longer = chunks > 1 ? cost_waves(cost, 1, rows * blocks, n, cost->multiprocessors) : 1;
        seconds += longer * layer_product_(work, rows * blocks, n, k);
    }
    return seconds;
}

double hardware_left_to_w(const Shape *s) {
    double columns = (double)(s->hidden * (s->qkv_cols + s->mlp_cols)),
           rows = (double)(s->hidden * (s->query_cols + s->ffn));
    return s->pointwise ? columns / (columns + rows) : 1;
}

static void layer_products_(const Work *work, PartTime *time) {
    const Shape *s = work->shape;
    int columns = s->sequence ? s->chunks : 1; // without gathers, chunks gain nothing
    double whole = layer_product_(work, s->rows, s->qkv_cols, s->hidden) +
                   layer_product_(work, s->rows, s->hidden, s->query_cols) +
                   layer_product_(work, s->rows, s->mlp_cols, s->hidden) +
                   layer_product_(work, s->rows, s->hidden, s->ffn);
    time->forward += in_chunks_(work, columns, s->qkv_cols, s->hidden) +
                     in_chunks_(work, s->chunks, s->hidden, s->query_cols) +
                     in_chunks_(work, columns, s->mlp_cols, s->hidden) + in_chunks_(work, s->chunks, s->hidden, s->ffn);
    double weights = (double)s->hidden * (double)(s->qkv_cols + s->query_cols + s->mlp_cols + s->ffn);
    double gradients = whole + adding_(work, weights);
    time->backward += whole + gradients;
    time->weight += hardware_left_to_w(s) * gradients; // half of the backward's products, or less
    // In eight bits the peak is twice as high.
    double flops = 2 * (double)s->rows * weights, higher = s->fp8 != FP8_OFF && !work->hardware->cpu ? 2 : 1;
    time->spent[0].peak = flops / (higher * work->hardware->cost.flops);
    time->spent[1].peak = 2 * time->spent[0].peak;
}

// Returns the bytes that quantizing one bf16 number moves. With a single scale for the matrix, one more pass finds the
// scale; the transpose reuses it.
static double quantize_bytes_(int fp8) { return fp8 == FP8_OFF ? 0 : fp8 == FP8_TENSOR ? 2 + 3 : 3; }

// Adds the passes that quantize the operands of the four products: inputs for the forward, their transpose for the
// weight's gradient, and output gradients, plain and transposed, for the backward. With shape->narrow a rank quantizes
// only its own rows of the stream, and a transpose reads and writes numbers of eight bits. On a GPU, norms and SwiGLU
// then write eight bits instead of the sixteen that layer_passes_ counts.
static void layer_quantize_(const Work *work, PartTime *time) {
    const Shape *s = work->shape;
    bool inputs = s->narrow[GATHERED_INPUT] != FACTOR_PLAIN, gradients = s->narrow[GATHERED_GRADIENT] != FACTOR_PLAIN;
    double each = quantize_bytes_(s->fp8), rows = (double)s->rows, stream = 2 * rows * (double)s->hidden;
    double shard = 2 * (double)s->shard_rows * (double)s->hidden, act = rows * (double)s->ffn;
    bool gated = families[work->config->model.family].gated, fused = inputs && !work->hardware->cpu;
    double norms = (fused ? -1 : each) * (inputs ? shard : stream), attention = each * rows * (double)s->query_cols;
    double made = (fused && gated ? -1 : each) * act;
    double next = s->fp8 == FP8_OFF ? 0 : 3; // bytes to quantize a transpose if the scale is known
    double again = next * rows * (double)s->query_cols + (inputs ? 2 : next) * stream + (inputs ? 2 : each) * act;
    double sent = each * (gradients ? shard : stream), columns = each * rows * (double)(s->qkv_cols + s->mlp_cols);
    double back = columns + (gradients ? 2 : each) * stream;
    double found = (each - next) * (rows * (double)(s->qkv_cols + s->mlp_cols) + (gradients ? 0 : stream));
    time->forward += bytes_(work, norms + attention + made);
    if (fused && gated && s->overlap && s->ffn % factor_block_cols(s->narrow[GATHERED_INPUT]) == 0)
        columns -= (each - 1) * rows * (double)s->mlp_cols; // SwiGLU's backward writes eight bits, too
    time->backward += bytes_(work, again + sent + columns + back - found);
    time->kept += bytes_(work, found); // W in a split backward finds the scale again
    time->weight += bytes_(work, again + back + (gradients ? sent : 0));
    if (!s->pointwise || !inputs) return;
    time->norms += bytes_(work, norms), time->act += bytes_(work, made);
    time->backward += bytes_(work, norms + made);
    time->weight += bytes_(work, norms);
}

// Adds norms, residuals, rotation and activation: 8 passes over the stream in each direction, plus the passes over the
// activations between products. The residual sum at the end of a layer is part of the next layer's norm.
static void layer_passes_(const Work *work, PartTime *time) {
    const Shape *s = work->shape;
    const Family *family = &families[work->config->model.family];
    double up = family->gated ? 3 : 2, down = family->gated ? 5 : 2; // passes over the activation and its inputs
    double rotations = family->rotary ? 2 : 0, biases = family->biased ? 1 : 0;
    double inner = (double)(s->rows * s->ffn * s->element), qkv = (double)(s->rows * s->qkv_cols * s->element);
    time->forward += bytes_(work, 8 * hardware_stream_(s) + up * inner + rotations * qkv);
    time->backward += bytes_(work, 8 * hardware_stream_(s) + down * inner + (rotations + biases) * qkv);
    time->weight += bytes_(work, biases * qkv);
    if (s->pointwise) {
        time->norms = bytes_(work, 4 * hardware_stream_(s));
        time->act = bytes_(work, up * inner);
        time->backward += time->norms + time->act;
        time->weight += time->norms;
    }
    // I copies gradients for W, with one read and one write: the output gradients of both column products, and the
    // gradient of the stream after each half-layer.
    double columns = (double)(s->rows * (s->mlp_cols + s->qkv_cols) * s->element);
    time->kept += bytes_(work, 2 * (columns + (s->pointwise ? 0 : 2 * hardware_stream_(s))));
}

// Adds the passes over keys and values that slices and context ranks need: to copy the rank's own rows, to zero the
// gradients at the start and, with flash, to add in fp32 the gradients of all keys that the rank's queries see.
static void range_passes_(const Work *work, PartTime *time) {
    const Shape *s = work->shape;
    const AttentionShape *a = &s->attention;
    double element = (double)s->element, cols = (double)(s->qkv_cols - s->query_cols), own = (double)s->rows * cols;
    int64_t all = s->slices * s->context_ranks * s->seq;
    int64_t seen = s->pieces > 1 ? all + s->seq / s->pieces : attention_keys(a); // keys seen, summed over both pieces
    bool flash = a->mode == ATTENTION_FLASH, starts = s->pieces > 1 || attention_keys(a) == all;
    if (all == s->seq) return;
    double gradients = (flash ? (element + 8) * (double)seen : 0) + (starts ? 4 * (double)all : 0);
    double copied = bytes_(work, 2 * element * own);
    time->forward += copied;
    time->backward += bytes_(work, (4 + element) * own + gradients * (double)s->batch * cols);
    if (s->pieces > 1) time->backward += copied;
}

static void attention_(const Work *work, PartTime *time) {
    if (work->shape->attention.mode == ATTENTION_FLASH) flash_attention_(work, time);
    else stored_attention_(work, time);
}

static PartTime layer_(const Work *work) {
    PartTime time = {0};
    layer_products_(work, &time);
    double forward = time.forward, backward = time.backward;
    layer_passes_(work, &time);
    range_passes_(work, &time);
    layer_quantize_(work, &time);
    time.spent[0].passes = time.forward - forward;
    time.spent[1].passes = time.backward - backward;
    forward = time.forward, backward = time.backward;
    attention_(work, &time);
    time.spent[0].attention = time.forward - forward;
    time.spent[1].attention = time.backward - backward;
    return time;
}

static PartTime embedding_(const Work *work) {
    const Shape *s = work->shape;
    double rows = (double)s->rows * (double)s->hidden;
    double forward = bytes_(work, 2 * rows * (double)s->element),
           backward = bytes_(work, rows * ((double)s->element + 8));
    return (PartTime){.forward = forward, .backward = backward, .spent = {{.passes = forward}, {.passes = backward}}};
}

static PartTime hardware_head_(const Work *work) {
    const Shape *s = work->shape;
    double logits = (double)s->rows * (double)s->vocab_width * (double)s->element;
    double products =
        3 * product_(work, 1, s->rows, s->vocab_width, s->hidden) + adding_(work, (double)(s->vocab_width * s->hidden));
    double passes = bytes_(work, 3 * logits + 10 * hardware_stream_(s)),
           flops = 6 * (double)s->rows * (double)s->vocab_width * (double)s->hidden;
    return (PartTime){.forward = products + passes,
                      .spent = {{.peak = flops / work->hardware->cost.flops, .passes = passes}}};
}

void hardware_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *shape) {
    Work work = {hardware, config, shape};
    times->layer = layer_(&work);
    times->embedding = embedding_(&work);
    times->head = hardware_head_(&work);
    times->pass = bytes_(&work, hardware_stream_(shape));
    hardware_tensor_times(times, hardware, config, shape);
}

// ---------------------------------------------------------------- collectives over tensor ranks

// Returns half the time of an all-gather plus a reduce-scatter, or of an all-reduce, of rows * hidden elements of
// `each` bytes. A ring over several nodes has one link out of each node, so it runs at the node's network rate.
static double collective_(const Hardware *hardware, const Config *config, const Shape *s, double each) {
    const Cost *cost = &hardware->cost;
    double bytes = (double)(s->rows * s->hidden) * each;
    int t = s->tensor_ranks;
    int64_t node = config->hardware.gpus_per_node;
    if (!hardware->cpu && config_world(config) > node && node % config->parallel.tensor != 0)
        return cost_collective_between(cost, COST_ALL_REDUCE, bytes, t, fmin(cost->network, cost->tensor)) / 2;
    if (s->copies) return cost_copies(cost, bytes, t) + cost_pass(cost, bytes / t); // a gather copies its own rows too
    if (!s->sequence) return cost_collective(cost, COST_ALL_REDUCE, bytes, t) / 2;
    return (cost_collective(cost, COST_ALL_GATHER, bytes, t) + cost_collective(cost, COST_REDUCE_SCATTER, bytes, t)) /
           2;
}

// Adds the gathers of keys and values over context ranks and the sums of their gradients. No compute hides them. The
// ranks of a stage are consecutive, and the ranks of a node share its network.
static void context_collectives_(const Work *work, PartTime *layer) {
    const Shape *s = work->shape;
    const Cost *cost = &work->hardware->cost;
    int64_t c = s->context_ranks, t = s->tensor_ranks, node = work->config->hardware.gpus_per_node;
    bool near = work->hardware->cpu || config_world(work->config) <= node || node % (c * t) == 0;
    double seconds[2], keys = (double)(c * s->rows * (s->qkv_cols - s->query_cols));
    double rate = fmin(cost->network / (double)(t < node ? t : node), cost->tensor);
    for (int sum = 0; sum < 2; sum++) {
        CostCollective kind = sum ? COST_REDUCE_SCATTER : COST_ALL_GATHER;
        double bytes = keys * (sum ? 4 : (double)s->element);
        seconds[sum] = near ? cost_collective(cost, kind, bytes, (int)c)
                            : cost_collective_between(cost, kind, bytes, (int)c, rate);
    }
    layer->tensor_forward += seconds[0];
    layer->tensor_backward += seconds[0] + seconds[1];
    layer->tensor_input += seconds[0] + seconds[1];
}

// Returns the time to gather inputs or gradients. Numbers of eight bits and their scales take two collectives.
static double gathered_(const Work *work, Gathered what) {
    const Shape *s = work->shape;
    if (s->narrow[what] == FACTOR_PLAIN) return collective_(work->hardware, work->config, s, (double)s->element);
    double scales = 1.0 / 32; // one byte for 32 numbers, or four bytes for 128
    return collective_(work->hardware, work->config, s, 1) + collective_(work->hardware, work->config, s, scales);
}

// Returns the seconds of the kernel that ends a reduce-scatter by copies: it reads a block per rank and writes one.
static double blocks_summed_(const Hardware *hardware, const Shape *s) {
    if (!s->copies || hardware->cost.flops == 0) return 0;
    return cost_pass(&hardware->cost, (1 + 1.0 / s->tensor_ranks) * (double)(s->rows * s->hidden * s->element));
}

// Returns the seconds that a collective adds to a step if a product, and other work after it, run meanwhile.
static double exposed_(const Work *work, double collective, double product, double other) {
    if (!work->shape->overlap) return collective;
    if (work->hardware->cost.flops == 0) return 0; // product times are unknown: assume that products take longer
    if (work->shape->copies) return fmax(0, collective - product - other);
    return cost_beside(&work->hardware->cost, collective, product, other);
}

// Seconds of the work that hides collectives: four weight gradients, two input gradients, attention's backward.
typedef struct Beside {
    double qkv, out, up, down, out_input, down_input, attention;
} Beside;

static double weight_product_(const Work *work, int64_t n, int64_t k) {
    return layer_product_(work, work->shape->rows, n, k) + adding_(work, (double)(n * k));
}

static Beside beside_(const Work *work) {
    const Shape *s = work->shape;
    PartTime core = {0};
    if (work->hardware->cost.flops == 0) return (Beside){0};
    attention_(work, &core);
    return (Beside){.qkv = weight_product_(work, s->qkv_cols, s->hidden),
                    .out = weight_product_(work, s->hidden, s->query_cols),
                    .up = weight_product_(work, s->mlp_cols, s->hidden),
                    .down = weight_product_(work, s->hidden, s->ffn),
                    .out_input = layer_product_(work, s->rows, s->hidden, s->query_cols),
                    .down_input = layer_product_(work, s->rows, s->hidden, s->ffn),
                    .attention = core.backward};
}

// Returns the seconds that a forward's collectives add to a step: four with sequence parallelism, else two all-reduces.
// If a product is cut into chunks, the gather for its first chunk or the sum of its last chunk overlaps no product.
static double exposed_forward_(const Work *work, double whole) {
    const Shape *s = work->shape;
    int64_t products[][2] = {
        {s->hidden, s->query_cols}, {s->hidden, s->ffn}, {s->qkv_cols, s->hidden}, {s->mlp_cols, s->hidden}};
    if (s->chunks == 1) return 2 * whole + 2 * (s->sequence ? gathered_(work, GATHERED_INPUT) : whole);
    double part = (double)s->element / s->chunks, exposed = 0;
    double one = (s->sequence ? 1 : 2) * collective_(work->hardware, work->config, s, part);
    for (int i = 0; i < (s->sequence ? 4 : 2); i++) {
        bool known = work->hardware->cost.flops > 0;
        double product = known ? in_chunks_(work, s->chunks, products[i][0], products[i][1]) / s->chunks : 0;
        exposed += one + (s->chunks - 1) * exposed_(work, one, product, 0);
    }
    return exposed;
}

// Sets the times of the collectives that layer.c and blocks.c call. With overlap, only the time that products do not
// hide counts. With sequence parallelism the backward gathers the forward's inputs again. A split backward gathers the
// gradients of two products twice or, with schedule.recompute: pointwise, every operand once. Without sequence
// parallelism, one all-reduce replaces each pair of a gather and a sum.
static void layer_collectives_(const Work *work, double one, PartTime *layer) {
    Beside b = beside_(work);
    double input = gathered_(work, GATHERED_INPUT), gradient = gathered_(work, GATHERED_GRADIENT);
    double gathers = work->shape->sequence ? 2 * gradient : 0, sum = work->shape->sequence ? one : 2 * one;
    double blocks = 2 * blocks_summed_(work->hardware, work->shape);
    layer->tensor_forward = exposed_forward_(work, one) + blocks;
    layer->tensor_input = gathers + 2 * sum;
    if (work->shape->pointwise)
        layer->tensor_input = gathers + exposed_(work, sum, b.down, 0) + exposed_(work, sum, b.out, 0);
    layer->tensor_input += blocks;
    layer->tensor_weight = 0;
    if (!work->shape->sequence) {
        layer->tensor_backward = exposed_(work, 2 * one, b.down + b.up, 0) + exposed_(work, 2 * one, b.out + b.qkv, 0);
        return;
    }
    double onward = exposed_(work, gradient, b.up, 0);
    double next = exposed_(work, gradient, b.qkv, 0),
           sums = exposed_(work, one, b.down, 0) + exposed_(work, one, b.out, 0);
    layer->tensor_backward = exposed_(work, input, b.down_input, 0) + onward + next + sums +
                             exposed_(work, input, b.out_input, b.attention) + blocks;
    layer->tensor_weight = 2 * input;
    if (!work->shape->pointwise)
        layer->tensor_weight = exposed_(work, input, b.down, 0) + onward + exposed_(work, input, b.out, 0) + next;
}

void hardware_tensor_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *s) {
    Work work = {hardware, config, s};
    double one = s->tensor_ranks > 1 ? collective_(hardware, config, s, (double)s->element) : 0;
    double head = hardware->cost.flops > 0 ? product_(&work, 1, s->rows, s->vocab_width, s->hidden) +
                                                 adding_(&work, (double)(s->vocab_width * s->hidden))
                                           : 0;
    layer_collectives_(&work, one, &times->layer);
    if (s->context_ranks > 1) context_collectives_(&work, &times->layer);
    double sum = blocks_summed_(hardware, s);
    times->embedding.tensor_forward = (s->sequence ? 1 : 2) * one + sum;
    times->embedding.tensor_backward = times->embedding.tensor_input = s->sequence ? one : 0;
    double gradient = exposed_(&work, s->sequence ? one : 2 * one, head, 0);
    times->head.tensor_forward = s->sequence ? one + gradient + sum : gradient;
    times->head.tensor_backward = 0;
}

// A sum occupies BESIDE_CTAS multiprocessors. Persistent products leave COMPUTE_CTAS free; attention and other products
// use all that the sum leaves. Memory-bound passes do not slow down.
double hardware_summing(const Hardware *hardware, const PartTime *layer) {
    double all = hardware->cost.multiprocessors, attention = layer->spent[1].attention;
    if (all <= COMPUTE_CTAS || layer->backward <= 0) return 1;
    double products = layer->backward - attention - layer->spent[1].passes;
    double longer = BESIDE_CTAS / (all - BESIDE_CTAS), persistent = COMPUTE_CTAS / (all - COMPUTE_CTAS);
    double slower = attention * longer + products * (hardware->cost.persistent ? persistent : longer);
    return 1 + slower / (layer->backward + layer->tensor_backward);
}

double hardware_optimizer_seconds(const Hardware *hardware, const Config *config, int64_t owned) {
    double norm = 4, moments = 16, gradient = 8;
    double weights = config->train.precision == PRECISION_BF16 ? 8 + 2 : 8; // master read and written, weight written
    return (double)owned * (norm + gradient + moments + weights) / hardware->cost.memory_rate;
}

double hardware_quantize_seconds(const Hardware *hardware, const Config *config, double weights) {
    return weights * 2 * quantize_bytes_(config->train.fp8) / hardware->cost.memory_rate;
}

// ---------------------------------------------------------------- assumptions

GpuBand hardware_band(const Hardware *hardware, const Config *config, bool measured) {
    static const GpuBand unknown = {0};
    const Cost *cost = &hardware->cost;
    if (measured) return gpu_band_measured;
    return cost->flops == 0 ? unknown : config_world(config) == 1 ? cost->alone : cost->band;
}

char *hardware_seconds_text(double seconds, char text[SECONDS_TEXT]) {
    bool whole = seconds >= 9.995;
    double value = whole ? seconds : 1e3 * seconds;
    snprintf(text, SECONDS_TEXT, value >= 999.5 ? "%.0f %s" : "%.3g %s", value, whole ? "s" : "ms");
    return text;
}

void hardware_print_band(const Hardware *hardware, GpuBand band, double step, double mfu, FILE *file) {
    char share[64] = "", low[SECONDS_TEXT], high[SECONDS_TEXT];
    if (band.runs == 0) return;
    hardware_seconds_text(band.low * step, low);
    if ((step * band.low >= 9.995) == (step * band.high >= 9.995)) low[strcspn(low, " ")] = '\0'; // one unit for both
    if (mfu > 0) snprintf(share, sizeof share, ", MFU %.0f to %.0f%%", 100 * mfu / band.high, 100 * mfu / band.low);
    hardware_seconds_text(band.high * step, high);
    if (band.own) {
        grid_line(file, "band", "%s to %s%s: as far off as plans %s", low, high, share, band.on);
        return;
    }
    grid_line(file, "published", "%s to %s%s: four of five of %d published runs on %s lie in such a band%s", low, high,
              share, band.runs, band.on, hardware->cost.data_sheet ? "; this GPU is planned by its data sheet" : "");
}

void hardware_print_cpus(const Hardware *hardware, FILE *file) {
    if (!hardware->cpu) return;
    grid_line(file, "CPUs", "planned for this machine (%s per rank); to plan for GPUs, name one with hardware.gpu",
              hardware->device);
}

void hardware_print(const Hardware *hardware, FILE *file) {
    const Cost *cost = &hardware->cost;
    if (cost->flops == 0) {
        fprintf(file, "assumed   nothing: without hardware.peak_tflops there are no times\n");
        return;
    }
    grid_line(
        file, "assumed",
        "matrix products at %.0f%% of %.4g TFLOP/s, less by 1 + %.0f / k, and %.3g us each; flash attention at up "
        "to %.0f%% and %.0f%%; everything else at %.4g GB/s of memory; softmax in one pass where it is fused, in "
        "fp32 passes where not%s",
        100 * cost->efficiency, cost->flops * 1e-12, cost->half, 1e6 * cost->launch, 100 * cost->flash_forward.share,
        100 * cost->flash_backward.share, cost->memory_rate * 1e-9,
        cost->data_sheet ? "; from the data sheet: this GPU was not measured" : "");
    if (hardware->action > 0 || hardware->step > 0)
        grid_line(file, "", "overhead: %.4g us for every forward or backward, %.4g ms for a step",
                  1e6 * hardware->action, 1e3 * hardware->step);
    if (hardware->cpu)
        grid_line(file, "", "%.3g rank%s of this host compute at full speed at a time, more share its cores",
                  hardware->cores_share, hardware->cores_share == 1 ? "" : "s");
}
