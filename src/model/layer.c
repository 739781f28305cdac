// A transformer layer, forward and backward. Every product of activations with weights, every sum over tensor ranks and
// every buffer of a layer is here. The backward reads the forward's results only from the bundle, so the bundle may be
// moved in between. Temporaries belong to the stage and live for one call.
#include "layer.h"

#include "blocks.h"
#include "quantized.h"

#include <assert.h>

int64_t layer_bundle_layout(LayerBundle *bundle, const void *base, const Shape *s) {
    LayerBundle counted;
    LayerBundle *to = bundle == NULL ? &counted : bundle;
    Layout layout = {(char *)base, 0};
    int64_t stream = s->shard_rows * s->hidden * s->element;
    int64_t norm = quantized_bytes(s, s->narrow[GATHERED_INPUT], s->shard_rows, s->hidden);
    to->x = layout_take(&layout, stream);
    to->norm1 = s->pointwise ? NULL : layout_take(&layout, norm);
    to->qkv = layout_take(&layout, s->rows * s->qkv_cols * s->element);
    int64_t kept = s->qkv_cols - s->attention.kv_heads * s->attention.head_dim;
    to->kept = layout_take(&layout, s->qk_norm ? s->rows * kept * s->element : 0);
    to->saved = layout_take(&layout, s->saved_bytes);
    to->attention = layout_take(&layout, s->rows * s->query_cols * s->element);
    to->x2 = layout_take(&layout, stream);
    to->norm2 = s->pointwise ? NULL : layout_take(&layout, norm);
    to->mlp = layout_take(&layout, s->rows * s->mlp_cols * s->element);
    int64_t act = quantized_bytes(s, s->narrow[GATHERED_INPUT], s->rows, s->ffn);
    to->act = s->pointwise ? NULL : layout_take(&layout, act);
    if (s->route.experts > 0) experts_bundle_layout(&to->experts, &layout, s);
    to->scales = layout_take(&layout, s->fp8 == FP8_TENSOR ? 3 * FACTOR_ONE_SCALE : 0);
    return layout.used;
}

int64_t layer_work_layout(LayerWork *work, void *base, const Shape *s) {
    LayerWork counted;
    LayerWork *to = work == NULL ? &counted : work;
    Layout layout = {(char *)base, 0};
    int64_t stream = s->shard_rows * s->hidden * s->element, mlp = s->rows * s->mlp_cols * s->element;
    to->delta = layout_take(&layout, stream);
    int kind = s->narrow[GATHERED_INPUT];
    to->norm = layout_take(&layout, s->pointwise ? quantized_bytes(s, kind, s->shard_rows, s->hidden) : 0);
    Layout attention = layout;
    to->act = layout_take(&layout, s->pointwise ? quantized_bytes(s, kind, s->rows, s->ffn) : 0);
    to->dmlp = layout_take(&layout, kind != FACTOR_PLAIN && stream > mlp ? stream : mlp);
    to->dact = s->mlp_cols > s->ffn ? layout_take(&layout, s->rows * s->ffn * s->element) : to->dmlp;
    if (s->route.experts > 0) experts_work_layout(&to->experts, &layout, s);
    to->dqkv = layout_take(&attention, s->rows * s->qkv_cols * s->element);
    to->dattention = layout_take(&attention, s->rows * s->query_cols * s->element);
    int64_t keys = s->pieces > 1 ? s->rows * s->context_ranks * (s->qkv_cols - s->query_cols) : 0;
    to->keys = layout_take(&attention, keys * s->element);
    to->dkeys = (float *)layout_take(&attention, keys * (int64_t)sizeof(float));
    if (s->latent.heads > 0) latent_work_layout(&to->latent, &attention, s);
    return layout.used > attention.used ? layout.used : attention.used;
}

// One layer at work: its tensors by role (NULL: not in this model), its bundle and its temporaries.
typedef struct Layer {
    const Tensor *t[LAYER_ROLES];
    const void *w[LAYER_ROLES]; // weights for the forward; NULL: not in this model, or another rank adds this bias
    LayerBundle a;
    LayerWork work;
    Factor norm1, norm2, attention, act; // operands of products; .source: bf16 values before quantization
    bool fused; // GELU is fused into adjacent products: up computes act and mlp, the backward of down computes dmlp
    Epilogue epilogue;
} Layer;

