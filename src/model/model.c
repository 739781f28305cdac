// Derives from a model and a configuration: the complete table, FLOPs, rotary frequencies, and the shape of one
// microbatch on one tensor rank. Frequencies are in double; transformers computes them in fp32, a relative difference
// of 1e-7.
#include "experts.h"
#include "quantized.h"

#include "backend/attention_scratch.h"
#include "base/alloc.h"
#include "base/units.h"
#include "config/family.h"

#include <assert.h>
#include <math.h>

TensorTable model_table(const Model *model, const ModelConfig *config) {
    TensorTable table = {.experts = config->experts};
    model->embedding_tensors(config, &table);
    table.first_layer = table.count;
    for (int64_t l = 0; l < config->layers; l++) model->layer_tensors(config, l, &table);
    table_prefix(&table, "%s", "");
    table.per_layer = (table.count - table.first_layer) / config->layers;
    table.head = table.count;
    model->head_tensors(config, &table);
    return table;
}

double model_flops_per_token(const Config *config, bool full) {
    const ModelConfig *m = &config->model;
    double h = (double)m->hidden, q = (double)(m->heads * m->head_dim), kv = (double)(m->kv_heads * m->head_dim);
    double layers = (double)m->layers, products = families[m->family].gated ? 3.0 : 2.0;
    double routed = m->experts > 0 ? layers - (double)m->dense_layers : 0.0;
    double widths = (double)(m->experts_per_token * m->expert_ffn + m->shared_ffn); // width of a token's experts
    double mlp =
        products * h * ((layers - routed) * (double)m->ffn + routed * widths) + routed * h * (double)m->experts;
    double projections = h * (q + 2.0 * kv) + q * h, scored = q;
    if (m->kv_lora > 0) {
        double heads = (double)m->heads, value = heads * (double)m->v_dim, ql = (double)m->q_lora;
        double kl = (double)m->kv_lora, rotated = (double)m->rope_dim, rest = heads * (double)m->nope_dim;
        projections = h * (ql + kl + rotated) + ql * q + kl * (rest + value) + value * h;
        scored = (q + value) / 2;
    }
    double dense = layers * projections + mlp + h * (double)m->vocab;
    return 6.0 * dense + (full || !m->causal ? 12.0 : 6.0) * layers * scored * (double)m->seq_len;
}

// --- rotary frequencies, for each way of extending a model to longer sequences than it was trained with

static const double TURN = 6.283185307179586477;

// Returns how many dimensions of a head are rotated; 0: the family has no rotary embedding.
static int64_t rope_width_(const ModelConfig *m) {
    if (!families[m->family].rotary) return 0;
    return m->kv_lora > 0 ? m->rope_dim : (int64_t)((double)m->head_dim * m->rope_share);
}

// Scales a frequency as Llama 3.1 does. Pairs that rotate often within the original length keep their frequency, slow
// pairs are divided by the factor, and pairs in between are interpolated.
static double llama3_(const ModelConfig *m, double frequency) {
    double turns = (double)m->rope_original * frequency / TURN;
    if (turns > m->rope_high_freq) return frequency;
    if (turns < m->rope_low_freq) return frequency / m->rope_factor;
    double keep = (turns - m->rope_low_freq) / (m->rope_high_freq - m->rope_low_freq);
    return (1 - keep) * frequency / m->rope_factor + keep * frequency;
}

// Returns the (fractional) index of the pair with this many rotations within the original length.
static double yarn_pair_(const ModelConfig *m, double turns) {
    return (double)rope_width_(m) * log((double)m->rope_original / (turns * TURN)) / (2 * log(m->rope_theta));
}

// Scales a frequency as YaRN does (Peng et al. 2023): like llama3, but interpolated linearly in the pair's index.
static double yarn_(const ModelConfig *m, int64_t pair, double frequency) {
    double last = (double)(rope_width_(m) - 1);
    double low = fmax(floor(yarn_pair_(m, m->rope_beta_fast)), 0.0);
    double high = fmin(ceil(yarn_pair_(m, m->rope_beta_slow)), last);
    if (low == high) high += 0.001; // as transformers does
    double slow = fmin(fmax(((double)pair - low) / (high - low), 0.0), 1.0);
    return slow * frequency / m->rope_factor + (1 - slow) * frequency;
}

