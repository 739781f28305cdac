// What the models have in common: linear layers split over tensor ranks (Shoeybi et al. 2019), with or without sequence
// parallelism (Korthikanti et al. 2022), the embedding, and the head with its loss. "shard" buffers have shard_rows
// rows, "full" ones all rows.
#ifndef BLOCKS_H
#define BLOCKS_H

#include "model.h"

// Returns the whole (rows, hidden) of what the tensor ranks hold a shard of: x itself without sequence parallelism. The
// next call for the same `what` may overwrite it; without shape->overlap, so may any gather and column_input.
const void *block_gathered(Pass *pass, Gathered what, const void *x);
// With shape->overlap, starts that gather; it runs beside compute until block_gathered waits for it. Does nothing
// without overlap or sequence parallelism, or if a gather for the same `what` is in progress.
void block_gather(Pass *pass, Gathered what, const void *x);

// Computes a product whose output is split: w (out, hidden) cut by rows over t. x, dy (rows, ...): whole, see
// block_gathered. y (rows, out) = x w^T + bias. aux, epilogue: as linear_forward.
void column_forward(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias, int64_t out,
                    Epilogue epilogue);
// Does the same from this rank's x (shard); with shape->chunks, each chunk is gathered beside the product of the one
// before.
void column_forward_gathered(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias,
                             int64_t out, Epilogue epilogue);
// Starts dx (shard) = sum over t of dy w, which is complete once block_summed has been called. `out` columns of dy.
void column_input(Pass *pass, void *dx, const void *dy, const Tensor *w, int64_t out);
void block_summed(Pass *pass);
// dw, dbias +=
void column_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t out);

// Computes a product whose input is split: w (hidden, in) cut by columns over t. dy (rows, hidden): whole. y (shard) =
// sum over t of x w^T, plus bias; x (rows, in). With shape->chunks, each chunk is summed beside the product of the
// next.
void row_forward(Pass *pass, void *y, const void *x, const Tensor *w, const Tensor *bias, int64_t in);
// Sets dx (rows, in) = dy w [* gelu'(aux)].
void row_input(Pass *pass, void *dx, const void *aux, const void *dy, const Tensor *w, int64_t in, Epilogue epilogue);
// dw, dbias +=
void row_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t in);

// If pass->split is set, copies `made` to `kept`, a part of the bundle that the backward does not read again.
void block_keep(Pass *pass, void *kept, const void *made, int64_t bytes);

// Sets out = norm(x), both shards. If the layer before has left its output (LAYER_LEAVES), the same operation first
// sets x to it.
void block_norm_forward(Pass *pass, const Model *model, const Tensor *norm, void *out, void *x);

// Computes attention over qkv (rows, qkv_cols), already rotated if the model has rope. `saved` as in backend.h.
void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv);
void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv);

// Sets x (shard) from tokens. tensors: the embedding's (token table, then positions if the model has them).
void embedding_block_forward(Pass *pass, const Model *model, const Tensor *tensors, void *x, const int32_t *tokens);
void embedding_block_backward(Pass *pass, const Model *model, const Tensor *tensors, const void *dx,
                              const int32_t *tokens);

// Buffers of the head: workspace of the last stage, never part of a bundle.
typedef struct HeadWork {
    void *norm;   // (shard_rows, hidden)
    void *dnorm;  // (shard_rows, hidden)
    void *dx;     // (shard_rows, hidden)
    void *logits; // (rows, vocab_width)
    float *stats; // (rows, 3), followed by the gathered (t, rows, 3) if t > 1
    float *gathered;
} HeadWork;
void head_work_layout(HeadWork *work, Layout *layout, const Shape *shape);

// Computes final norm, logits, loss (rows) and, if scale is not 0, their whole backward at once: x (shard) is replaced
// by its own gradient, loss gradients scaled by `scale`. With scale 0 x holds the output of the layers.
void head_block(Pass *pass, const Model *model, const Tensor *tensors, const HeadWork *work, void *x, float *loss,
                const int32_t *targets, float scale);

#endif
