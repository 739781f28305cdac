// A transformer layer, forward and backward. Every product of activations with weights, every sum over tensor ranks and
// every buffer of a layer is here. The backward reads only the bundle, so a layer is free to be anywhere once its
// forward is done; its temporaries are the stage's and live for one call.
#include "layer.h"

#include "blocks.h"

int64_t layer_bundle_layout(LayerBundle *bundle, const void *base, const Shape *s) {
    LayerBundle counted;
    LayerBundle *to = bundle == NULL ? &counted : bundle;
    Layout layout = {(char *)base, 0};
    int64_t stream = s->shard_rows * s->hidden * s->element;
    to->x = layout_take(&layout, stream);
    to->norm1 = layout_take(&layout, stream);
    to->qkv = layout_take(&layout, s->rows * s->qkv_cols * s->element);
    int64_t kept = s->qkv_cols - s->attention.kv_heads * s->attention.head_dim;
    to->kept = layout_take(&layout, s->qk_norm ? s->rows * kept * s->element : 0);
    to->saved = layout_take(&layout, s->saved_bytes);
    to->attention = layout_take(&layout, s->rows * s->query_cols * s->element);
    to->x2 = layout_take(&layout, stream);
    to->norm2 = layout_take(&layout, stream);
    to->mlp = layout_take(&layout, s->rows * s->mlp_cols * s->element);
    to->act = layout_take(&layout, s->rows * s->ffn * s->element);
    return layout.used;
}

int64_t layer_work_layout(LayerWork *work, void *base, const Shape *s) {
    LayerWork counted;
    LayerWork *to = work == NULL ? &counted : work;
    Layout layout = {(char *)base, 0};
    to->delta = layout_take(&layout, s->shard_rows * s->hidden * s->element);
    Layout attention = layout;
    to->dmlp = layout_take(&layout, s->rows * s->mlp_cols * s->element);
    to->dact = layout_take(&layout, s->mlp_cols > s->ffn ? s->rows * s->ffn * s->element : 0);
    to->dqkv = layout_take(&attention, s->rows * s->qkv_cols * s->element);
    to->dattention = layout_take(&attention, s->rows * s->query_cols * s->element);
    return layout.used > attention.used ? layout.used : attention.used;
}

// One layer at work: its tensors by role (NULL where the model has none), its bundle and its temporaries.
typedef struct Layer {
    const Tensor *t[LAYER_ROLES];
    LayerBundle a;
    LayerWork work;
    bool fused; // the activation is a part of the products beside it
    Epilogue epilogue;
} Layer;

static Layer layer_open_(const Pass *pass, const Model *model, const Tensor *tensors, const void *bundle) {
    Layer layer;
    for (int role = 0; role < LAYER_ROLES; role++) {
        int place = pass->shape->place[role];
        layer.t[role] = place < 0 ? NULL : &tensors[place];
    }
    layer_bundle_layout(&layer.a, bundle, pass->shape);
    layer_work_layout(&layer.work, pass->work, pass->shape);
    layer.fused = model->activation_forward == NULL;
    layer.epilogue = layer.fused ? EPILOGUE_GELU : EPILOGUE_NONE;
    return layer;
}

void layer_forward(Pass *pass, const Model *model, const Tensor *tensors, void *bundle, void *y) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const Tensor **t = layer.t;
    const LayerBundle *a = &layer.a;
    void *delta = layer.work.delta;

    model->norm_forward(pass, t[LAYER_NORM1], a->norm1, NULL, a->x, NULL);
    column_forward(pass, a->qkv, NULL, a->norm1, t[LAYER_QKV], t[LAYER_QKV_BIAS], s->qkv_cols, EPILOGUE_NONE);
    if (model->heads_forward != NULL) model->heads_forward(pass, t, a->qkv, a->kept);
    attention_block_forward(pass, a->attention, a->saved, a->qkv);
    row_forward(pass, delta, a->attention, t[LAYER_OUT], t[LAYER_OUT_BIAS], s->query_cols);

    model->norm_forward(pass, t[LAYER_NORM2], a->norm2, a->x2, a->x, delta);
    column_forward(pass, layer.fused ? a->act : a->mlp, layer.fused ? a->mlp : NULL, a->norm2, t[LAYER_UP],
                   t[LAYER_UP_BIAS], s->mlp_cols, layer.epilogue);
    if (!layer.fused) model->activation_forward(pass, a->act, a->mlp);
    if (y == NULL) return;
    row_forward(pass, delta, a->act, t[LAYER_DOWN], t[LAYER_DOWN_BIAS], s->ffn);
    pass->be->add(pass->be, y, a->x2, delta, s->shard_rows * s->hidden);
}

// Split, it leaves what layer_weights needs in the bundle, in place of what has been read for the last time: the
// gradient of the MLP's first product in `mlp`, of the residual stream after attention in `x2`, of q, k and v in `qkv`.
void layer_backward(Pass *pass, const Model *model, const Tensor *tensors, void *bundle, void *dx) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const Tensor **t = layer.t;
    const LayerBundle *a = &layer.a;
    const LayerWork *work = &layer.work;

    row_backward(pass, layer.fused ? work->dmlp : work->dact, layer.fused ? a->mlp : NULL, dx, a->act, t[LAYER_DOWN],
                 t[LAYER_DOWN_BIAS], s->ffn, layer.epilogue);
    if (!layer.fused) model->activation_backward(pass, work->dmlp, work->dact, a->mlp);
    block_keep(pass, a->mlp, work->dmlp, s->rows * s->mlp_cols * s->element);
    column_backward(pass, work->delta, work->dmlp, a->norm2, t[LAYER_UP], t[LAYER_UP_BIAS], s->mlp_cols);
    model->norm_backward(pass, t[LAYER_NORM2], dx, work->delta, a->x2);
    block_keep(pass, a->x2, dx, s->shard_rows * s->hidden * s->element);

    row_backward(pass, work->dattention, NULL, dx, a->attention, t[LAYER_OUT], t[LAYER_OUT_BIAS], s->query_cols,
                 EPILOGUE_NONE);
    attention_block_backward(pass, work->dqkv, work->dattention, a->attention, a->saved, a->qkv);
    if (model->heads_backward != NULL) model->heads_backward(pass, t, work->dqkv, a->kept);
    block_keep(pass, a->qkv, work->dqkv, s->rows * s->qkv_cols * s->element);
    column_backward(pass, work->delta, work->dqkv, a->norm1, t[LAYER_QKV], t[LAYER_QKV_BIAS], s->qkv_cols);
    model->norm_backward(pass, t[LAYER_NORM1], dx, work->delta, a->x);
}

void layer_weights(Pass *pass, const Model *model, const Tensor *tensors, const void *bundle, const void *dy) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const Tensor **t = layer.t;
    const LayerBundle *a = &layer.a;

    row_weight(pass, dy, a->act, t[LAYER_DOWN], t[LAYER_DOWN_BIAS], s->ffn);
    column_weight(pass, a->mlp, a->norm2, t[LAYER_UP], t[LAYER_UP_BIAS], s->mlp_cols);
    row_weight(pass, a->x2, a->attention, t[LAYER_OUT], t[LAYER_OUT_BIAS], s->query_cols);
    column_weight(pass, a->qkv, a->norm1, t[LAYER_QKV], t[LAYER_QKV_BIAS], s->qkv_cols);
}
