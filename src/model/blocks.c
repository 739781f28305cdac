// The blocks of a model: products split over tensor ranks, attention, embedding and head, each with its collectives.
// All collectives of a pass except those of experts are here, so a model reads as if there were one rank.
#include "blocks.h"
#include "quantized.h"

#include <assert.h>
#include <string.h>

static CommType comm_type_(const Pass *pass) { return pass->shape->element == 2 ? COMM_BF16 : COMM_FLOAT; }

static void blocks_poll_(Pass *pass) {
    if (pass->poll != NULL) pass->poll(pass->poll_argument, true);
}

// Waits for a collective of the tensor ranks, unless it failed to start.
static void blocks_wait_(Pass *pass, CommRequest *request) {
    comm_wait_polling(pass->tensor, request, pass->poll, pass->poll_argument, pass->err);
    blocks_poll_(pass);
}

// Starts a collective of the tensor ranks. follows: see CommRequest.
static void start_(Pass *pass, CommRequest *request, CommOperation operation, void *out, const void *in, int64_t count,
                   CommType type, bool follows) {
    Comm *t = pass->tensor;
    *request = (CommRequest){.follows = follows};
    if (t->collective(t, operation, NO_ROOT, out, in, count, type, request, pass->err) != 0) request->active = false;
}

// Starts the sum over tensor ranks of `partial`. This rank's `rows` of the sum go to `out`; without sequence
// parallelism the complete sum replaces `partial`.
static void sum_rows_(Pass *pass, CommRequest *request, void *out, void *partial, int64_t rows, bool follows) {
    bool scatters = pass->shape->sequence;
    start_(pass, request, scatters ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE, scatters ? out : partial, partial,
           rows * pass->shape->hidden, comm_type_(pass), follows);
}

// Lays out the gathered rows as an operand of a FactorKind. For 8-bit kinds, *scales is the memory into which the
// scales are gathered, one rank's after another's.
static int64_t gather_layout_(const Shape *s, int kind, void *base, Factor *all, void **scales) {
    Layout layout = {base, 0};
    *all = quantized_at(layout_take(&layout, quantized_bytes(s, kind, s->rows, s->hidden)), NULL, kind, s->rows,
                        s->hidden);
    *scales = layout_take(&layout, s->tensor_ranks * factor_scale_bytes(kind, s->shard_rows, s->hidden));
    return layout.used;
}

int64_t block_gathered_bytes(const Shape *s) {
    Factor all;
    void *scales;
    int64_t plain = gather_layout_(s, FACTOR_PLAIN, NULL, &all, &scales);
    int64_t narrow = gather_layout_(s, s->narrow[GATHERED_INPUT], NULL, &all, &scales);
    return narrow > plain ? narrow : plain;
}

void block_gather(Pass *pass, Gathered what, Factor x) {
    const Shape *s = pass->shape;
    Factor all;
    void *scales;
    assert(s->sequence && !pass->gathering[what]);
    pass->gathering[what] = true;
    if (x.kind != FACTOR_PLAIN && what == GATHERED_GRADIENT) quantized_make(pass, &x, s->shard_rows, s->hidden);
    gather_layout_(s, x.kind, pass->gathered[what], &all, &scales);
    start_(pass, &pass->gather[what][0], COMM_ALL_GATHER, (void *)all.data, x.data, s->shard_rows * s->hidden,
           x.kind == FACTOR_PLAIN ? comm_type_(pass) : COMM_BYTE, false);
    int64_t bytes = factor_scale_bytes(x.kind, s->shard_rows, s->hidden);
    if (bytes > 0) start_(pass, &pass->gather[what][1], COMM_ALL_GATHER, scales, x.scales, bytes, COMM_BYTE, true);
}