static Layer layer_open_(Pass *pass, const Tensor *tensors, const void *bundle) {
    const Shape *s = pass->shape;
    Layer layer;
    for (int role = 0; role < LAYER_ROLES; role++) {
        int place = pass->place[role];
        layer.t[role] = place < 0 ? NULL : &tensors[place];
        layer.w[role] = place < 0 ? NULL : tensors[place].weight;
    }
    // The bias of a matrix that is split by columns belongs to the sum over tensor ranks, so only rank 0 adds it.
    if (s->tensor_rank > 0) layer.w[LAYER_OUT_BIAS] = layer.w[LAYER_DOWN_BIAS] = NULL;
    layer_bundle_layout(&layer.a, bundle, s);
    layer_work_layout(&layer.work, pass->work, s);
    if (s->pieces > 1) pass->keys = layer.work.keys, pass->dkeys = layer.work.dkeys;
    if (s->pointwise) layer.a.norm1 = layer.a.norm2 = layer.work.norm, layer.a.act = layer.work.act;
    int kind = s->narrow[GATHERED_INPUT];
    layer.norm1 = quantized_at(layer.a.norm1, layer.work.dmlp, kind, s->shard_rows, s->hidden);
    layer.norm2 = quantized_at(layer.a.norm2, layer.work.dmlp, kind, s->shard_rows, s->hidden);
    layer.attention = factor_plain(layer.a.attention);
    layer.act = quantized_at(layer.a.act, layer.work.dmlp, kind, s->rows, s->ffn);
    // `act` keeps no scale: the forward of a recomputed layer skips the product that would compute it.
    Factor *scaled[] = {&layer.norm1, &layer.norm2, &layer.attention};
    for (int i = 0; i < 3 && s->fp8 == FP8_TENSOR; i++) scaled[i]->scales = layer.a.scales + i * FACTOR_ONE_SCALE;
    layer.fused = pass->model->activation_forward == NULL;
    layer.epilogue = layer.fused ? EPILOGUE_GELU : EPILOGUE_NONE;
    return layer;
}

// Returns the operand to gather for dx, the gradient of a row-parallel product's output: plain or in eight bits.
static Factor gradient_(const Pass *pass, const void *dx) {
    const Shape *s = pass->shape;
    int kind = s->narrow[GATHERED_GRADIENT];
    return quantized_at(kind == FACTOR_PLAIN ? dx : pass->narrowed, dx, kind, s->shard_rows, s->hidden);
}

void layer_forward(Pass *pass, const Tensor *tensors, void *bundle, void *y, LayerOutput output) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    Layer layer = layer_open_(pass, tensors, bundle);
    const LayerBundle *a = &layer.a;
    const Tensor **t = layer.t;
    const void **w = layer.w;
    const bool experts = s->route.experts > 0;
    void *delta = layer.work.delta, *act = (void *)layer.act.source;

    // 1. norm1 = norm(x)
    block_norm_first(pass, t[LAYER_NORM1], layer.norm1, a->x);

    // 2. The heads of this tensor rank: q, k and v, or with latent attention the latent rows.
    column_forward(pass, a->qkv, NULL, layer.norm1, t[LAYER_QKV], w[LAYER_QKV_BIAS], s->qkv_cols, EPILOGUE_NONE);

    // 3. Attention, after the norm and the rotation of q and k.
    if (s->latent.heads > 0) {
        latent_forward(pass, t, &layer.work.latent, a->attention, a->saved, a->qkv);
    } else {
        if (pass->model->heads_forward != NULL) pass->model->heads_forward(pass, t, a->qkv, a->kept);
        attention_block_forward(pass, a->attention, a->saved, a->qkv);
    }

    // 4. x2 = x + out(attention), summed over the heads of all tensor ranks; norm2 = norm(x2)
    row_forward(pass, delta, layer.attention, t[LAYER_OUT], w[LAYER_OUT_BIAS], s->query_cols);
    block_norm(pass, t[LAYER_NORM2], layer.norm2, a->x2, a->x, delta);

    // 5. The router chooses the experts of this rank's rows.
    if (experts) experts_route(pass, t, &a->experts, &layer.work.experts, a->norm2);

    // 6. The dense MLP, or the shared expert: this tensor rank's columns of act = activation(up(norm2)).
    if (s->ffn > 0) {
        column_forward(pass, layer.fused ? act : a->mlp, layer.fused ? a->mlp : NULL, layer.norm2, t[LAYER_UP],
                       w[LAYER_UP_BIAS], s->mlp_cols, layer.epilogue);
        if (!layer.fused) pass->model->activation_forward(pass, layer.act, a->mlp);
        else if (layer.act.kind != FACTOR_PLAIN) quantized_make(pass, &layer.act, s->rows, s->ffn);
    }
    if (output == LAYER_NO_OUTPUT) return;

    // 7. delta = down(act), summed over the columns of all tensor ranks, plus the chosen experts' output
    if (s->ffn > 0) row_forward(pass, delta, layer.act, t[LAYER_DOWN], w[LAYER_DOWN_BIAS], s->ffn);
    if (experts) {
        void *sum = s->ffn > 0 ? layer.work.experts.output : delta;
        experts_forward(pass, t, &a->experts, &layer.work.experts, sum, a->norm2);
        if (s->ffn > 0) be->combine(be, delta, 1, delta, 1, sum, s->shard_rows * s->hidden);
    }

    // 8. y = x2 + delta; alternatively, the norm that reads y does the addition
    if (output == LAYER_WRITES) be->combine(be, y, 1, a->x2, 1, delta, s->shard_rows * s->hidden);
    if (output == LAYER_LEAVES) pass->residual = a->x2, pass->delta = delta;
}

