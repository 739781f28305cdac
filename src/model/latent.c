// Latent attention between the first product of a layer and its last (latent.h).
#include "latent.h"
#include "blocks.h"

// The eps of the norms of latent rows: transformers' DeepSeek-V3 uses this one there, whatever rms_norm_eps is.
static const double EPS = 1e-6;

// A product of latent rows: norm(latent) wT, of queries or of keys and values.
typedef struct LatentProduct {
    const Tensor *norm, *w;
    int64_t in, out;
} LatentProduct;

static LatentProduct product_(const LatentShape *l, const Tensor *const *t, int i) {
    if (i == 0) return (LatentProduct){t[LAYER_Q_NORM], t[LAYER_Q_UP], l->query_rank, l->heads * (l->nope + l->rope)};
    return (LatentProduct){t[LAYER_K_NORM], t[LAYER_KV_UP], l->key_rank, l->heads * (l->nope + l->value)};
}

void latent_work_layout(LatentWork *to, Layout *layout, const Shape *s) {
    const LatentShape *l = &s->latent;
    int64_t row = s->rows * s->element, heads = l->heads * (l->nope + l->rope);
    int64_t in[] = {l->query_rank, l->key_rank}, out[] = {heads, l->heads * (l->nope + l->value)};
    for (int i = 0; i < 2; i++) {
        void **narrow[] = {&to->latent[i], &to->norm[i], &to->dlatent[i], &to->dnorm[i]};
        for (int k = 0; k < 4; k++) *narrow[k] = layout_take(layout, row * in[i]);
        to->product[i] = layout_take(layout, row * out[i]);
    }
    to->shared = layout_take(layout, row * l->rope);
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
static void project_(Pass *pass, const Tensor *const *t, const LatentWork *work, const char *a) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const AttentionShape attention = pass_attention(pass);
    for (int i = 0; i < 2; i++) {
        const LatentProduct p = product_(&s->latent, t, i);
        be->copy_columns(be, work->latent[i], p.in, a, s->qkv_cols, false, s->rows, p.in);
        be->norm_forward(be, factor_plain(work->norm[i]), NULL, work->latent[i], NULL, p.norm->weight, NULL, s->rows,
                         p.in, EPS);
        be->linear_forward(be, work->product[i], NULL, factor_plain(work->norm[i]), factor_plain(p.w->weight), NULL,
                           s->rows, p.in, p.out, EPILOGUE_NONE);
        a += p.in * s->element;
    }
    be->copy_columns(be, work->shared, s->latent.rope, a, s->qkv_cols, false, s->rows, s->latent.rope);
    be->latent_join(be, work->qkv, work->product[0], work->product[1], work->shared, s->rows, &s->latent);
    be->rope(be, work->qkv, &attention, pass->rope, pass->positions, +1);
}

void latent_forward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *out, void *saved, const void *a) {
    const Shape *s = pass->shape;
    const LatentShape *l = &s->latent;
    project_(pass, t, work, a);
    attention_block_forward(pass, work->out, saved, work->qkv);
    pass->be->copy_columns(pass->be, out, l->value, work->out, l->nope + l->rope, false, s->rows * l->heads, l->value);
}

void latent_backward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *da, const void *dout,
                     const void *out, const void *saved, const void *a) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const AttentionShape attention = pass_attention(pass);
    char *to = da;
    project_(pass, t, work, a);
    values_(pass, work->out, out);
    values_(pass, work->dout, dout);
    attention_block_backward(pass, work->dqkv, work->dout, work->out, saved, work->qkv);
    be->rope(be, work->dqkv, &attention, pass->rope, pass->positions, -1);
    be->latent_split(be, work->product[0], work->product[1], work->shared, work->dqkv, s->rows, &s->latent);
    for (int i = 0; i < 2; i++) {
        const LatentProduct p = product_(&s->latent, t, i);
        const Factor dy = factor_plain(work->product[i]);
        be->linear_backward_weight(be, p.w->gradient, NULL, dy, factor_plain(work->norm[i]), s->rows, p.in, p.out,
                                   true);
        be->linear_backward_input(be, work->dnorm[i], NULL, dy, factor_plain(p.w->weight), s->rows, p.in, p.out,
                                  EPILOGUE_NONE);
        be->zero(be, work->dlatent[i], s->rows * p.in * s->element);
        be->norm_backward(be, work->dlatent[i], p.norm->gradient, NULL, work->dnorm[i], work->latent[i], p.norm->weight,
                          s->rows, p.in, EPS);
        be->copy_columns(be, to, s->qkv_cols, work->dlatent[i], p.in, false, s->rows, p.in);
        to += p.in * s->element;
    }
    be->copy_columns(be, to, s->qkv_cols, work->shared, s->latent.rope, false, s->rows, s->latent.rope);
}
