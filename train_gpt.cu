// GPT-2 and GPT-3: LayerNorm, learned positions, GELU (tanh form), biases, and an output matrix that is the token embedding
// (Radford et al. 2019; Brown et al. 2020). Tensors carry the names of Hugging Face's GPT2LMHeadModel; matrices are (out, in) here, the
// transpose of how that model stores them. No kernels here: the operations are backend.h's.
#include "blocks.h"
#include "trainer.h"

// A layer's tensors, in table order.
enum { NORM1, NORM1_BIAS, ATTN, ATTN_BIAS, PROJ, PROJ_BIAS, NORM2, NORM2_BIAS, FC, FC_BIAS, OUT, OUT_BIAS };

// What the backward of a layer needs of its forward: the bundle, 32 h * s * b / t bytes in 16 bit (f = 4h) plus what the attention saves.
typedef struct GptBundle {
    void *x;         // (shard_rows, h)  the layer's input
    void *norm1;     // (shard_rows, h)
    void *qkv;       // (rows, 3h/t)
    void *saved;     //                  the attention's, see backend.h
    void *attention; // (rows, h/t)
    void *x2;        // (shard_rows, h)  the residual stream between attention and MLP
    void *norm2;     // (shard_rows, h)
    void *fc;        // (rows, f/t)      before the GELU
    void *act;       // (rows, f/t)      behind it
} GptBundle;

static int64_t bundle_layout(GptBundle *bundle, const void *base, const Shape *s) {
    Layout layout = {(char *)base, 0};
    int64_t stream = s->shard_rows * s->hidden * s->element;
    bundle->x = layout_take(&layout, stream);
    bundle->norm1 = layout_take(&layout, stream);
    bundle->qkv = layout_take(&layout, s->rows * s->qkv_cols * s->element);
    bundle->saved = layout_take(&layout, s->saved_bytes);
    bundle->attention = layout_take(&layout, s->rows * s->query_cols * s->element);
    bundle->x2 = layout_take(&layout, stream);
    bundle->norm2 = layout_take(&layout, stream);
    bundle->fc = layout_take(&layout, s->rows * s->ffn * s->element);
    bundle->act = layout_take(&layout, s->rows * s->ffn * s->element);
    return layout.used;
}

// Temporaries of one layer. The attention's gradients reuse the MLP's place: they are never alive together.
typedef struct GptWork {
    void *delta;      // (shard_rows, h)  what a block adds to the residual stream; in the backward the gradient of a norm's output
    void *dfc;        // (rows, f/t)
    void *dqkv;       // (rows, 3h/t)
    void *dattention; // (rows, h/t)
} GptWork;

static int64_t work_layout(GptWork *work, void *base, const Shape *s) {
    Layout layout = {(char *)base, 0};
    work->delta = layout_take(&layout, s->shard_rows * s->hidden * s->element);
    Layout attention = layout;
    work->dfc = layout_take(&layout, s->rows * s->ffn * s->element);
    work->dqkv = layout_take(&attention, s->rows * s->qkv_cols * s->element);
    work->dattention = layout_take(&attention, s->rows * s->query_cols * s->element);
    return layout.used > attention.used ? layout.used : attention.used;
}

static void gpt_embedding_tensors(const ModelConfig *c, TensorTable *table) {
    TensorSpec *tokens = table_add(table, c->vocab, c->hidden, SPLIT_ROWS, INIT_NORMAL, "transformer.wte.weight");
    tokens->vocabulary = tokens->decay = true;
    table_add(table, c->seq_len, c->hidden, SPLIT_NONE, INIT_NORMAL, "transformer.wpe.weight")->decay = true;
}

static void norm_tensors(TensorTable *table, int64_t hidden, const char *prefix, const char *name) {
    table_add(table, hidden, 1, SPLIT_NONE, INIT_ONE, "%s%s.weight", prefix, name)->shard_summed = true;
    table_add(table, hidden, 1, SPLIT_NONE, INIT_ZERO, "%s%s.bias", prefix, name)->shard_summed = true;
}

// A matrix and its bias. Split by rows, the bias is split with it; split by columns, it belongs to the sum.
static void linear_tensors(TensorTable *table, int64_t rows, int64_t cols, int split, int parts, const char *prefix, const char *name) {
    int init = split == SPLIT_COLS ? INIT_OUTPUT : INIT_NORMAL; // only projections into the residual stream are split by columns
    TensorSpec *matrix = table_add(table, rows, cols, split, init, "%s%s.weight", prefix, name);
    matrix->decay = matrix->transposed = true;
    matrix->parts = parts;
    int bias_split = split == SPLIT_COLS ? SPLIT_NONE : split;
    table_add(table, rows, 1, bias_split, INIT_ZERO, "%s%s.bias", prefix, name)->parts = parts;
}