Factor block_gathered(Pass *pass, Gathered what, Factor x) {
    const Shape *s = pass->shape;
    Factor all;
    void *scales;
    if (!s->sequence) {
        if (x.kind != FACTOR_PLAIN && what == GATHERED_GRADIENT) quantized_make(pass, &x, s->rows, s->hidden);
        return x;
    }
    if (!pass->gathering[what]) block_gather(pass, what, x);
    gather_layout_(s, x.kind, pass->gathered[what], &all, &scales);
    for (int i = 0; i < (x.kind == FACTOR_PLAIN ? 1 : 2); i++) blocks_wait_(pass, &pass->gather[what][i]);
    pass->gathering[what] = false;
    if (x.kind == FACTOR_PLAIN) all.scales = x.scales;
    else pass->be->join_scales(pass->be, (void *)all.scales, scales, s->tensor_ranks, s->rows, s->hidden, x.kind);
    return all;
}

// Returns the memory for this rank's part (rows, hidden) of a sum over t whose result goes to `to` (shard).
static void *partial_(const Pass *pass, void *to) { return pass->shape->sequence ? pass->partial : to; }

// Computes y = x wT + bias, in eight bits if w is quantized. aux and epilogue: see linear_forward.
static void product_(Pass *pass, void *y, void *aux, Factor x, const Tensor *w, const void *bias, int64_t in,
                     int64_t out, Epilogue epilogue) {
    int64_t rows = pass->shape->rows;
    Factor left = quantized_factor(pass, x, rows, in, FACTOR_INPUT, false, w->factor[0].kind);
    pass->be->linear_forward(pass->be, y, aux, left, w->factor[0], bias, rows, in, out, epilogue);
}

// --- the forward
//
// The next product of a forward needs the result of the collective before it, so nothing else could run during that
// collective. With shape->strips > 1 the rows are therefore cut into strips, and the collective of one strip runs
// during the product of another. For 8 rows, t = 2, sequence parallelism and 2 strips (digits are rows):
//
//     shards of the ranks      0 1 2 3 on rank 0, 4 5 6 7 on rank 1
//     gathered or summed       0 1 4 5 | 2 3 6 7     strip after strip: each collective has its data in one piece
//     in the product's other   0 1 . . 4 5 . .       strip 0 is a block of 2 rows of every rank, shard_rows apart,
//     operand                  . . 2 3 . . 6 7       so the bundle is the same for any number of strips
//
//     column_forward                                  row_forward
//     communication  gather 0  gather 1                          sum 0      sum 1
//     compute                  product 0  product 1   product 0  product 1

typedef struct RowStrip {
    int64_t first, rows, blocks; // rows [first, first + rows) of each rank's shard; blocks: ranks that hold a shard
    int64_t shard, gathered;     // byte offset of the strip in a shard; in gathered or summed rows
} RowStrip;

// Returns strip c; without sequence parallelism, the strip is one block of rows.
static RowStrip strip_(const Shape *s, int c) {
    RowStrip strip = {.first = s->shard_rows * c / s->strips, .blocks = s->sequence ? s->tensor_ranks : 1};
    strip.rows = s->shard_rows * (c + 1) / s->strips - strip.first;
    strip.shard = strip.first * s->hidden * s->element;
    strip.gathered = strip.blocks * strip.shard;
    return strip;
}

void column_forward(Pass *pass, void *y, void *aux, Factor x, const Tensor *w, const void *bias, int64_t out,
                    Epilogue epilogue) {
    const Shape *s = pass->shape;
    if (s->strips == 1 || !s->sequence) { // without sequence parallelism there is nothing to gather
        product_(pass, y, aux, block_gathered(pass, GATHERED_INPUT, x), w, bias, s->hidden, out, epilogue);
        return;
    }
    assert(x.kind == FACTOR_PLAIN);
    char *gathered = pass->gathered[GATHERED_INPUT];
    for (int c = 0; c < s->strips; c++) {
        RowStrip strip = strip_(s, c);
        const char *from = (const char *)x.data + strip.shard;
        start_(pass, &pass->strip[c], COMM_ALL_GATHER, gathered + strip.gathered, from, strip.rows * s->hidden,
               comm_type_(pass), c > 0);
    }
    for (int c = 0; c < s->strips; c++) {
        RowStrip strip = strip_(s, c);
        RowBlocks rows = {strip.blocks, strip.rows, strip.rows, s->shard_rows};
        int64_t to = strip.first * out * s->element;
        blocks_wait_(pass, &pass->strip[c]);
        pass->be->linear_forward_blocks(pass->be, (char *)y + to, aux == NULL ? NULL : (char *)aux + to,
                                        gathered + strip.gathered, w->weight, bias, &rows, s->hidden, out, epilogue);
    }
}

