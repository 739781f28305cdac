// What the models have in common: linear layers split over tensor ranks (Shoeybi et al. 2019), with or without sequence parallelism
// (Korthikanti et al. 2022), the embedding, and the head with its loss. "shard" buffers have shard_rows rows, "full" ones all rows.
#ifndef BLOCKS_H
#define BLOCKS_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the backward of a layer needs of its forward, and nothing else: the layer's part of a bundle. In 16 bit that is
// (12 h + 4 kv + 6 f) * s * b / t bytes with SwiGLU (kv = kv_heads * head dimension) and 32 h * s * b / t with GELU and f = 4h
// (Korthikanti et al. 2022, without dropout's masks), plus what the attention saves.
typedef struct LayerBundle {
    void *x;         // (shard_rows, h)        the layer's input
    void *norm1;     // (shard_rows, h)
    void *qkv;       // (rows, (h + 2 kv)/t)   q and k already rotated where the model does
    void *saved;     //                        the attention's, see backend.h
    void *attention; // (rows, h/t)
    void *x2;        // (shard_rows, h)        the residual stream between attention and MLP
    void *norm2;     // (shard_rows, h)
    void *mlp;       // (rows, mlp_cols)       gate and up, or what goes into the activation
    void *act;       // (rows, f/t)            behind the activation
} LayerBundle;

// Temporaries of one layer. The attention's gradients reuse the MLP's place: they are never alive together.
typedef struct LayerWork {
    void *
        delta; // (shard_rows, h)       what a block adds to the residual stream; in the backward the gradient of a norm's output
    void *dmlp;       // (rows, mlp_cols)
    void *dact;       // (rows, f/t)           only where the activation has a backward of its own (mlp_products 2)
    void *dqkv;       // (rows, (h + 2 kv)/t)
    void *dattention; // (rows, h/t)
} LayerWork;

// Bind to memory at base and return the bytes it takes; with NULL for both they only count.
int64_t layer_bundle_layout(LayerBundle *bundle, const void *base, const Shape *shape);
int64_t layer_work_layout(LayerWork *work, void *base, const Shape *shape);

// y (rows, out) = x w^T + bias, w (out, in) cut by rows over t. x is a shard and is gathered first. aux, epilogue: as linear_forward.
void column_forward(Pass *pass, void *y, void *aux, const void *x, const Tensor *w, const Tensor *bias, int64_t out,
                    Epilogue epilogue);
// dx (shard) = sum over t of dy w; dw, dbias += . `out` columns of dy.
void column_backward(Pass *pass, void *dx, const void *dy, const void *x, const Tensor *w, const Tensor *bias,
                     int64_t out);

// y (shard) = sum over t of x w^T, plus bias; x (rows, in), w (hidden, in) cut by columns over t.
void row_forward(Pass *pass, void *y, const void *x, const Tensor *w, const Tensor *bias, int64_t in);
// dx (rows, in) = dy w [* gelu'(aux)]; dw, dbias += ; dy is a shard and is gathered first.
void row_backward(Pass *pass, void *dx, const void *aux, const void *dy, const void *x, const Tensor *w,
                  const Tensor *bias, int64_t in, Epilogue epilogue);

// Attention over qkv (rows, qkv_cols), which rope has already turned where the model has it. `saved` as backend.h says.
void attention_block_forward(Pass *pass, void *out, void *saved, const void *qkv);
void attention_block_backward(Pass *pass, void *dqkv, const void *dout, const void *out, const void *saved,
                              const void *qkv);

// x (shard) from tokens. tensors: the embedding's (token table, then positions where the model has them).
void embedding_block_forward(Pass *pass, const Model *model, const Tensor *tensors, void *x, const int32_t *tokens);
void embedding_block_backward(Pass *pass, const Model *model, const Tensor *tensors, const void *dx,
                              const int32_t *tokens);

// Buffers of the head: workspace of the last stage, never part of a bundle.
typedef struct HeadWork {
    void *norm;   // (shard_rows, hidden)
    void *dnorm;  // (shard_rows, hidden)
    void *dx;     // (shard_rows, hidden)
    void *logits; // (rows, vocab_width)
    float *stats; // (rows, 3), and behind it the gathered (t, rows, 3) where t > 1
    float *gathered;
} HeadWork;
void head_work_layout(HeadWork *work, Layout *layout, const Shape *shape);

// Final norm, logits, loss (rows) and, with scale not 0, the whole backward of it at once: x (shard) becomes its own gradient,
// loss gradients scaled by `scale`. With scale 0 x is left alone.
void head_block(Pass *pass, const Model *model, const Tensor *tensors, const HeadWork *work, void *x, float *loss,
                const int32_t *targets, float scale);

#ifdef __cplusplus
}
#endif

#endif
