// The blocks of a model: products split over tensor ranks, attention, embedding and head, each with its collectives.
// The collectives are here and nowhere else, so a model reads as if there were one rank.
#include "blocks.h"

static bool blocks_split_(const Pass *pass) {
    return pass->shape->tensor_ranks > 1;
}

static CommType comm_type_(const Pass *pass) {
    return pass->shape->element == 2 ? COMM_BF16 : COMM_FLOAT;
}

static void blocks_poll_(Pass *pass) {
    if (pass->poll != NULL) pass->poll(pass->poll_argument);
}

static void blocks_finish_(Pass *pass, int started, CommRequest *request) {
    if (started == 0) comm_wait(pass->tensor, request, pass->err);
    blocks_poll_(pass);
}

// Returns the whole of x (rows, hidden): x itself if nothing is sharded, else gathered into pass->full.
static const void *blocks_gather_(Pass *pass, const void *x) {
    const Shape *s = pass->shape;
    if (!s->sequence) return x;
    CommRequest request = {0};
    int started = pass->tensor->all_gather(pass->tensor, pass->full, x, s->shard_rows * s->hidden, comm_type_(pass),
                                           &request, pass->err);
    blocks_finish_(pass, started, &request);
    return pass->full;
}

// Returns where a product may put its part of a sum over tensor ranks; the second adds these parts up into `to`
// (shard).
static void *partial_(Pass *pass, void *to) {
    return blocks_split_(pass) && pass->shape->sequence ? pass->full : to;
}

static void blocks_reduce_(Pass *pass, void *to) {
    const Shape *s = pass->shape;
    if (!blocks_split_(pass)) return;
    CommRequest request = {0};
    Comm *t = pass->tensor;
    int started = s->sequence ? t->reduce_scatter(t, to, pass->full, s->shard_rows * s->hidden, comm_type_(pass),
                                                  &request, pass->err)
                              : t->all_reduce(t, to, s->rows * s->hidden, comm_type_(pass), &request, pass->err);
    blocks_finish_(pass, started, &request);
}

static const void *weight_(const Tensor *tensor) {
    return tensor == NULL ? NULL : tensor->weight;
}
static float *gradient_(const Tensor *tensor) {
    return tensor == NULL ? NULL : tensor->gradient;
}

void column_forward(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias, int64_t out,
                    Epilogue epilogue) {
    const Shape *s = pass->shape;
    pass->be->linear_forward(pass->be, y, aux, blocks_gather_(pass, x), w->weight, weight_(bias), s->rows, s->hidden,
                             out, epilogue);
}

void column_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t out) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_weight(pass->be, w->gradient, gradient_(bias), dy, blocks_gather_(pass, x), s->rows,
                                     s->hidden, out);
}

// The weight goes first: its gathered x and the input's partial sums share pass->full.
void column_backward(Pass *pass, void *dx, const void *dy, const void *x, const Tensor *w, const Tensor *bias,
                     int64_t out) {
    if (!pass->split) column_weight(pass, dy, x, w, bias, out);
    const Shape *s = pass->shape;
    pass->be->linear_backward_input(pass->be, partial_(pass, dx), NULL, dy, w->weight, s->rows, s->hidden, out,
                                    EPILOGUE_NONE);
    blocks_reduce_(pass, dx);
}

void row_forward(Pass *pass, void *y, const void *x, const Tensor *w, const Tensor *bias, int64_t in) {
    const Shape *s = pass->shape;
    // The bias belongs to the sum, so one of its terms brings it.
    const void *b = s->tensor_rank == 0 ? weight_(bias) : NULL;
    pass->be->linear_forward(pass->be, partial_(pass, y), NULL, x, w->weight, b, s->rows, in, s->hidden, EPILOGUE_NONE);
    blocks_reduce_(pass, y);
}

void row_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t in) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_weight(pass->be, w->gradient, gradient_(bias), blocks_gather_(pass, dy), x, s->rows, in,
                                     s->hidden);
}

