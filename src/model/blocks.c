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

static void gather_start_(Pass *pass, Gathered what, const void *x) {
    const Shape *s = pass->shape;
    CommRequest *request = &pass->gather[what];
    *request = (CommRequest){0};
    int started = pass->tensor->all_gather(pass->tensor, pass->gathered[what], x, s->shard_rows * s->hidden,
                                           comm_type_(pass), request, pass->err);
    pass->gather_state[what] = started == 0 ? GATHER_STARTED : GATHER_FAILED;
}

void block_gather(Pass *pass, Gathered what, const void *x) {
    if (!pass->shape->sequence || !pass->shape->overlap || pass->gather_state[what] != GATHER_NONE) return;
    gather_start_(pass, what, x);
}

const void *block_gathered(Pass *pass, Gathered what, const void *x) {
    if (!pass->shape->sequence) return x;
    if (pass->gather_state[what] == GATHER_NONE) gather_start_(pass, what, x);
    blocks_finish_(pass, pass->gather_state[what] == GATHER_STARTED ? 0 : -1, &pass->gather[what]);
    pass->gather_state[what] = GATHER_NONE;
    return pass->gathered[what];
}

// Returns where a product may put its part of a sum over tensor ranks whose result goes to `to` (shard).
static void *partial_(Pass *pass, void *to) {
    return pass->shape->sequence ? pass->partial : to;
}

static void sum_start_(Pass *pass, void *to) {
    const Shape *s = pass->shape;
    if (!blocks_split_(pass)) return;
    Comm *t = pass->tensor;
    pass->sum = (CommRequest){0};
    int started = s->sequence ? t->reduce_scatter(t, to, pass->partial, s->shard_rows * s->hidden, comm_type_(pass),
                                                  &pass->sum, pass->err)
                              : t->all_reduce(t, to, s->rows * s->hidden, comm_type_(pass), &pass->sum, pass->err);
    pass->sum_started = started == 0;
}

void block_summed(Pass *pass) {
    if (!blocks_split_(pass)) return;
    blocks_finish_(pass, pass->sum_started ? 0 : -1, &pass->sum);
    pass->sum_started = false;
}

static const void *blocks_weight_(const Tensor *tensor) {
    return tensor == NULL ? NULL : tensor->weight;
}
static float *gradient_(const Tensor *tensor) {
    return tensor == NULL ? NULL : tensor->gradient;
}

void column_forward(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias, int64_t out,
                    Epilogue epilogue) {
    const Shape *s = pass->shape;
    pass->be->linear_forward(pass->be, y, aux, x, w->weight, blocks_weight_(bias), s->rows, s->hidden, out, epilogue);
}

void column_input(Pass *pass, void *dx, const void *dy, const Tensor *w, int64_t out) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_input(pass->be, partial_(pass, dx), NULL, dy, w->weight, s->rows, s->hidden, out,
                                    EPILOGUE_NONE);
    sum_start_(pass, dx);
}

void column_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t out) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_weight(pass->be, w->gradient, gradient_(bias), dy, x, s->rows, s->hidden, out);
}

// Chunk c of the rows that each of `blocks` ranks holds (all rows, in one block, without sequence parallelism). Where
// rows of a chunk are gathered or summed, the ranks' parts follow each other, so that a collective finds its data in
// one piece; a product reads or writes them at their places in the whole, shard_rows apart. A bundle is therefore the
// same for any number of chunks, and so are the sums of a backward.
typedef struct Chunk {
    int64_t first, rows, blocks;
    int64_t shard, whole; // bytes to the chunk in a shard of the stream, and in what is gathered or summed of it
} Chunk;

static Chunk blocks_chunk_(const Shape *s, int c) {
    Chunk chunk = {.first = s->shard_rows * c / s->chunks, .blocks = s->sequence ? s->tensor_ranks : 1};
    chunk.rows = s->shard_rows * (c + 1) / s->chunks - chunk.first;
    chunk.shard = chunk.first * s->hidden * s->element;
    chunk.whole = chunk.blocks * chunk.shard;
    return chunk;
}

static int gather_chunk_(Pass *pass, int c, const void *x) {
    const Shape *s = pass->shape;
    Chunk chunk = blocks_chunk_(s, c);
    pass->chunk[c] = (CommRequest){0};
    return pass->tensor->all_gather(pass->tensor, (char *)pass->gathered[GATHERED_INPUT] + chunk.whole,
                                    (const char *)x + chunk.shard, chunk.rows * s->hidden, comm_type_(pass),
                                    &pass->chunk[c], pass->err);
}

void column_forward_gathered(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias,
                             int64_t out, Epilogue epilogue) {
    const Shape *s = pass->shape;
    int started[OVERLAP_MOST];
    if (!s->sequence || s->chunks == 1) {
        column_forward(pass, y, aux, block_gathered(pass, GATHERED_INPUT, x), w, bias, out, epilogue);
        return;
    }
    for (int c = 0; c < s->chunks; c++) started[c] = gather_chunk_(pass, c, x);
    for (int c = 0; c < s->chunks; c++) {
        Chunk chunk = blocks_chunk_(s, c);
        RowBlocks rows = {chunk.blocks, chunk.rows, chunk.rows, s->shard_rows};
        int64_t to = chunk.first * out * s->element;
        blocks_finish_(pass, started[c], &pass->chunk[c]);
        pass->be->linear_forward_blocks(pass->be, (char *)y + to, aux == NULL ? NULL : (char *)aux + to,
                                        (const char *)pass->gathered[GATHERED_INPUT] + chunk.whole, w->weight,
                                        blocks_weight_(bias), &rows, s->hidden, out, epilogue);
    }
}