// Its sums follow the gather of the preceding column product: no sum was in progress when that gather started.
void row_forward(Pass *pass, void *y, Factor x, const Tensor *w, const void *bias, int64_t in) {
    const Shape *s = pass->shape;
    char *partial = partial_(pass, y);
    if (s->strips == 1) {
        product_(pass, partial, NULL, x, w, bias, in, s->hidden, EPILOGUE_NONE);
        if (s->tensor_ranks == 1) return;
        sum_rows_(pass, &pass->sum, y, partial, s->shard_rows, true);
        blocks_wait_(pass, &pass->sum);
        return;
    }
    assert(x.kind == FACTOR_PLAIN);
    for (int c = 0; c < s->strips; c++) {
        RowStrip strip = strip_(s, c);
        RowBlocks rows = {strip.blocks, strip.rows, s->shard_rows, strip.rows};
        const char *from = (const char *)x.data + strip.first * in * s->element;
        pass->be->linear_forward_blocks(pass->be, partial + strip.gathered, NULL, from, w->weight, bias, &rows, in,
                                        s->hidden, EPILOGUE_NONE);
        sum_rows_(pass, &pass->strip[c], (char *)y + strip.shard, partial + strip.gathered, strip.rows, true);
    }
    for (int c = 0; c < s->strips; c++) blocks_wait_(pass, &pass->strip[c]);
}

// --- the backward
//
// A weight's gradient is not needed before the step's end. With overlap it therefore waits in pass->later until a
// collective is in flight, and overlaps it. One branch of a layer (y = x + row(column(norm(x))), see layer.c) then does
// this with sequence parallelism:
//
//     communication                gather of   | sum of dx over t    |          | gather of dx for the next branch
//                                  norm(x)     |                     |          |
//     compute        row's input gradient, ... | row's weight        | norm's   | column's weight gradient, which
//                    column's input gradient   | gradient            | backward | reads the gathered norm(x)
//
// Without sequence parallelism nothing is gathered, and both weight gradients run during the sum. Without overlap each
// weight gradient runs at once: the column's first, because the sum of its input gradient reuses the buffer of norm(x).

void block_weight(Pass *pass, WeightGradient g) {
    Factor x = g.shard ? block_gathered(pass, GATHERED_INPUT, g.x) : g.x;
    float *dbias = g.bias == NULL ? NULL : g.bias->gradient;
    int64_t rows = pass->shape->rows;
    int kind = g.w->factor[0].kind;
    Factor left = quantized_factor(pass, g.dy, rows, g.out, FACTOR_GRADIENT, true, kind);
    Factor right = quantized_factor(pass, x, rows, g.in, FACTOR_INPUT, true, kind);
    pass->be->linear_backward_weight(pass->be, g.w->gradient, dbias, left, right, rows, g.in, g.out,
                                     !(pass->begins && g.w->written));
}

static void weight_later_(Pass *pass, WeightGradient g) {
    if (!pass->shape->overlap) {
        block_weight(pass, g);
        return;
    }
    assert(pass->later_count < (int)(sizeof pass->later / sizeof *pass->later));
    pass->later[pass->later_count++] = g;
}

void block_later(Pass *pass, int leave) {
    int done = 0;
    while (pass->later_count - done > leave) block_weight(pass, pass->later[done++]);
    pass->later_count -= done;
    memmove(pass->later, pass->later + done, (size_t)pass->later_count * sizeof *pass->later);
}

static void input_gradient_(Pass *pass, void *dx, const void *aux, Factor dy, const Tensor *w, int64_t in, int64_t out,
                            Epilogue epilogue) {
    int64_t rows = pass->shape->rows;
    Factor left = quantized_factor(pass, dy, rows, out, FACTOR_GRADIENT, false, w->factor[1].kind);
    pass->be->linear_backward_input(pass->be, dx, aux, left, w->factor[1], rows, in, out, epilogue);
}

