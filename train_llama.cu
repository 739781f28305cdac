// LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU, an output matrix of its own unless
// model.tie_embeddings says otherwise (Touvron et al. 2023).
// Tensors carry the names of Hugging Face's LlamaForCausalLM. No kernels here: the operations are backend.h's.
#include "model/blocks.h"
#include "run/trainer.h"

// A layer's tensors, in table order. q, k and v lie one behind the other, so one product makes all three; gate and up likewise.
enum { INPUT_NORM, Q_PROJ, K_PROJ, V_PROJ, O_PROJ, MLP_NORM, GATE_PROJ, UP_PROJ, DOWN_PROJ };

static void llama_embedding_tensors_(const ModelConfig *c, TensorTable *table) {
    TensorSpec *tokens = table_add(table, c->vocab, c->hidden, SPLIT_ROWS, INIT_NORMAL, "model.embed_tokens.weight");
    tokens->vocabulary = tokens->decay = true;
}

static void norm_tensor_(TensorTable *table, int64_t hidden, const char *prefix, const char *name) {
    table_add(table, hidden, 1, SPLIT_NONE, INIT_ONE, "%s%s.weight", prefix, name)->shard_summed = true;
}

static TensorSpec *matrix_tensor_(TensorTable *table, int64_t rows, int64_t cols, int split, const char *prefix,
                                  const char *name) {
    int init = split == SPLIT_COLS ? INIT_OUTPUT
                                   : INIT_NORMAL; // only projections into the residual stream are split by columns
    TensorSpec *spec = table_add(table, rows, cols, split, init, "%s%s.weight", prefix, name);
    spec->decay = true;
    return spec;
}

static void llama_layer_tensors_(const ModelConfig *c, int64_t layer, TensorTable *table) {
    int64_t h = c->hidden, kv = c->kv_heads * (c->hidden / c->heads);
    char prefix[40];
    snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    norm_tensor_(table, h, prefix, "input_layernorm");
    matrix_tensor_(table, h, h, SPLIT_ROWS, prefix, "self_attn.q_proj");
    matrix_tensor_(table, kv, h, SPLIT_ROWS, prefix, "self_attn.k_proj")->joined = true;
    matrix_tensor_(table, kv, h, SPLIT_ROWS, prefix, "self_attn.v_proj")->joined = true;
    matrix_tensor_(table, h, h, SPLIT_COLS, prefix, "self_attn.o_proj");
    norm_tensor_(table, h, prefix, "post_attention_layernorm");
    matrix_tensor_(table, c->ffn, h, SPLIT_ROWS, prefix, "mlp.gate_proj");
    matrix_tensor_(table, c->ffn, h, SPLIT_ROWS, prefix, "mlp.up_proj")->joined = true;
    matrix_tensor_(table, h, c->ffn, SPLIT_COLS, prefix, "mlp.down_proj");
}

static void llama_head_tensors_(const ModelConfig *c, TensorTable *table) {
    norm_tensor_(table, c->hidden, "model.", "norm");
    TensorSpec *matrix = matrix_tensor_(table, c->vocab, c->hidden, SPLIT_ROWS, "", "lm_head");
    matrix->vocabulary = true;
    if (c->tie_embeddings == TIE_TRUE) matrix->tied_to = 0; // the token embedding, first in the table
}

static void llama_norm_forward_(Pass *pass, const Tensor *norm, void *out, void *sum, const void *x,
                                const void *delta) {
    const Shape *s = pass->shape;
    pass->be->rmsnorm_forward(pass->be, out, sum, x, delta, norm->weight, s->shard_rows, s->hidden, s->norm_eps);
}

static void llama_norm_backward_(Pass *pass, const Tensor *norm, void *dx, const void *dout, const void *x) {
    const Shape *s = pass->shape;
    pass->be->rmsnorm_backward(pass->be, dx, norm->gradient, dout, x, norm->weight, s->shard_rows, s->hidden,
                               s->norm_eps);
}

static void llama_layer_forward_(Pass *pass, const Tensor *t, void *base, void *y) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    LayerBundle a;
    LayerWork work;
    layer_bundle_layout(&a, base, s);
    layer_work_layout(&work, pass->work, s);

    llama_norm_forward_(pass, &t[INPUT_NORM], a.norm1, NULL, a.x, NULL);
    column_forward(pass, a.qkv, NULL, a.norm1, &t[Q_PROJ], NULL, s->qkv_cols, EPILOGUE_NONE);
    be->rope(be, a.qkv, &s->attention, s->rope_theta, +1);
    attention_block_forward(pass, a.attention, a.saved, a.qkv);
    row_forward(pass, work.delta, a.attention, &t[O_PROJ], NULL, s->query_cols);

    llama_norm_forward_(pass, &t[MLP_NORM], a.norm2, a.x2, a.x, work.delta);
    column_forward(pass, a.mlp, NULL, a.norm2, &t[GATE_PROJ], NULL, 2 * s->ffn, EPILOGUE_NONE);
    be->swiglu_forward(be, a.act, a.mlp, s->rows, s->ffn);
    row_forward(pass, work.delta, a.act, &t[DOWN_PROJ], NULL, s->ffn);
    be->add(be, y, a.x2, work.delta, s->shard_rows * s->hidden);
}

static void llama_layer_backward_(Pass *pass, const Tensor *t, const void *base, void *dx) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    LayerBundle a;
    LayerWork work;
    layer_bundle_layout(&a, base, s);
    layer_work_layout(&work, pass->work, s);

    row_backward(pass, work.dact, NULL, dx, a.act, &t[DOWN_PROJ], NULL, s->ffn, EPILOGUE_NONE);
    be->swiglu_backward(be, work.dmlp, work.dact, a.mlp, s->rows, s->ffn);
    column_backward(pass, work.delta, work.dmlp, a.norm2, &t[GATE_PROJ], NULL, 2 * s->ffn);
    llama_norm_backward_(pass, &t[MLP_NORM], dx, work.delta, a.x2);

    row_backward(pass, work.dattention, NULL, dx, a.attention, &t[O_PROJ], NULL, s->query_cols, EPILOGUE_NONE);
    attention_block_backward(pass, work.dqkv, work.dattention, a.attention, a.saved, a.qkv);
    be->rope(be, work.dqkv, &s->attention, s->rope_theta, -1);
    column_backward(pass, work.delta, work.dqkv, a.norm1, &t[Q_PROJ], NULL, s->qkv_cols);
    llama_norm_backward_(pass, &t[INPUT_NORM], dx, work.delta, a.x);
}

extern const Model llama_model;
const Model llama_model = {
    FAMILY_LLAMA,
    "llama",
    llama_embedding_tensors_,
    llama_layer_tensors_,
    llama_head_tensors_,
    2, // gate and up
    llama_layer_forward_,
    llama_layer_backward_,
    llama_norm_forward_,
    llama_norm_backward_,
    1,     // head: norm, lm_head
    false, // positions are rotations
};

int main(int argc, char **argv) {
    return trainer_main("train_llama", &llama_model, argc, argv);
}