// dx is the gradient of y, then of x2, then of x: the norms' backwards add to it. With overlap (blocks.c) gathers start
// as early as their operands allow, and weight gradients are deferred until a collective is in flight. A split backward
// leaves the operands of layer_weights in the bundle, in place of data read for the last time: the gradient of the
// MLP's first product in `mlp`, of x2 in `x2`, of q, k and v in `qkv`. With shape->pointwise `x` and `x2` stay in the
// bundle, because layer_weights computes the norms again from them. So their memory cannot keep the operands of the
// weight gradients of `out` and `down`, and these weight gradients are computed here (pass_keeps_rows).
void layer_backward(Pass *pass, const Tensor *tensors, void *bundle, void *dx, bool onward) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Layer layer = layer_open_(pass, tensors, bundle);
    const LayerBundle *a = &layer.a;
    const LayerWork *work = &layer.work;
    const Tensor *const *t = layer.t;
    const int64_t stream = s->shard_rows * s->hidden;
    const bool experts = s->route.experts > 0, early = s->sequence && s->overlap;
    const Factor gradient = gradient_(pass, dx);
    Factor dy;
    assert(pass->later_count == 0);

    // 1. Recompute what the forward did not keep: act, and norm2 unless layer_weights does it.
    if (s->pointwise && s->ffn > 0) {
        if (layer.fused) be->gelu_forward(be, (void *)layer.act.source, a->mlp, s->rows * s->ffn);
        else pass->model->activation_forward(pass, layer.act, a->mlp);
        if (layer.fused && layer.act.kind != FACTOR_PLAIN) quantized_make(pass, &layer.act, s->rows, s->ffn);
    }
    if (s->pointwise && (experts || !pass->split)) block_norm(pass, t[LAYER_NORM2], layer.norm2, NULL, a->x2, NULL);

    // 2. The experts and their router, completely, also if backwards are split.
    if (experts)
        experts_backward(pass, t, &a->experts, &work->experts, s->ffn > 0 ? work->experts.output : work->delta, dx,
                         a->norm2);

    // 3. The dense MLP: down, activation, up. delta becomes the gradient of norm2. With overlap, the activation writes
    // its gradient in eight bits, too, for the input gradient of up, which is next. Without overlap, the weight
    // gradient of up is next, and its transposed operand needs the 8-bit buffer.
    if (s->ffn > 0) {
        dy = block_gathered(pass, GATHERED_GRADIENT, gradient);
        if (early && !pass->split) block_gather(pass, GATHERED_INPUT, layer.norm2);
        row_backward(pass, layer.fused ? work->dmlp : work->dact, layer.fused ? a->mlp : NULL, dy, layer.act,
                     t[LAYER_DOWN], t[LAYER_DOWN_BIAS], s->ffn, layer.epilogue);
        Factor dmlp = factor_plain(work->dmlp);
        if (s->overlap && !layer.fused && s->narrow[GATHERED_INPUT] != FACTOR_PLAIN)
            dmlp = quantized_at(pass->quantized[FACTOR_GRADIENT], work->dmlp, s->narrow[GATHERED_INPUT], s->rows,
                                s->mlp_cols);
        if (!layer.fused) pass->model->activation_backward(pass, dmlp, work->dact, a->mlp);
        if (pass->split) be->copy(be, STREAM_COMPUTE, a->mlp, work->dmlp, s->rows * s->mlp_cols * s->element);
        column_backward(pass, work->delta, dmlp, layer.norm2, t[LAYER_UP], t[LAYER_UP_BIAS], s->mlp_cols);
        if (experts) be->combine(be, work->delta, 1, work->delta, 1, work->experts.output, stream);
    }

    // 4. norm2: dx becomes the gradient of x2.
    block_norm_backward(pass, t[LAYER_NORM2], dx, work->delta, a->x2);
    if (pass_keeps_rows(pass)) be->copy(be, STREAM_COMPUTE, a->x2, dx, stream * s->element);
    if (early) block_gather(pass, GATHERED_GRADIENT, gradient);
    if (s->overlap) block_later(pass, 0);

    // 5. Attention: out, the scores, q, k and v. delta becomes the gradient of norm1.
    if (s->pointwise && !pass->split) block_norm(pass, t[LAYER_NORM1], layer.norm1, NULL, a->x, NULL);
    dy = block_gathered(pass, GATHERED_GRADIENT, gradient);
    if (early && !pass->split) block_gather(pass, GATHERED_INPUT, layer.norm1);
    row_backward(pass, work->dattention, NULL, dy, layer.attention, t[LAYER_OUT], t[LAYER_OUT_BIAS], s->query_cols,
                 EPILOGUE_NONE);
    if (s->latent.heads > 0) {
        latent_backward(pass, t, &work->latent, work->dqkv, work->dattention, a->attention, a->saved, a->qkv);
    } else {
        attention_block_backward(pass, work->dqkv, work->dattention, a->attention, a->saved, a->qkv);
        if (pass->model->heads_backward != NULL) pass->model->heads_backward(pass, t, work->dqkv, a->kept);
    }
    if (pass->split) be->copy(be, STREAM_COMPUTE, a->qkv, work->dqkv, s->rows * s->qkv_cols * s->element);
    column_backward(pass, work->delta, factor_plain(work->dqkv), layer.norm1, t[LAYER_QKV], t[LAYER_QKV_BIAS],
                    s->qkv_cols);

    // 6. norm1: dx becomes the gradient of x, which the layer below gathers, unless it has only experts.
    block_norm_backward(pass, t[LAYER_NORM1], dx, work->delta, a->x);
    if (onward && early && s->ffn > 0) block_gather(pass, GATHERED_GRADIENT, gradient);
    if (s->overlap) block_later(pass, 0);
}