// Computes dx (shard) = sum over t of dy w. During the sum, computes all deferred weight gradients except the last
// `leave`.
static void column_input_(Pass *pass, void *dx, Factor dy, const Tensor *w, int64_t out, int leave) {
    const Shape *s = pass->shape;
    void *partial = partial_(pass, dx);
    input_gradient_(pass, partial, NULL, dy, w, s->hidden, out, EPILOGUE_NONE);
    if (s->tensor_ranks > 1) sum_rows_(pass, &pass->sum, dx, partial, s->shard_rows, false);
    block_later(pass, leave);
    if (s->tensor_ranks > 1) blocks_wait_(pass, &pass->sum);
}

// With one scale per tensor, the input gradient and the weight gradient of a product share dy's scale in pass->scales.
// A split backward may run them at different times, so each then computes the scale itself.

void row_backward(Pass *pass, void *dx, const void *aux, Factor dy, Factor x, const Tensor *w, const Tensor *bias,
                  int64_t in, Epilogue epilogue) {
    const Shape *s = pass->shape;
    if (s->fp8 == FP8_TENSOR && !pass->split) dy.scales = pass->scales;
    if (!pass_keeps_rows(pass)) weight_later_(pass, (WeightGradient){w, bias, dy, x, in, s->hidden, .shard = false});
    input_gradient_(pass, dx, aux, dy, w, in, s->hidden, epilogue);
}

void column_backward(Pass *pass, void *dx, Factor dy, Factor x, const Tensor *w, const Tensor *bias, int64_t out) {
    const Shape *s = pass->shape;
    Factor plain = factor_plain(dy.source);
    if (s->fp8 == FP8_TENSOR && !pass->split) plain.scales = pass->scales + FACTOR_ONE_SCALE;
    if (!pass->split) weight_later_(pass, (WeightGradient){w, bias, plain, x, s->hidden, out, .shard = true});
    column_input_(pass, dx, dy.kind == FACTOR_PLAIN ? plain : dy, w, out, s->sequence && !pass->split ? 1 : 0);
}

bool pass_keeps_rows(const Pass *pass) { return pass->split && !pass->shape->pointwise; }

void block_norm(Pass *pass, const Tensor *norm, Factor out, void *sum, const void *x, const void *delta) {
    const Shape *s = pass->shape;
    pass->be->norm_forward(pass->be, out, sum, x, delta, norm[0].weight,
                           pass->model->norm == NORM_LAYER ? norm[1].weight : NULL, s->shard_rows, s->hidden,
                           s->norm_eps);
}

void block_norm_backward(Pass *pass, const Tensor *norm, void *dx, const void *dout, const void *x) {
    const Shape *s = pass->shape;
    pass->be->norm_backward(pass->be, dx, norm[0].gradient, pass->model->norm == NORM_LAYER ? norm[1].gradient : NULL,
                            dout, x, norm[0].weight, s->shard_rows, s->hidden, s->norm_eps);
}

void block_norm_first(Pass *pass, const Tensor *norm, Factor out, void *x) {
    if (pass->residual == NULL) block_norm(pass, norm, out, NULL, x, NULL);
    else block_norm(pass, norm, out, x, pass->residual, pass->delta);
    pass->residual = NULL;
}

AttentionShape pass_attention(const Pass *pass) {
    AttentionShape shape = pass->shape->attention;
    shape.places = pass->documents, shape.host_places = pass->host_documents;
    shape.first = pass->first, shape.keys = pass->keys, shape.dkeys = pass->dkeys;
    return shape;
}

// --- attention
//
// Only attention uses other context ranks' rows. Before it, the keys and values of all pieces are gathered, in the
// order of the sequence; then each piece of queries is one call of attention over a range. The backward gathers again,
// because the gathered keys of every layer and microbatch in flight would take c times the bytes of this rank's own.
// Gradients of keys and values are fp32 until they are summed over the ranks, in a fixed order, so bits depend only on
// c.
//
// Each half of a sequence has its own group. The group of the second half lists its ranks in reverse order. So the
// parts of a collective are in sequence order in both halves, and collectives work in place. The two halves are
// exchanged one after the other, because they need the same links and multiprocessors.

