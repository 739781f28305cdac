// Bytes of Megatron-LM: theoretical_memory_usage.py (core 0.20) for the states, and Korthikanti et al. (arXiv
// 2205.05198), table 2, without masks, for a layer; for SwiGLU both inputs of the gate, its output, and three products
// of ffn. On SimuMax's measured runs that is 0 to 5 % too little, so 5 % are added. torchtitan and nanotron also keep
// the output of the activation. torchtitan runs FSDP with weights that are gathered once per step, as export.py
// requests, and keeps logits in bf16, in fp32 and their gradient. nanotron runs ZeRO-1. Neither was compared with
// measured bytes, so 10 % are added.
//
// With experts or latent attention, the bytes are this trainer's, without the experts' rows that it keeps, and with
// what the program keeps of experts and this trainer computes again. Of SimuMax's six measured stages of DeepSeek-V2
// and V3 (balanced, expert_rows 1) that is 0.99 to 1.01, without the 5 %.
#include "foreign.h"

#include "base/units.h"
#include "config/family.h"
#include "config/gpus.h"

#include <math.h>
#include <string.h>

const ForeignProgram foreign_programs[FOREIGN_PROGRAMS] = {
    {"megatron", "Megatron-LM", .trainers = {TRAINER_MEGATRON, TRAINER_NVIDIA}, .schedules = "1f1b interleaved",
     .gpt = true, .context = true, .experts = true, .muon = true, .fp8 = true, .latent = true, .scores = true,
     .modules = true, .reshards = true, .gate = 6, .selective = 6, .logits = 4, .error = 1.05},
    {"torchtitan", "torchtitan", .trainers = {TRAINER_FSDP, TRAINER_FSDP},
     .schedules = "1f1b interleaved zb-v dualpipe-v", .context = true, .experts = true, .muon = true, .fp8 = true,
     .sharded = true, .reshards = true, .gate = 8, .selective = 4, .logits = 10, .error = 1.10},
    {"nanotron", "nanotron", .trainers = {TRAINER_NANOTRON, TRAINER_NANOTRON}, .schedules = "1f1b gpipe", .deals = true,
     .gate = 8, .logits = 10, .error = 1.10},
};

bool foreign_counted_here(const ModelConfig *model) { return model->experts > 0 || model->kv_lora > 0; }

bool foreign_deals(const Config *config) { return config->program != 0 && foreign_row(config->program)->deals; }

// nanotron's build_model (models/base.py) begins a stage after the layer that exceeds a p-th of the cost of all layers
// and the head. scripts/foreign/nanotron.py has the same rule.
void foreign_deal(Config *config) {
    const ModelConfig *model = &config->model;
    ParallelConfig *parallel = &config->parallel;
    int64_t p = parallel->pipeline, at = 0;
    if (!foreign_deals(config) || parallel->layers_given > 0 || p < 2) return;
    int64_t width = model->hidden / model->heads * model->heads, layer = (4 * width + 3 * model->ffn) * model->hidden;
    int64_t whole = layer * model->layers + model->vocab * model->hidden;
    memset(parallel->layers_per_stage, 0, (size_t)p * sizeof *parallel->layers_per_stage);
    for (int64_t i = 0; i < model->layers; i++) {
        parallel->layers_per_stage[at]++;
        at += layer * (i + 1) * p > whole * (at + 1);
    }
    parallel->layers_given = parallel->layers_count = p;
}

// Returns the bytes of a layer's activations of one microbatch: of attention that stores its scores, also the output of
// softmax. *input: the part that a recomputed layer keeps.
static double layer_bytes_(const Config *config, const StageShape *at, double *input) {
    const ModelConfig *model = &config->model;
    const ForeignProgram *row = foreign_row(config->program);
    double t = (double)config->parallel.tensor, whole = config->parallel.sequence ? t : 1;
    double rows = (double)(config->schedule.micro_batch * model->seq_len / config->parallel.context);
    double width = (double)(model->heads * model->head_dim), keys = (double)(model->kv_heads * model->head_dim);
    bool selective = config_recompute_kind(config, 0) == RECOMPUTE_POINTWISE && row->selective > 0;
    int gate = !families[model->family].gated ? 4 : selective ? row->selective : row->gate;
    double scores = at->shape.attention.mode == ATTENTION_NONE ? 2 * (double)(model->heads * model->seq_len) : 0;
    *input = rows * 2 * (double)model->hidden / whole;
    return rows * ((4 * width + 4 * keys + scores + gate * (double)model->ffn) / t +
                   (selective ? 4 : 8) * (double)model->hidden / whole);
}

