// Latent attention between the first product of a layer and its last (latent.h).
#include "latent.h"
#include "blocks.h"

// The eps of the norms of latent rows: transformers' DeepSeek-V3 uses this one there, whatever rms_norm_eps is.
static const double EPS = 1e-6;

void latent_work_layout(LatentWork *to, Layout *layout, const Shape *s) {
    const LatentShape *l = &s->latent;
    int64_t row = s->rows * s->element, heads = l->heads * (l->nope + l->rope);
    to->query = layout_take(layout, row * l->query_rank);
    to->key = layout_take(layout, row * l->key_rank);
    to->shared = layout_take(layout, row * l->rope);
    to->query_norm = layout_take(layout, row * l->query_rank);
    to->key_norm = layout_take(layout, row * l->key_rank);
    to->dquery_norm = layout_take(layout, row * l->query_rank);
    to->dkey_norm = layout_take(layout, row * l->key_rank);
    to->dquery = layout_take(layout, row * l->query_rank);
    to->dkey = layout_take(layout, row * l->key_rank);
    to->q = layout_take(layout, row * heads);
    to->kv = layout_take(layout, row * l->heads * (l->nope + l->value));
    to->qkv = layout_take(layout, 3 * row * heads);
    to->dqkv = layout_take(layout, 3 * row * heads);
    to->out = layout_take(layout, row * heads);
    to->dout = layout_take(layout, row * heads);
}

// Copies between the heads' values (rows, H v) and attention's padded rows (rows, H D); the padding becomes zero.
static void values_(const Pass *pass, void *padded, const void *values) {
    const Shape *s = pass->shape;
    const LatentShape *l = &s->latent;
    int64_t wide = l->nope + l->rope, heads = s->rows * l->heads;
    if (wide > l->value) pass->be->zero(pass->be, padded, heads * wide * s->element);
    pass->be->copy_columns(pass->be, padded, wide, values, l->value, false, heads, l->value);
}

// Splits a into its parts, and computes queries, keys and values.
static void project_(Pass *pass, const Tensor *const *t, const LatentWork *work, const void *a) {
    const Shape *s = pass->shape;
    const LatentShape *l = &s->latent;
    Backend *be = pass->be;
    const AttentionShape attention = pass_attention(pass);
    const char *from = a;
    int64_t wide = l->nope + l->rope, width = s->qkv_cols;
    be->copy_columns(be, work->query, l->query_rank, from, width, false, s->rows, l->query_rank);
    from += l->query_rank * s->element;
    be->copy_columns(be, work->key, l->key_rank, from, width, false, s->rows, l->key_rank);
    from += l->key_rank * s->element;
    be->copy_columns(be, work->shared, l->rope, from, width, false, s->rows, l->rope);
    be->norm_forward(be, factor_plain(work->query_norm), NULL, work->query, NULL, t[LAYER_Q_NORM]->weight, NULL,
                     s->rows, l->query_rank, EPS);
    be->norm_forward(be, factor_plain(work->key_norm), NULL, work->key, NULL, t[LAYER_K_NORM]->weight, NULL, s->rows,
                     l->key_rank, EPS);
    be->linear_forward(be, work->q, NULL, factor_plain(work->query_norm), factor_plain(t[LAYER_Q_UP]->weight), NULL,
                       s->rows, l->query_rank, l->heads * wide, EPILOGUE_NONE);
    be->linear_forward(be, work->kv, NULL, factor_plain(work->key_norm), factor_plain(t[LAYER_KV_UP]->weight), NULL,
                       s->rows, l->key_rank, l->heads * (l->nope + l->value), EPILOGUE_NONE);
    be->latent_join(be, work->qkv, work->q, work->kv, work->shared, s->rows, l);
    be->rope(be, work->qkv, &attention, pass->rope, pass->positions, +1);
}

void latent_forward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *out, void *saved, const void *a) {
    const Shape *s = pass->shape;
    const LatentShape *l = &s->latent;
    project_(pass, t, work, a);
    attention_block_forward(pass, work->out, saved, work->qkv);
    pass->be->copy_columns(pass->be, out, l->value, work->out, l->nope + l->rope, false, s->rows * l->heads, l->value);
}

// The backward of x -> norm(x) w: adds to the gradients of w and of the norm, and sets dx. normed: norm(x).
static void product_backward_(Pass *pass, void *dx, void *dnormed, const void *dy, const void *x, const void *normed,
                              const Tensor *norm, const Tensor *w, int64_t in, int64_t out) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    be->linear_backward_weight(be, w->gradient, NULL, factor_plain(dy), factor_plain(normed), s->rows, in, out, true);
    be->linear_backward_input(be, dnormed, NULL, factor_plain(dy), factor_plain(w->weight), s->rows, in, out,
                              EPILOGUE_NONE);
    be->zero(be, dx, s->rows * in * s->element);
    be->norm_backward(be, dx, norm->gradient, NULL, dnormed, x, norm->weight, s->rows, in, EPS);
}

void latent_backward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *da, const void *dout,
                     const void *out, const void *saved, const void *a) {
    const Shape *s = pass->shape;
    const LatentShape *l = &s->latent;
    Backend *be = pass->be;
    const AttentionShape attention = pass_attention(pass);
    int64_t wide = l->nope + l->rope, width = s->qkv_cols;
    project_(pass, t, work, a);
    values_(pass, work->out, out);
    values_(pass, work->dout, dout);
    attention_block_backward(pass, work->dqkv, work->dout, work->out, saved, work->qkv);
    be->rope(be, work->dqkv, &attention, pass->rope, pass->positions, -1);
    be->latent_split(be, work->q, work->kv, work->shared, work->dqkv, s->rows, l);
    product_backward_(pass, work->dquery, work->dquery_norm, work->q, work->query, work->query_norm, t[LAYER_Q_NORM],
                      t[LAYER_Q_UP], l->query_rank, l->heads * wide);
    product_backward_(pass, work->dkey, work->dkey_norm, work->kv, work->key, work->key_norm, t[LAYER_K_NORM],
                      t[LAYER_KV_UP], l->key_rank, l->heads * (l->nope + l->value));
    char *to = da;
    be->copy_columns(be, to, width, work->dquery, l->query_rank, false, s->rows, l->query_rank);
    to += l->query_rank * s->element;
    be->copy_columns(be, to, width, work->dkey, l->key_rank, false, s->rows, l->key_rank);
    to += l->key_rank * s->element;
    be->copy_columns(be, to, width, work->shared, l->rope, false, s->rows, l->rope);
}