RopeTable *model_rope(const ModelConfig *m) {
    double width = (double)rope_width_(m);
    int64_t pairs = rope_width_(m) / 2;
    RopeTable *rope = xmalloc(sizeof *rope + (size_t)pairs * sizeof *rope->frequency);
    rope->scale = m->rope_attention;
    rope->pairs = pairs;
    for (int64_t i = 0; i < pairs; i++) {
        double frequency = pow(m->rope_theta, -2.0 * (double)i / width);
        if (m->rope_scaling == ROPE_LINEAR) frequency /= m->rope_factor;
        if (m->rope_scaling == ROPE_LLAMA3) frequency = llama3_(m, frequency);
        if (m->rope_scaling == ROPE_YARN) frequency = yarn_(m, i, frequency);
        rope->frequency[i] = frequency;
    }
    return rope;
}

// --- the shape

// Returns the number of strips of rows. If ranks compute sums themselves (CPUs), this is 1: sums and products share the
// cores, so overlap gains nothing. Otherwise this is the number asked for; auto leaves each strip's product at least
// 512 rows, and each copy to a peer at least 2 MiB, since a copy of no bytes takes as long (cost_copy). The planner
// predicts that auto is within 3 % of the best number, for LLaMA 65B and GPT-3 96B on A100, H100 and B200 with
// t = 2, 4, 8 and b = 1, 2, 4.
static int shape_strips_(const Backend *be, const Shape *shape, int overlap) {
    enum { STRIP_ROWS = 512, COPY_BYTES = 2 << 20 };
    int64_t most = shape->shard_rows, copied = shape->shard_rows * shape->hidden * shape->element;
    if (be->own_sums) return 1;
    if (overlap == OVERLAP_AUTO) most = min_i64(most, shape->rows / STRIP_ROWS);
    if (overlap == OVERLAP_AUTO && shape->copies) most = min_i64(most, copied / COPY_BYTES);
    int64_t strips = overlap == OVERLAP_AUTO ? OVERLAP_MOST : 1 + overlap - OVERLAP_ON;
    return (int)(strips < most ? strips : most > 1 ? most : 1);
}

static void shape_experts_(Shape *shape, const Config *config) {
    const ModelConfig *m = &config->model;
    const TrainConfig *train = &config->train;
    shape->route = (RouteShape){.experts = m->experts,
                                .chosen = m->experts_per_token,
                                .sigmoid = m->router == ROUTER_SIGMOID,
                                .normalize = m->router_normalize,
                                .scale = m->router_scale,
                                .groups = m->router_groups,
                                .top_groups = m->router_group_top};
    shape->expert_ranks = (int)config->parallel.expert;
    shape->expert_ffn = m->expert_ffn;
    shape->expert_rows = experts_rows(shape, config->schedule.expert_rows);
    // The loss is a mean over targets; what the routers add is a mean over all tokens.
    double targets = (double)config_targets(config) / (double)m->seq_len;
    shape->balance = train->balance == BALANCE_LOSS ? train->balance_rate * targets : 0;
    shape->router_z = train->router_z_loss * targets;
    shape->dense_ffn = shape->ffn;
    shape->ffn = m->shared_ffn / config->parallel.tensor;
    shape->mlp_cols = 2 * shape->ffn;
    shape->strips = 1;
}

// Applies YaRN's factor of the scores to the queries.
static void shape_latent_(Shape *shape, const ModelConfig *m) {
    double stretched = m->rope_scaling == ROPE_YARN ? 0.1 * m->rope_mscale * log(m->rope_factor) + 1 : 1;
    shape->latent = (LatentShape){.query_rank = m->q_lora,
                                  .key_rank = m->kv_lora,
                                  .heads = shape->attention.heads,
                                  .nope = m->nope_dim,
                                  .rope = m->rope_dim,
                                  .value = m->v_dim,
                                  .scale = stretched * stretched};
    shape->query_cols = shape->latent.heads * m->v_dim;
    shape->qkv_cols = m->q_lora + m->kv_lora + m->rope_dim;
    shape->strips = 1;
}

int64_t context_row(const Shape *s, int64_t position) {
    int64_t length = s->seq / s->pieces;
    for (int i = 0; i < s->pieces; i++) {
        int64_t within = position - context_place(s, i);
        if (within >= 0 && within < length) return (i * length + within) * s->batch;
    }
    return -1;
}