// Returns the bytes of a layer's activations of one microbatch that the program keeps and this trainer computes again:
// with latent attention all queries, keys and values; with `experts` the rows that have arrived at this rank's experts,
// by a balanced routing, and what their MLPs keep: with selective recomputation not the activation (moe_act).
static double kept_more_(const Config *config, bool experts) {
    const ModelConfig *model = &config->model;
    const ForeignProgram *row = foreign_row(config->program);
    double rows = (double)(config->schedule.micro_batch * model->seq_len / config->parallel.context);
    int gate = config_recompute_kind(config, 0) == RECOMPUTE_POINTWISE && row->selective > 0 ? 4 : row->gate;
    double copy = gate * (double)model->expert_ffn + 2 * (double)model->hidden;
    double bytes = model->kv_lora > 0 ? 2 * (double)(model->heads * (2 * model->head_dim + model->v_dim)) : 0;
    if (experts) bytes += (double)model->experts_per_token * copy;
    return rows * bytes / (double)config->parallel.tensor;
}

int64_t foreign_bundle(const Config *config, const StageShape *at) {
    double input, layer = layer_bytes_(config, at, &input), most = 0;
    double again = at->layers > 0 ? (double)at->recomputed / (double)at->layers : 0;
    if (foreign_counted_here(&config->model)) {
        const Shape without = shape_recomputed(&at->shape);
        double here = (double)(at->layer_bundle - layer_bundle_layout(NULL, NULL, &without));
        bool experts = config_recompute_kind(config, 0) != RECOMPUTE_EXPERTS;
        for (int c = 0; c < at->chunks; c++) {
            const StageChunk *chunk = &at->chunk[c];
            int64_t kept =
                chunk->layers - chunk->recomputed; // the first layers are recomputed, and the first are dense
            int64_t routed = config->model.experts > 0 ? min_i64(kept, chunk->layers - chunk->dense) : 0;
            double more = (double)routed * (kept_more_(config, experts) - here); // may be negative
            most = fmax(most, (double)chunk->bytes + more + (double)(kept - routed) * kept_more_(config, false));
        }
        return (int64_t)(foreign_row(config->program)->error * most);
    }
    for (int c = 0; c < at->chunks; c++)
        most = fmax(most, (double)at->chunk[c].layers * ((1 - again) * layer + again * input));
    return (int64_t)(foreign_row(config->program)->error * most);
}

// With ZeRO-3, Megatron-LM keeps 16-bit weights in addition to the masters; torchtitan's weights are the masters.
int64_t foreign_states(const Config *config, const StageShape *at, int64_t parameters, int64_t shards, bool again) {
    const ForeignProgram *row = foreign_row(config->program);
    double own = (double)parameters / (double)config->parallel.tensor, layers = fmax(1, (double)at->layers);
    double kept = !row->sharded ? 6 : at->stages > 1 ? 6 : 2, some = row->sharded ? 2 * 6 / layers : 0;
    double each = row->sharded ? 16 : 12;
    if (again) kept = 0, some = 2 * 6 / layers, each = row->sharded ? 16 : 18;
    return (int64_t)(row->error * own * (kept + some + each / (double)shards));
}

void foreign_bytes(MemoryBytes *memory, const Config *config, const StageShape *at, int64_t parameters) {
    const ForeignProgram *row = foreign_row(config->program);
    const ModelConfig *model = &config->model;
    double input, layer = layer_bytes_(config, at, &input), t = (double)config->parallel.tensor;
    double copies = (double)(config->parallel.data * config->parallel.context), own = (double)parameters / t;
    double rows = (double)(config->schedule.micro_batch * model->seq_len / config->parallel.context);
    double logits = rows * (double)model->vocab / t, matrix = 2 * (double)model->vocab * (double)model->hidden / t;
    double bytes[MEMORY_CATEGORIES] = {0};
    if (foreign_counted_here(model)) {
        for (int c = 0; c < MEMORY_CATEGORIES; c++) bytes[c] = (double)memory->bytes[c];
        if (at->recomputed > 0) bytes[MEMORY_WORKSPACE] += kept_more_(config, model->experts > 0);
    } else {
        // Weights in 16 bits and gradients in fp32 (with FSDP in one stage, those of only two layers); then masters and
        // moments.
        double kept = !row->sharded ? 6 : at->stages > 1 ? 6 : 2;
        bytes[MEMORY_WEIGHTS] = kept * own;
        bytes[MEMORY_OPTIMIZER] = (row->sharded ? 16 : 12) / copies * own;
        if (row->sharded) bytes[MEMORY_GRADIENTS] = 2 * 6 * own / fmax(1, (double)at->layers);
        // Logits are freed last. Then the 16-bit copies of their gradient and of the matrix are allocated.
        if (at->last) bytes[MEMORY_HEAD] = row->logits * logits + fmax(2 * logits, matrix - 2 * logits);
        // The embedding's gradient is allocated after the microbatch's activations are freed.
        double bundle = (double)foreign_bundle(config, at) / row->error;
        if (at->first) bytes[MEMORY_WORKSPACE] = fmax(0, matrix - bundle);
        if (at->recomputed > 0) bytes[MEMORY_WORKSPACE] = fmax(layer, bytes[MEMORY_WORKSPACE]);
    }
    for (int c = 0; c < MEMORY_CATEGORIES; c++) memory->bytes[c] = (int64_t)(row->error * bytes[c]);
}