// With pointwise, layer_backward has computed the weight gradients of `down` and `out`. Otherwise each gather starts
// one product early, so that it runs during that product.
void layer_weights(Pass *pass, const Tensor *tensors, const void *bundle, const void *dy, const void *next) {
    const Shape *s = pass->shape;
    const Layer layer = layer_open_(pass, tensors, bundle);
    const LayerBundle *a = &layer.a;
    const Tensor *const *t = layer.t;
    const bool early = s->sequence && s->overlap && !s->pointwise;
    Factor whole;

    // 1. The dense MLP's weight gradients, if layer_backward left them.
    if (s->ffn > 0 && !s->pointwise) {
        whole = block_gathered(pass, GATHERED_GRADIENT, gradient_(pass, dy));
        if (early) block_gather(pass, GATHERED_INPUT, layer.norm2);
        block_weight(pass, (WeightGradient){t[LAYER_DOWN], t[LAYER_DOWN_BIAS], whole, layer.act, s->ffn, s->hidden,
                                            .shard = false});
        if (early) block_gather(pass, GATHERED_GRADIENT, gradient_(pass, a->x2));
    }
    if (s->ffn > 0) {
        if (s->pointwise) block_norm(pass, t[LAYER_NORM2], layer.norm2, NULL, a->x2, NULL);
        block_weight(pass, (WeightGradient){t[LAYER_UP], t[LAYER_UP_BIAS], factor_plain(a->mlp), layer.norm2, s->hidden,
                                            s->mlp_cols, .shard = true});
    }

    // 2. The attention's.
    if (!s->pointwise) {
        whole = block_gathered(pass, GATHERED_GRADIENT, gradient_(pass, a->x2));
        if (early) block_gather(pass, GATHERED_INPUT, layer.norm1);
        block_weight(pass, (WeightGradient){t[LAYER_OUT], t[LAYER_OUT_BIAS], whole, layer.attention, s->query_cols,
                                            s->hidden, .shard = false});
        if (early && next != NULL && s->ffn > 0) block_gather(pass, GATHERED_GRADIENT, gradient_(pass, next));
    } else {
        block_norm(pass, t[LAYER_NORM1], layer.norm1, NULL, a->x, NULL);
    }
    block_weight(pass, (WeightGradient){t[LAYER_QKV], t[LAYER_QKV_BIAS], factor_plain(a->qkv), layer.norm1, s->hidden,
                                        s->qkv_cols, .shard = true});
}
