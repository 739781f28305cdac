// What the models have in common: linear layers split over tensor ranks (Shoeybi et al. 2019), with or without sequence
// parallelism (Korthikanti et al. 2022), the embedding, and the head with its loss. "shard" buffers have shard_rows
// rows, "full" ones all rows.
#ifndef BLOCKS_H
#define BLOCKS_H

#include "model.h"

// y (rows, out) = x w^T + bias, w (out, in) cut by rows over t. x is a shard and is gathered first. aux, epilogue: as
// linear_forward.
void column_forward(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias, int64_t out,
                    Epilogue epilogue);
// dx (shard) = sum over t of dy w; dw, dbias += . `out` columns of dy.
void column_backward(Pass *pass, void *dx, const void *dy, const void *x, const Tensor *w, const Tensor *bias,
                     int64_t out);
// Adds to dw and dbias what column_backward leaves out if pass->split is set.
void column_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t out);

// y (shard) = sum over t of x w^T, plus bias; x (rows, in), w (hidden, in) cut by columns over t.
void row_forward(Pass *pass, void *y, const void *x, const Tensor *w, const Tensor *bias, int64_t in);
// dx (rows, in) = dy w [* gelu'(aux)]; dw, dbias += ; dy is a shard and is gathered first.
void row_backward(Pass *pass, void *dx, const void *aux, const void *dy, const void *x, const Tensor *w,
                  const Tensor *bias, int64_t in, Epilogue epilogue);
// Adds to dw and dbias what row_backward leaves out if pass->split is set. With sequence parallelism each of the two
// gathers dy.
void row_weight(Pass *pass, const void *dy, const void *x, const Tensor *w, const Tensor *bias, int64_t in);

// If pass->split is set, copies `made` to `kept`, a part of the bundle that the backward does not read again.
void block_keep(Pass *pass, void *kept, const void *made, int64_t bytes);

// Attention over qkv (rows, qkv_cols), already rotated if the model has rope. `saved` as in backend.h.
void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv);
void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv);

// x (shard) from tokens. tensors: the embedding's (token table, then positions if the model has them).
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

// Final norm, logits, loss (rows) and, if scale is not 0, their whole backward at once: x (shard) is replaced by its
// own gradient, loss gradients scaled by `scale`. With scale 0 x does not change.
void head_block(Pass *pass, const Model *model, const Tensor *tensors, const HeadWork *work, void *x, float *loss,
                const int32_t *targets, float scale);

#endif