// Keys and values of one piece: shape, offset in qkv, and offsets of the half and of the piece in the gathered keys.
typedef struct Keys {
    int64_t rows, cols, count, column, half, own;
} Keys;

static Keys keys_of_(const Pass *pass, int i) {
    const Shape *s = pass->shape;
    Keys keys = {.rows = s->rows / s->pieces, .cols = s->qkv_cols - s->query_cols};
    keys.count = keys.rows * keys.cols;
    keys.column = i * keys.rows * s->qkv_cols + s->query_cols;
    keys.half = i * s->context_ranks * keys.count;
    keys.own = (pass->first + context_place(s, i)) * s->batch * keys.cols;
    return keys;
}

// Copies keys and values of this rank's slice from qkv to pass->keys, and gathers those of the other context ranks.
static void gather_keys_(Pass *pass, const void *qkv) {
    const Shape *s = pass->shape;
    char *all = pass->keys;
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        char *own = all + keys.own * s->element;
        pass->be->copy_columns(pass->be, own, keys.cols, (const char *)qkv + keys.column * s->element, s->qkv_cols,
                               false, keys.rows, keys.cols);
        if (s->context_ranks == 1) return;
        pass_collective(pass, pass->context[i], COMM_ALL_GATHER, all + keys.half * s->element, own, keys.count,
                        comm_type_(pass));
    }
}

// Sums pass->dkeys over the context ranks, and writes the gradients of this rank's and slice's keys and values to dqkv.
static void sum_key_gradients_(Pass *pass, void *dqkv) {
    const Shape *s = pass->shape;
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        float *own = pass->dkeys + keys.own;
        if (s->context_ranks > 1)
            pass_collective(pass, pass->context[i], COMM_REDUCE_SCATTER, own, pass->dkeys + keys.half, keys.count,
                            COMM_FLOAT);
        pass->be->copy_columns(pass->be, (char *)dqkv + keys.column * s->element, s->qkv_cols, own, keys.cols, true,
                               keys.rows, keys.cols);
    }
}

// One call of attention: all queries of the pass, or with context ranks the queries of piece i. qkv, out, saved: the
// piece's byte offsets in qkv, output and saved values (with ATTENTION_NONE, a probability for each query and key).
typedef struct AttentionCall {
    AttentionShape shape;
    int64_t qkv, out, saved;
} AttentionCall;

static AttentionCall attention_piece_(const Pass *pass, int i) {
    const Shape *s = pass->shape;
    AttentionCall piece = {.shape = pass_attention(pass)};
    AttentionShape *shape = &piece.shape;
    if (s->pieces > 1) {
        int64_t before = i * s->rows / s->pieces;
        shape->seq = s->seq / s->pieces;
        shape->first = context_place(s, 0);
        piece.saved = i * attention_saved(shape, s->element);
        shape->first = context_place(s, i);
        piece.qkv = before * s->qkv_cols * s->element;
        piece.out = before * s->query_cols * s->element;
        if (shape->places != NULL) shape->places += before, shape->host_places += before;
    }
    assert(piece.saved + attention_saved(shape, s->element) <= s->saved_bytes);
    return piece;
}

void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv) {
    if (pass->keys != NULL) gather_keys_(pass, qkv);
    blocks_poll_(pass);
    for (int i = 0; i < pass->shape->pieces; i++) {
        AttentionCall p = attention_piece_(pass, i);
        pass->be->attention_forward(pass->be, (char *)out + p.out, (char *)saved + p.saved, pass->scratch,
                                    (const char *)qkv + p.qkv, &p.shape);
    }
    blocks_poll_(pass);
}