// dy is gathered once for both products, unless the backward is split: then row_weight gathers it again.
void row_backward(Pass *pass, void *dx, const void *aux, const void *dy, const void *x, const Tensor *w,
                  const Tensor *bias, int64_t in, Epilogue epilogue) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const void *whole = blocks_gather_(pass, dy);
    if (!pass->split) be->linear_backward_weight(be, w->gradient, gradient_(bias), whole, x, s->rows, in, s->hidden);
    be->linear_backward_input(be, dx, aux, whole, w->weight, s->rows, in, s->hidden, epilogue);
}

void block_keep(Pass *pass, void *kept, const void *made, int64_t bytes) {
    if (pass->split) pass->be->copy(pass->be, STREAM_COMPUTE, kept, made, bytes);
}

void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv) {
    blocks_poll_(pass);
    pass->be->attention_forward(pass->be, out, saved, pass->scratch, qkv, &pass->shape->attention);
    blocks_poll_(pass);
}

void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv) {
    blocks_poll_(pass);
    pass->be->attention_backward(pass->be, dqkv, pass->scratch, dout, out, saved, qkv, &pass->shape->attention);
    blocks_poll_(pass);
}

void embedding_block_forward(Pass *pass, const Model *model, const Tensor *tensors, void *x, const int32_t *tokens) {
    const Shape *s = pass->shape;
    const void *positions = model->learned_positions && s->tensor_rank == 0 ? tensors[1].weight : NULL;
    pass->be->embedding_forward(pass->be, partial_(pass, x), tokens, tensors[0].weight, positions, s->rows, s->hidden,
                                s->batch, s->vocab_first, s->vocab_count);
    blocks_reduce_(pass, x);
}

void embedding_block_backward(Pass *pass, const Model *model, const Tensor *tensors, const void *dx,
                              const int32_t *tokens) {
    const Shape *s = pass->shape;
    float *positions = model->learned_positions ? tensors[1].gradient : NULL;
    pass->be->embedding_backward(pass->be, tensors[0].gradient, positions, blocks_gather_(pass, dx), tokens, s->rows,
                                 s->hidden, s->batch, s->vocab_first, s->vocab_count);
}

void head_work_layout(HeadWork *work, Layout *layout, const Shape *shape) {
    int64_t stream = shape->shard_rows * shape->hidden * shape->element, stats = shape->rows * 3 * 4;
    work->norm = layout_take(layout, stream);
    work->dnorm = layout_take(layout, stream);
    work->dx = layout_take(layout, stream);
    work->logits = layout_take(layout, shape->rows * shape->vocab_width * shape->element);
    work->stats = (float *)layout_take(layout, stats);
    work->gathered = shape->tensor_ranks > 1 ? (float *)layout_take(layout, stats * shape->tensor_ranks) : work->stats;
}

static void gather_stats_(Pass *pass, const HeadWork *work) {
    if (!blocks_split_(pass)) return;
    CommRequest request = {0};
    Comm *t = pass->tensor;
    int started = t->all_gather(t, work->gathered, work->stats, pass->shape->rows * 3, COMM_FLOAT, &request, pass->err);
    blocks_finish_(pass, started, &request);
}

void head_block(Pass *pass, const Model *model, const Tensor *tensors, const HeadWork *work, void *x, float *loss,
                const int32_t *targets, float scale) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Tensor *matrix = &tensors[model->head_matrix];
    model->norm_forward(pass, tensors, work->norm, NULL, x, NULL);
    column_forward(pass, work->logits, NULL, work->norm, matrix, NULL, s->vocab_width, EPILOGUE_NONE);
    blocks_poll_(pass);
    be->cross_entropy_stats(be, work->stats, work->logits, targets, s->rows, s->vocab_width, s->vocab_first,
                            s->vocab_count);
    gather_stats_(pass, work);
    be->cross_entropy_gradient(be, work->logits, loss, work->gathered, s->tensor_ranks, targets, s->rows,
                               s->vocab_width, s->vocab_first, s->vocab_count, scale);
    blocks_poll_(pass);
    if (scale == 0.0f) return;
    column_backward(pass, work->dnorm, work->logits, work->norm, matrix, NULL, s->vocab_width);
    int64_t stream = s->shard_rows * s->hidden * s->element;
    be->zero(be, work->dx, stream);
    model->norm_backward(pass, tensors, work->dx, work->dnorm, x);
    be->copy(be, STREAM_COMPUTE, x, work->dx, stream);
}