static int sum_chunk_(Pass *pass, int c, void *y, void *whole) {
    const Shape *s = pass->shape;
    Chunk chunk = blocks_chunk_(s, c);
    Comm *t = pass->tensor;
    int64_t count = chunk.rows * s->hidden;
    pass->chunk[c] = (CommRequest){0};
    return s->sequence ? t->reduce_scatter(t, (char *)y + chunk.shard, whole, count, comm_type_(pass), &pass->chunk[c],
                                           pass->err)
                       : t->all_reduce(t, whole, count, comm_type_(pass), &pass->chunk[c], pass->err);
}

static void row_forward_chunks_(Pass *pass, void *y, const void *x, const Tensor *w, const void *bias, int64_t in) {
    const Shape *s = pass->shape;
    int started[OVERLAP_MOST];
    for (int c = 0; c < s->chunks; c++) {
        Chunk chunk = blocks_chunk_(s, c);
        RowBlocks rows = {chunk.blocks, chunk.rows, s->shard_rows, chunk.rows};
        void *whole = (char *)partial_(pass, y) + chunk.whole;
        pass->be->linear_forward_blocks(pass->be, whole, NULL, (const char *)x + chunk.first * in * s->element,
                                        w->weight, bias, &rows, in, s->hidden, EPILOGUE_NONE);
        started[c] = sum_chunk_(pass, c, y, whole);
    }
    for (int c = 0; c < s->chunks; c++) blocks_finish_(pass, started[c], &pass->chunk[c]);
}

void row_forward(Pass *pass, void *y, const void *x, const Tensor *w, const Tensor *bias, int64_t in) {
    const Shape *s = pass->shape;
    // The bias belongs to the sum, so one of its terms brings it.
    const void *b = s->tensor_rank == 0 ? blocks_weight_(bias) : NULL;
    if (s->chunks > 1) {
        row_forward_chunks_(pass, y, x, w, b, in);
        return;
    }
    pass->be->linear_forward(pass->be, partial_(pass, y), NULL, x, w->weight, b, s->rows, in, s->hidden, EPILOGUE_NONE);
    sum_start_(pass, y);
    block_summed(pass);
}

void row_input(Pass *pass, void *dx, const void *aux, const void *dy, const Tensor *w, int64_t in, Epilogue epilogue) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_input(pass->be, dx, aux, dy, w->weight, s->rows, in, s->hidden, epilogue);
}

void row_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t in) {
    const Shape *s = pass->shape;
    pass->be->linear_backward_weight(pass->be, w->gradient, gradient_(bias), dy, x, s->rows, in, s->hidden);
}

void block_keep(Pass *pass, void *kept, const void *made, int64_t bytes) {
    if (pass->split) pass->be->copy(pass->be, STREAM_COMPUTE, kept, made, bytes);
}

void block_norm_forward(Pass *pass, const Model *model, const Tensor *norm, void *out, void *x) {
    if (pass->residual == NULL)
        model->norm_forward(pass, norm, out, NULL, x, NULL);
    else
        model->norm_forward(pass, norm, out, x, pass->residual, pass->delta);
    pass->residual = NULL;
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
    sum_start_(pass, x);
    block_summed(pass);
}

void embedding_block_backward(Pass *pass, const Model *model, const Tensor *tensors, const void *dx,
                              const int32_t *tokens) {
    const Shape *s = pass->shape;
    float *positions = model->learned_positions ? tensors[1].gradient : NULL;
    pass->be->embedding_backward(pass->be, tensors[0].gradient, positions, block_gathered(pass, GATHERED_GRADIENT, dx),
                                 tokens, s->rows, s->hidden, s->batch, s->vocab_first, s->vocab_count);
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

// The output matrix's gradient reads what was gathered for the logits. With overlap it runs beside the sum; without, it
// comes first, since the sum takes that buffer.
static void head_backward_(Pass *pass, const Tensor *matrix, const HeadWork *work, const void *whole) {
    const Shape *s = pass->shape;
    if (!s->overlap) column_weight(pass, work->logits, whole, matrix, NULL, s->vocab_width);
    column_input(pass, work->dnorm, work->logits, matrix, s->vocab_width);
    if (s->overlap) column_weight(pass, work->logits, whole, matrix, NULL, s->vocab_width);
    block_summed(pass);
}

void head_block(Pass *pass, const Model *model, const Tensor *tensors, const HeadWork *work, void *x, float *loss,
                const int32_t *targets, float scale) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Tensor *matrix = &tensors[model->head_matrix];
    block_norm_forward(pass, model, tensors, work->norm, x);
    const void *whole = block_gathered(pass, GATHERED_INPUT, work->norm);
    column_forward(pass, work->logits, NULL, whole, matrix, NULL, s->vocab_width, EPILOGUE_NONE);
    blocks_poll_(pass);
    be->cross_entropy_stats(be, work->stats, work->logits, targets, s->rows, s->vocab_width, s->vocab_first,
                            s->vocab_count);
    gather_stats_(pass, work);
    be->cross_entropy_gradient(be, work->logits, loss, work->gathered, s->tensor_ranks, targets, s->rows,
                               s->vocab_width, s->vocab_first, s->vocab_count, scale);
    blocks_poll_(pass);
    if (scale == 0.0f) return;
    head_backward_(pass, matrix, work, whole);
    int64_t stream = s->shard_rows * s->hidden * s->element;
    be->zero(be, work->dx, stream);
    model->norm_backward(pass, tensors, work->dx, work->dnorm, x);
    be->copy(be, STREAM_COMPUTE, x, work->dx, stream);
}