static void gpt_layer_tensors(const ModelConfig *c, int64_t layer, TensorTable *table) {
    int64_t h = c->hidden;
    char prefix[40];
    snprintf(prefix, sizeof prefix, "transformer.h.%lld.", (long long)layer);
    norm_tensors(table, h, prefix, "ln_1");
    linear_tensors(table, 3 * h, h, SPLIT_ROWS, 3, prefix, "attn.c_attn");
    linear_tensors(table, h, h, SPLIT_COLS, 1, prefix, "attn.c_proj");
    norm_tensors(table, h, prefix, "ln_2");
    linear_tensors(table, c->ffn, h, SPLIT_ROWS, 1, prefix, "mlp.c_fc");
    linear_tensors(table, h, c->ffn, SPLIT_COLS, 1, prefix, "mlp.c_proj");
}

static void gpt_head_tensors(const ModelConfig *c, TensorTable *table) {
    norm_tensors(table, c->hidden, "transformer.", "ln_f");
    TensorSpec *matrix = table_add(table, c->vocab, c->hidden, SPLIT_ROWS, INIT_NORMAL, "lm_head.weight");
    matrix->vocabulary = matrix->decay = true;
    matrix->tied_to = 0; // the token embedding, first in the table
}

static int64_t gpt_layer_bundle(const Shape *shape) {
    GptBundle bundle;
    return bundle_layout(&bundle, NULL, shape);
}

static int64_t gpt_layer_work(const Shape *shape) {
    GptWork work;
    return work_layout(&work, NULL, shape);
}

// norm: the weight, with its bias behind it in the table.
static void norm_forward(Pass *pass, const Tensor *norm, void *out, void *sum, const void *x, const void *delta) {
    const Shape *s = pass->shape;
    pass->be->layernorm_forward(pass->be, out, sum, x, delta, norm[0].weight, norm[1].weight, s->shard_rows, s->hidden, s->norm_eps);
}

static void norm_backward(Pass *pass, const Tensor *norm, void *dx, const void *dout, const void *x) {
    const Shape *s = pass->shape;
    pass->be->layernorm_backward(pass->be, dx, norm[0].gradient, norm[1].gradient, dout, x, norm[0].weight, s->shard_rows, s->hidden,
                                 s->norm_eps);
}

static void gpt_layer_forward(Pass *pass, const Tensor *t, void *base, void *y) {
    const Shape *s = pass->shape;
    GptBundle a;
    GptWork work;
    bundle_layout(&a, base, s);
    work_layout(&work, pass->work, s);

    norm_forward(pass, &t[NORM1], a.norm1, NULL, a.x, NULL);
    column_forward(pass, a.qkv, NULL, a.norm1, &t[ATTN], &t[ATTN_BIAS], s->qkv_cols, EPILOGUE_NONE);
    attention_block_forward(pass, a.attention, a.saved, a.qkv);
    row_forward(pass, work.delta, a.attention, &t[PROJ], &t[PROJ_BIAS], s->query_cols);

    norm_forward(pass, &t[NORM2], a.norm2, a.x2, a.x, work.delta);
    column_forward(pass, a.act, a.fc, a.norm2, &t[FC], &t[FC_BIAS], s->ffn, EPILOGUE_GELU);
    row_forward(pass, work.delta, a.act, &t[OUT], &t[OUT_BIAS], s->ffn);
    pass->be->add(pass->be, y, a.x2, work.delta, s->shard_rows * s->hidden);
}

static void gpt_layer_backward(Pass *pass, const Tensor *t, const void *base, void *dx) {
    const Shape *s = pass->shape;
    GptBundle a;
    GptWork work;
    bundle_layout(&a, base, s);
    work_layout(&work, pass->work, s);

    row_backward(pass, work.dfc, a.fc, dx, a.act, &t[OUT], &t[OUT_BIAS], s->ffn, EPILOGUE_GELU);
    column_backward(pass, work.delta, work.dfc, a.norm2, &t[FC], &t[FC_BIAS], s->ffn);
    norm_backward(pass, &t[NORM2], dx, work.delta, a.x2);

    row_backward(pass, work.dattention, NULL, dx, a.attention, &t[PROJ], &t[PROJ_BIAS], s->query_cols, EPILOGUE_NONE);
    attention_block_backward(pass, work.dqkv, work.dattention, a.attention, a.saved, a.qkv);
    column_backward(pass, work.delta, work.dqkv, a.norm1, &t[ATTN], &t[ATTN_BIAS], s->qkv_cols);
    norm_backward(pass, &t[NORM1], dx, work.delta, a.x);
}

static void gpt_norm_forward(Pass *pass, const Tensor *head, void *out, const void *x) {
    norm_forward(pass, &head[0], out, NULL, x, NULL);
}

static void gpt_norm_backward(Pass *pass, const Tensor *head, void *dx, const void *dout, const void *x) {
    norm_backward(pass, &head[0], dx, dout, x);
}

extern const Model gpt_model;
const Model gpt_model = {
    FAMILY_GPT,
    "gpt",
    gpt_embedding_tensors,
    gpt_layer_tensors,
    gpt_head_tensors,
    gpt_layer_bundle,
    gpt_layer_work,
    gpt_layer_forward,
    gpt_layer_backward,
    gpt_norm_forward,
    gpt_norm_backward,
    2,    // head: ln_f weight, ln_f bias, output matrix
    true, // learned positions
};

int main(int argc, char **argv) { return trainer_main("train_gpt", &gpt_model, argc, argv); }
