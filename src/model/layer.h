// One transformer layer, common to all models: x2 = x + attention(norm(x)), y = x2 + mlp(norm(x2)). The
// differences between models are in Model: the tensors, the norm, the operations on q and k, and the activation.
#pragma once

#include "experts.h"
#include "latent.h"
#include "model.h"

// The layer's part of a bundle: everything that its backward needs from its forward. In 16 bits these are
// (12 h + 4 kv + 6 f) * s * b / t bytes with SwiGLU (kv = kv_heads * head dimension) and 32 h * s * b / t with GELU and
// f = 4h (Korthikanti et al. 2022, without dropout's masks), plus the attention's saved values. With shape->pointwise,
// the backward computes norm1, norm2 and act again, in temporaries. The bundle then has (8 h + 4 kv + 4 f) * s * b / t
// or 20 h * s * b / t bytes. With shape->narrow, norm1, norm2 and act take half the bytes, plus their scales.
typedef struct LayerBundle {
    void *x;         // (shard_rows, h)       the layer's input
    void *norm1;     // (shard_rows, h)
    void *qkv;       // (rows, (q + 2 kv)/t)  q and k after norm and rotation; with latent attention its rows
    void *kept;      // (rows, (q + kv)/t)    q and k before their norm, for its backward; empty without model.qk_norm
    void *saved;     //                       saved by attention, see operations.h
    void *attention; // (rows, q/t)
    void *x2;        // (shard_rows, h)       the residual stream between attention and MLP
    void *norm2;     // (shard_rows, h)
    void *mlp;       // (rows, mlp_cols)      gate and up, or the activation's input
    void *act;       // (rows, f/t)           the activation's output
    ExpertsBundle experts; // replaces `mlp` and `act` in a layer of experts
    char *scales; // scales of both norms' and the attention's outputs, one each; empty without train.fp8 tensor
} LayerBundle;

// Temporaries of one layer. The attention's gradients reuse the MLP's memory: they are never alive together.
typedef struct LayerWork {
    void *delta;      // (shard_rows, h)  a block's addition to the residual stream; the gradient of a norm's output
    void *dmlp;       // (rows, mlp_cols); also a norm's or activation's bf16 output before quantization
    void *dact;       // (rows, f/t)      `dmlp` if the MLP has one product before the activation
    void *dqkv;       // (rows, (q + 2 kv)/t)
    void *dattention; // (rows, q/t)
    void *keys;       // (c rows, 2 kv/t)      with context ranks: all keys and values of the sequences
    float *dkeys;     // (c rows, 2 kv/t)      gradients of `keys`
    void *norm, *act; // (shard_rows, h), (rows, f/t): shape->pointwise: replace norm1, norm2 and act of the bundle
    LatentWork latent;
    ExpertsWork experts;
} LayerWork;

// Bind the buffers to memory at `base` and return the bytes needed; base NULL: only count.
int64_t layer_bundle_layout(LayerBundle *bundle, const void *base, const Shape *shape);
int64_t layer_work_layout(LayerWork *work, void *base, const Shape *shape);

// What layer_forward does with its output y (shard_rows, hidden). LAYER_WRITES: writes it. LAYER_LEAVES: leaves the
// last addition to the norm that reads y next (block_norm_first). LAYER_NO_OUTPUT: computes only the bundle, which is
// everything that a backward needs.
typedef enum LayerOutput { LAYER_WRITES, LAYER_LEAVES, LAYER_NO_OUTPUT } LayerOutput;

// Runs a layer. tensors: the layer's, in table order. The input is in the bundle; after a layer with
// LAYER_LEAVES, this layer first writes the input there. Only LAYER_WRITES uses y.
void layer_forward(Pass *pass, const Tensor *tensors, void *bundle, void *y, LayerOutput output);
// Runs a layer's backward. dx (shard_rows, hidden): gradient of y on entry, of the input on return. Adds to the
// tensors' gradients. With pass->split it leaves the gradients of matrices and their biases to layer_weights, with
// shape->pointwise only those of QKV and UP. onward: dx is gathered next, so the gather may start here.
void layer_backward(Pass *pass, const Tensor *tensors, void *bundle, void *dx, bool onward);
// Adds the weight gradients that a split backward deferred. dy (shard_rows, hidden): the gradient of y that
// layer_backward received in dx. next: dy of the following call, or NULL.
void layer_weights(Pass *pass, const Tensor *tensors, const void *bundle, const void *dy, const void *next);
