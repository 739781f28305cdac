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

void layer_forward(Pass *pass, const Model *model, const Tensor *tensors, void *bundle, void *y, LayerOutput output) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const Tensor **t = layer.t;
    const LayerBundle *a = &layer.a;
    void *delta = layer.work.delta;

    block_norm_forward(pass, model, t[LAYER_NORM1], a->norm1, a->x);
    column_forward_gathered(pass, a->qkv, NULL, a->norm1, t[LAYER_QKV], t[LAYER_QKV_BIAS], s->qkv_cols, EPILOGUE_NONE);
    if (model->heads_forward != NULL) model->heads_forward(pass, t, a->qkv, a->kept);
    attention_block_forward(pass, a->attention, a->saved, a->qkv);
    row_forward(pass, delta, a->attention, t[LAYER_OUT], t[LAYER_OUT_BIAS], s->query_cols);

    model->norm_forward(pass, t[LAYER_NORM2], a->norm2, a->x2, a->x, delta);
    column_forward_gathered(pass, layer.fused ? a->act : a->mlp, layer.fused ? a->mlp : NULL, a->norm2, t[LAYER_UP],
                            t[LAYER_UP_BIAS], s->mlp_cols, layer.epilogue);
    if (!layer.fused) model->activation_forward(pass, a->act, a->mlp);
    if (output == LAYER_NO_OUTPUT) return;
    row_forward(pass, delta, a->act, t[LAYER_DOWN], t[LAYER_DOWN_BIAS], s->ffn);
    if (output == LAYER_WRITES)
        pass->be->add(pass->be, y, a->x2, delta, s->shard_rows * s->hidden);
    else
        pass->residual = a->x2, pass->delta = delta;
}

// One of the two branches beside the residual stream, x + row(inner(column(norm(x)))), as its backward sees it.
typedef struct Branch {
    int norm, column, column_bias, row, row_bias; // LayerRole
    const void *x, *normed, *inner;               // inputs of the norm, of the column's product and of the row's
    int64_t column_cols, row_cols;
} Branch;

static Branch mlp_(const LayerBundle *a, const Shape *s) {
    return (Branch){LAYER_NORM2, LAYER_UP, LAYER_UP_BIAS, LAYER_DOWN,  LAYER_DOWN_BIAS,
                    a->x2,       a->norm2, a->act,        s->mlp_cols, s->ffn};
}

static Branch layer_attention_(const LayerBundle *a, const Shape *s) {
    return (Branch){LAYER_NORM1, LAYER_QKV, LAYER_QKV_BIAS, LAYER_OUT,   LAYER_OUT_BIAS,
                    a->x,        a->norm1,  a->attention,   s->qkv_cols, s->query_cols};
}

static void branch_row_weight_(Pass *pass, const Layer *layer, const Branch *b, const void *whole_dy) {
    row_weight(pass, whole_dy, b->inner, layer->t[b->row], layer->t[b->row_bias], b->row_cols);
}

static void branch_column_weight_(Pass *pass, const Layer *layer, const Branch *b, const void *dy) {
    column_weight(pass, dy, block_gathered(pass, GATHERED_INPUT, b->normed), layer->t[b->column],
                  layer->t[b->column_bias], b->column_cols);
}

// Goes back from the gradient dy (shard) of the branch to that of what the row's product reads. Returns the whole of
// dy.
static const void *branch_row_(Pass *pass, const Layer *layer, const Branch *b, const void *dy, void *dinner,
                               const void *aux, Epilogue epilogue) {
    const void *whole = block_gathered(pass, GATHERED_GRADIENT, dy);
    if (!pass->split) block_gather(pass, GATHERED_INPUT, b->normed);
    if (!pass->split && !pass->shape->overlap) branch_row_weight_(pass, layer, b, whole);
    row_input(pass, dinner, aux, whole, layer->t[b->row], b->row_cols, epilogue);
    return whole;
}