void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv) {
    const Shape *s = pass->shape;
    int64_t keys = (s->qkv_cols - s->query_cols) * s->rows * s->context_ranks;
    if (s->pieces > 1) gather_keys_(pass, qkv);
    if (s->pieces > 1) pass->be->zero(pass->be, pass->dkeys, keys * (int64_t)sizeof(float));
    blocks_poll_(pass);
    for (int i = 0; i < s->pieces; i++) {
        AttentionCall p = attention_piece_(pass, i);
        pass->be->attention_backward(pass->be, (char *)dqkv + p.qkv, pass->scratch, (const char *)dout + p.out,
                                     (const char *)out + p.out, (const char *)saved + p.saved,
                                     (const char *)qkv + p.qkv, &p.shape);
    }
    blocks_poll_(pass);
    if (pass->keys != NULL) sum_key_gradients_(pass, dqkv);
}

void embedding_block_forward(Pass *pass, const Tensor *tensors, void *x, const int32_t *tokens) {
    const Shape *s = pass->shape;
    const char *positions = pass->model->learned_positions && s->tensor_rank == 0 ? tensors[1].weight : NULL;
    if (positions != NULL && pass->positions == NULL) positions += pass->first * s->hidden * s->element;
    void *partial = partial_(pass, x);
    pass->be->embedding_forward(pass->be, partial, tokens, pass->positions, tensors[0].weight, positions, s->rows,
                                s->hidden, s->batch, s->vocab_first, s->vocab_count);
    if (s->tensor_ranks == 1) return;
    sum_rows_(pass, &pass->sum, x, partial, s->shard_rows, false);
    blocks_wait_(pass, &pass->sum);
}

void embedding_block_backward(Pass *pass, const Tensor *tensors, const void *dx, const int32_t *tokens) {
    const Shape *s = pass->shape;
    float *positions = pass->model->learned_positions ? tensors[1].gradient : NULL;
    int64_t before = pass->positions == NULL ? pass->first : 0; // the rows' positions count from here
    if (positions != NULL) positions += before * s->hidden;
    pass->be->embedding_backward(pass->be, tensors[0].gradient, positions,
                                 positions == NULL ? 0 : tensors[1].rows - before,
                                 block_gathered(pass, GATHERED_GRADIENT, factor_plain(dx)).data, tokens,
                                 pass->positions, s->rows, s->hidden, s->batch, s->vocab_first, s->vocab_count);
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

void head_block(Pass *pass, const Tensor *tensors, const HeadWork *work, void *x, float *loss, const int32_t *targets,
                float scale) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Tensor *matrix = &tensors[pass->model->head_matrix];
    block_norm_first(pass, tensors, factor_plain(work->norm), x);
    Factor whole = block_gathered(pass, GATHERED_INPUT, factor_plain(work->norm)), logits = factor_plain(work->logits);
    product_(pass, work->logits, NULL, whole, matrix, NULL, s->hidden, s->vocab_width, EPILOGUE_NONE);
    blocks_poll_(pass);
    be->cross_entropy_stats(be, work->stats, work->logits, targets, s->rows, s->vocab_width, s->vocab_first,
                            s->vocab_count);
    if (s->tensor_ranks > 1)
        pass_collective(pass, pass->tensor, COMM_ALL_GATHER, work->gathered, work->stats, s->rows * 3, COMM_FLOAT);
    be->cross_entropy_gradient(be, work->logits, loss, work->gathered, s->tensor_ranks, targets, s->rows,
                               s->vocab_width, s->vocab_first, s->vocab_count, scale, s->z_loss);
    blocks_poll_(pass);
    if (scale == 0.0f) return;
    // The matrix's gradient reads the input that was gathered for the logits.
    weight_later_(pass, (WeightGradient){matrix, NULL, logits, whole, s->hidden, s->vocab_width, false});
    column_input_(pass, work->dnorm, logits, matrix, s->vocab_width, 0);
    int64_t stream = s->shard_rows * s->hidden * s->element;
    be->zero(be, work->dx, stream);
    block_norm_backward(pass, tensors, work->dx, work->dnorm, x);
    be->copy(be, STREAM_COMPUTE, x, work->dx, stream);
}
