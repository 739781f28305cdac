// GPT-2 and GPT-3: LayerNorm, learned positions, GELU (tanh form), biases, and an output matrix that is the token embedding
// where model.tie_embeddings does not say otherwise (Radford et al. 2019; Brown et al. 2020). Tensors carry the names of Hugging Face's GPT2LMHeadModel; matrices are (out, in) here, the
// transpose of how that model stores them. No kernels here: the operations are backend.h's.
#include "model/blocks.h"
#include "run/trainer.h"

// A layer's tensors, in table order.
enum { NORM1, NORM1_BIAS, ATTN, ATTN_BIAS, PROJ, PROJ_BIAS, NORM2, NORM2_BIAS, FC, FC_BIAS, OUT, OUT_BIAS };

static void gpt_embedding_tensors_(const ModelConfig *c, TensorTable *table) {
    TensorSpec *tokens = table_add(table, c->vocab, c->hidden, SPLIT_ROWS, INIT_NORMAL, "transformer.wte.weight");
    tokens->vocabulary = tokens->decay = true;
    table_add(table, c->seq_len, c->hidden, SPLIT_NONE, INIT_NORMAL, "transformer.wpe.weight")->decay = true;
}

static void norm_tensors_(TensorTable *table, int64_t hidden, const char *prefix, const char *name) {
    table_add(table, hidden, 1, SPLIT_NONE, INIT_ONE, "%s%s.weight", prefix, name)->shard_summed = true;
    table_add(table, hidden, 1, SPLIT_NONE, INIT_ZERO, "%s%s.bias", prefix, name)->shard_summed = true;
}

// A matrix and its bias. Split by rows, the bias is split with it; split by columns, it belongs to the sum.
static void linear_tensors_(TensorTable *table, int64_t rows, int64_t cols, int split, int parts, const char *prefix,
                            const char *name) {
    int init = split == SPLIT_COLS ? INIT_OUTPUT
                                   : INIT_NORMAL; // only projections into the residual stream are split by columns
    TensorSpec *matrix = table_add(table, rows, cols, split, init, "%s%s.weight", prefix, name);
    matrix->decay = matrix->transposed = true;
    matrix->parts = parts;
    int bias_split = split == SPLIT_COLS ? SPLIT_NONE : split;
    table_add(table, rows, 1, bias_split, INIT_ZERO, "%s%s.bias", prefix, name)->parts = parts;
}

static void gpt_layer_tensors_(const ModelConfig *c, int64_t layer, TensorTable *table) {
    int64_t h = c->hidden;
    char prefix[40];
    snprintf(prefix, sizeof prefix, "transformer.h.%lld.", (long long)layer);
    norm_tensors_(table, h, prefix, "ln_1");
    linear_tensors_(table, 3 * h, h, SPLIT_ROWS, 3, prefix, "attn.c_attn");
    linear_tensors_(table, h, h, SPLIT_COLS, 1, prefix, "attn.c_proj");
    norm_tensors_(table, h, prefix, "ln_2");
    linear_tensors_(table, c->ffn, h, SPLIT_ROWS, 1, prefix, "mlp.c_fc");
    linear_tensors_(table, h, c->ffn, SPLIT_COLS, 1, prefix, "mlp.c_proj");
}

static void gpt_head_tensors_(const ModelConfig *c, TensorTable *table) {
    norm_tensors_(table, c->hidden, "transformer.", "ln_f");
    TensorSpec *matrix = table_add(table, c->vocab, c->hidden, SPLIT_ROWS, INIT_NORMAL, "lm_head.weight");
    matrix->vocabulary = matrix->decay = true;
    if (c->tie_embeddings == TIE_TRUE) matrix->tied_to = 0; // the token embedding, first in the table
}

// norm: the weight, with its bias behind it in the table.
static void gpt_norm_forward_(Pass *pass, const Tensor *norm, void *out, void *sum, const void *x, const void *delta) {
    const Shape *s = pass->shape;
    pass->be->layernorm_forward(pass->be, out, sum, x, delta, norm[0].weight, norm[1].weight, s->shard_rows, s->hidden,
                                s->norm_eps);
}

static void gpt_norm_backward_(Pass *pass, const Tensor *norm, void *dx, const void *dout, const void *x) {
    const Shape *s = pass->shape;
    pass->be->layernorm_backward(pass->be, dx, norm[0].gradient, norm[1].gradient, dout, x, norm[0].weight,
                                 s->shard_rows, s->hidden, s->norm_eps);
}

static void gpt_layer_forward_(Pass *pass, const Tensor *t, void *base, void *y) {
    const Shape *s = pass->shape;
    LayerBundle a;
    LayerWork work;
    layer_bundle_layout(&a, base, s);
    layer_work_layout(&work, pass->work, s);

    gpt_norm_forward_(pass, &t[NORM1], a.norm1, NULL, a.x, NULL);
    column_forward(pass, a.qkv, NULL, a.norm1, &t[ATTN], &t[ATTN_BIAS], s->qkv_cols, EPILOGUE_NONE);
    attention_block_forward(pass, a.attention, a.saved, a.qkv);
    row_forward(pass, work.delta, a.attention, &t[PROJ], &t[PROJ_BIAS], s->query_cols);

    gpt_norm_forward_(pass, &t[NORM2], a.norm2, a.x2, a.x, work.delta);
    column_forward(pass, a.act, a.mlp, a.norm2, &t[FC], &t[FC_BIAS], s->ffn, EPILOGUE_GELU);
    row_forward(pass, work.delta, a.act, &t[OUT], &t[OUT_BIAS], s->ffn);
    pass->be->add(pass->be, y, a.x2, work.delta, s->shard_rows * s->hidden);
}

static void gpt_layer_backward_(Pass *pass, const Tensor *t, const void *base, void *dx) {
    const Shape *s = pass->shape;
    LayerBundle a;
    LayerWork work;
    layer_bundle_layout(&a, base, s);
    layer_work_layout(&work, pass->work, s);

    row_backward(pass, work.dmlp, a.mlp, dx, a.act, &t[OUT], &t[OUT_BIAS], s->ffn, EPILOGUE_GELU);
    column_backward(pass, work.delta, work.dmlp, a.norm2, &t[FC], &t[FC_BIAS], s->ffn);
    gpt_norm_backward_(pass, &t[NORM2], dx, work.delta, a.x2);

    row_backward(pass, work.dattention, NULL, dx, a.attention, &t[PROJ], &t[PROJ_BIAS], s->query_cols, EPILOGUE_NONE);
    attention_block_backward(pass, work.dqkv, work.dattention, a.attention, a.saved, a.qkv);
    column_backward(pass, work.delta, work.dqkv, a.norm1, &t[ATTN], &t[ATTN_BIAS], s->qkv_cols);
    gpt_norm_backward_(pass, &t[NORM1], dx, work.delta, a.x);
}

extern const Model gpt_model;
const Model gpt_model = {
    FAMILY_GPT,
    "gpt",
    gpt_embedding_tensors_,
    gpt_layer_tensors_,
    gpt_head_tensors_,
    1,
    gpt_layer_forward_,
    gpt_layer_backward_,
    gpt_norm_forward_,
    gpt_norm_backward_,
    2,    // head: ln_f weight, ln_f bias, output matrix
    true, // learned positions
};

int main(int argc, char **argv) {
    return trainer_main("train_gpt", &gpt_model, argc, argv);
}
