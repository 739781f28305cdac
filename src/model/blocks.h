// Common to all models: linear layers split over tensor ranks (Shoeybi et al. 2019), with or without sequence
// parallelism (Korthikanti et al. 2022), the embedding, and the head with its loss. A buffer marked "shard"
// has shard_rows rows.
#pragma once

#include "model.h"

// Returns the bytes of a buffer that fits gathered rows, plain or in eight bits with the scales of all ranks.
int64_t block_gathered_bytes(const Shape *shape);

// Returns all rows (rows, hidden) of x (shard); without sequence parallelism, x has all rows and is returned. The next
// call for the same `what` may overwrite gathered rows. Without shape->overlap, any gather and any sum over t may
// overwrite them. A gradient in eight bits is first quantized from its source.
Factor block_gathered(Pass *pass, Gathered what, Factor x);
// With sequence parallelism and shape->overlap, starts the gather of x; it runs during compute until block_gathered
// waits for it.
void block_gather(Pass *pass, Gathered what, Factor x);

// Compute linear_forward, in eight bits if w is quantized. column: x (shard) is gathered for w (out, hidden), whose
// rows are split over t. row: the product with w (hidden, in), whose columns are split over t, is summed into y
// (shard). With shape->strips > 1, each collective is cut into strips, which run during products of other strips. aux
// and epilogue: see operations.h.
void column_forward(Pass *pass, void *y, void *aux, Factor x, const Tensor *w, const void *bias, int64_t out,
                    Epilogue epilogue);
void row_forward(Pass *pass, void *y, Factor x, const Tensor *w, const void *bias, int64_t in);

// Computes the backward of a product with w (hidden, in), whose columns are split: dx (rows, in) = dy w [* gelu'(aux)],
// dw += dyT x, dbias += column sums of dy. dy (rows, hidden): gathered. With pass_keeps_rows, leaves the gradients of
// the weights to the caller.
void row_backward(Pass *pass, void *dx, const void *aux, Factor dy, Factor x, const Tensor *w, const Tensor *bias,
                  int64_t in, Epilogue epilogue);
// Computes the backward of a product with w (out, hidden), split by rows: dx (shard) = sum over t of dy w. dw and
// dbias are computed as in row_backward, but from dy.source. x: this rank's shard. With pass->split, leaves the
// gradients of the weights to the caller.
void column_backward(Pass *pass, void *dx, Factor dy, Factor x, const Tensor *w, const Tensor *bias, int64_t out);
// Computes the weight gradients that row_backward and column_backward deferred (shape->overlap), oldest first, until
// `leave` remain. Call it while a gather is in flight, before dy or x of the latest call is overwritten.
void block_later(Pass *pass, int leave);
// Computes only the gradients of the weights, immediately.
void block_weight(Pass *pass, WeightGradient gradient);

// Returns whether a split backward also defers the weight gradients of row_backward, and keeps their operands.
bool pass_keeps_rows(const Pass *pass);
// Sets sum = x + delta and out = norm(sum), all shards. If delta is NULL, sets out = norm(x) and does not write `sum`.
// The backward adds to dx. norm: the norm's weight; LayerNorm's bias is the next tensor.
void block_norm(Pass *pass, const Tensor *norm, Factor out, void *sum, const void *x, const void *delta);
void block_norm_backward(Pass *pass, const Tensor *norm, void *dx, const void *dout, const void *x);
// Sets out = norm(x), both shards. If the previous layer left its output to this norm (LAYER_LEAVES), the same
// operation first writes that output to x.
void block_norm_first(Pass *pass, const Tensor *norm, Factor out, void *x);

// Returns the attention shape with this pass's documents and slice.
AttentionShape pass_attention(const Pass *pass);
// Computes attention over qkv (rows, qkv_cols), already rotated if the model has rope. `saved`: see operations.h.
void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv);
void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv);

// Sets x (shard) from tokens. tensors: the embedding's (token table, then positions if the model has them).
void embedding_block_forward(Pass *pass, const Tensor *tensors, void *x, const int32_t *tokens);
void embedding_block_backward(Pass *pass, const Tensor *tensors, const void *dx, const int32_t *tokens);

// Buffers of the head: workspace of the last stage, never part of a bundle.
typedef struct HeadWork {
    void *norm;      // (shard_rows, hidden)
    void *dnorm;     // (shard_rows, hidden)
    void *dx;        // (shard_rows, hidden)
    void *logits;    // (rows, vocab_width)
    float *stats;    // (rows, 3)
    float *gathered; // (t, rows, 3): stats of all tensor ranks; equal to `stats` if t is 1
} HeadWork;
void head_work_layout(HeadWork *work, Layout *layout, const Shape *shape);

// Computes the final norm, the logits and the loss (rows). If scale is not 0, also computes their complete backward and
// replaces x (shard) by the gradient of x; the loss's gradient is scaled by `scale`. If scale is 0, x then holds the
// output of the layers.
void head_block(Pass *pass, const Tensor *tensors, const HeadWork *work, void *x, float *loss, const int32_t *targets,
                float scale);