// Goes back from the gradient of what the column's product makes to that of the branch's input, which is added to dx;
// then dx is kept, and gathered where it is needed whole next. With overlap, the gradients of weights are computed
// during the collectives: the row's during the sum over tensor ranks, the column's during the gather of dx; where
// nothing is gathered, both during the sum. Without overlap they come first, because the sum takes the buffer of what
// was gathered for them.
static void branch_column_(Pass *pass, const Model *model, const Layer *layer, const Branch *b, const void *dcolumn,
                           const void *whole_dy, void *dx, void *keep, bool onward) {
    const Shape *s = pass->shape;
    bool late = !pass->split && s->overlap, after = late && s->sequence;
    if (!pass->split && !late) branch_column_weight_(pass, layer, b, dcolumn);
    column_input(pass, layer->work.delta, dcolumn, layer->t[b->column], b->column_cols);
    if (late) branch_row_weight_(pass, layer, b, whole_dy);
    if (late && !after) branch_column_weight_(pass, layer, b, dcolumn);
    block_summed(pass);
    model->norm_backward(pass, layer->t[b->norm], dx, layer->work.delta, b->x);
    if (keep != NULL) block_keep(pass, keep, dx, s->shard_rows * s->hidden * s->element);
    if (onward) block_gather(pass, GATHERED_GRADIENT, dx);
    if (after) branch_column_weight_(pass, layer, b, dcolumn);
}

// A split backward leaves what layer_weights needs in the bundle, in place of what has been read for the last time: the
// gradient of the MLP's first product in `mlp`, of the residual stream after attention in `x2`, of q, k and v in `qkv`.
void layer_backward(Pass *pass, const Model *model, const Tensor *tensors, void *bundle, void *dx, bool onward) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const LayerBundle *a = &layer.a;
    const LayerWork *work = &layer.work;
    Branch mlp = mlp_(a, s), attention = layer_attention_(a, s);

    const void *whole = branch_row_(pass, &layer, &mlp, dx, layer.fused ? work->dmlp : work->dact,
                                    layer.fused ? a->mlp : NULL, layer.epilogue);
    if (!layer.fused) model->activation_backward(pass, work->dmlp, work->dact, a->mlp);
    block_keep(pass, a->mlp, work->dmlp, s->rows * s->mlp_cols * s->element);
    branch_column_(pass, model, &layer, &mlp, work->dmlp, whole, dx, a->x2, true);

    whole = branch_row_(pass, &layer, &attention, dx, work->dattention, NULL, EPILOGUE_NONE);
    attention_block_backward(pass, work->dqkv, work->dattention, a->attention, a->saved, a->qkv);
    if (model->heads_backward != NULL) model->heads_backward(pass, layer.t, work->dqkv, a->kept);
    block_keep(pass, a->qkv, work->dqkv, s->rows * s->qkv_cols * s->element);
    branch_column_(pass, model, &layer, &attention, work->dqkv, whole, dx, NULL, onward);
}

// Each gather is started before the product that precedes its own.
void layer_weights(Pass *pass, const Model *model, const Tensor *tensors, const void *bundle, const void *dy,
                   const void *next) {
    const Shape *s = pass->shape;
    Layer layer = layer_open_(pass, model, tensors, bundle);
    const LayerBundle *a = &layer.a;
    Branch mlp = mlp_(a, s), attention = layer_attention_(a, s);

    const void *whole = block_gathered(pass, GATHERED_GRADIENT, dy);
    block_gather(pass, GATHERED_INPUT, a->norm2);
    branch_row_weight_(pass, &layer, &mlp, whole);
    block_gather(pass, GATHERED_GRADIENT, a->x2);
    branch_column_weight_(pass, &layer, &mlp, a->mlp);
    whole = block_gathered(pass, GATHERED_GRADIENT, a->x2);
    block_gather(pass, GATHERED_INPUT, a->norm1);
    branch_row_weight_(pass, &layer, &attention, whole);
    if (next != NULL) block_gather(pass, GATHERED_GRADIENT, next);
    branch_column_weight_(pass, &layer, &attention, a->qkv);
}