Shape shape_dense(const Shape *shape) {
    Shape dense = *shape;
    dense.route.experts = 0;
    dense.ffn = shape->dense_ffn;
    dense.mlp_cols = 2 * dense.ffn;
    return dense;
}

Shape shape_recomputed(const Shape *shape) {
    Shape again = *shape;
    again.keeps_experts = false;
    return again;
}

void shape_from_config(Shape *shape, const Config *config, Backend *be, int stage, int tensor_rank) {
    const ModelConfig *m = &config->model;
    const int64_t t = config->parallel.tensor, c = config->parallel.context;
    const int overlap = config->parallel.overlap;
    shape->element = config->train.precision == PRECISION_BF16 ? 2 : 4;
    shape->batch = config->schedule.micro_batch;
    shape->slices = config_slices(config);
    shape->seq = m->seq_len / shape->slices / c;
    shape->rows = shape->seq * shape->batch;
    shape->hidden = m->hidden;
    shape->tensor_rank = tensor_rank;
    shape->tensor_ranks = (int)t;
    shape->context_ranks = (int)c;
    shape->pieces = c > 1 ? CONTEXT_PIECES : 1;
    shape->sequence = config->parallel.sequence && t > 1;
    shape->shard_rows = shape->sequence ? shape->rows / t : shape->rows;
    shape->copies = !be->own_sums && config_copies(config);
    shape->overlap = t > 1 && (overlap >= OVERLAP_ON || (overlap == OVERLAP_AUTO && !be->own_sums));
    shape->fp8 = config->train.fp8;
    quantized_shape(shape, families[m->family].biased);
    // With fp8 there is one strip: more strips would have scales of their own, and so other bits.
    shape->strips = shape->overlap && shape->fp8 == FP8_OFF ? shape_strips_(be, shape, overlap) : 1;

    AttentionShape *a = &shape->attention;
    a->batch = shape->batch, a->seq = shape->seq, a->first = (shape->slices - 1) * shape->seq;
    a->heads = m->heads / t, a->kv_heads = m->kv_heads / t, a->head_dim = m->head_dim;
    a->value_dim = m->kv_lora > 0 ? m->v_dim : m->head_dim;
    a->mode = config_attention(config, stage), a->softmax = config->attention.softmax;
    a->deterministic = config->attention.deterministic;
    a->full = !m->causal, a->documents = config->data.mask_documents != 0;
    if (a->mode == ATTENTION_FLASH && !be->own_sums &&
        attention_without_flash(a, shape->element, be->capability) != NULL)
        a->mode = ATTENTION_RECOMPUTE;
    shape->query_cols = a->heads * a->head_dim;
    shape->qkv_cols = attention_qkv_width(a);
    shape->ffn = m->ffn / t;
    shape->mlp_cols = (families[m->family].gated ? 2 : 1) * shape->ffn;
    if (m->experts > 0) shape_experts_(shape, config);
    if (m->kv_lora > 0) shape_latent_(shape, m);
    shape->vocab_width = config_padded_vocab(config) / t;
    shape->vocab_first = tensor_rank * shape->vocab_width;
    shape->vocab_count = min_i64(max_i64(m->vocab - shape->vocab_first, 0), shape->vocab_width);
    shape->norm_eps = m->norm_eps;
    shape->z_loss = (float)config->train.z_loss;
    shape->qk_norm = m->qk_norm;
    shape->pointwise = config_recompute_kind(config, stage) == RECOMPUTE_POINTWISE;
    shape->keeps_experts = m->experts > 0 && config_recompute_kind(config, stage) == RECOMPUTE_NONE;

    // The last piece sees all keys. In total, the pieces of every context rank see as many keys as rank 0's pieces.
    AttentionShape last = *a, piece = *a;
    last.seq /= shape->pieces, last.first = m->seq_len - last.seq;
    piece.seq = last.seq;
    for (int i = 0; i < shape->pieces; i++) {
        if (c > 1) piece.first = context_place(shape, i);
        shape->saved_bytes += attention_saved(&piece, shape->element);
    }
    shape->scratch_bytes = be->attention_scratch(be, &last);
    if (be->workspace_bytes != NULL) shape->workspace_bytes = be->workspace_bytes(be, shape->shard_rows, m->hidden, a);
}
