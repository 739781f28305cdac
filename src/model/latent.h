// Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): queries, keys and values are products of narrow
// latent rows. H heads of this tensor rank, whose queries and keys have n + r dimensions, of which r are rotated, and
// whose values have v.
//
//     a       = norm1 [A_q | A_kv]T           (q_lora + kv_lora + r)    the same on every tensor rank
//     q       = norm(a_q) B_qT                H (n + r)
//     kv      = norm(a_kv) B_kvT              H (n + v)
//     head    : query [r of q, rotated | n of q], key [last r of a, rotated | n of kv], value v of kv
//
// All heads share the rotated part of the key. Attention reads heads of equal width, so values are zero-padded from v
// to n + r dimensions. Except in a GPU's flash, this multiplies the cost of products with values by (n + r) / v. The
// bundle keeps `a`; the backward recomputes queries, keys and values from it.
#pragma once

#include "model.h"

// Temporaries; D: n + r, rows of the microbatch. [0]: of the queries, [1]: of keys and values.
typedef struct LatentWork {
    void *latent[2], *norm[2]; // (rows, q_lora), (rows, kv_lora): latent rows and their norms
    void *dlatent[2], *dnorm[2];
    void *shared;                  // (rows, r): the last part of a, then its gradient
    void *product[2];              // (rows, H D), (rows, H (n + v)): q and kv, then their gradients
    void *qkv, *dqkv, *out, *dout; // attention's inputs and outputs: (rows, 3 H D) twice, (rows, H D) twice
} LatentWork;

void latent_work_layout(LatentWork *work, Layout *layout, const Shape *shape);

// Sets out (rows, H v) to attention's output for a (rows, q_lora + kv_lora + r). t: the layer's tensors by role.
void latent_forward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *out, void *saved, const void *a);
// Sets da to the gradient of a, and adds to the gradients of the norms and of the products of the latent rows.
void latent_backward(Pass *pass, const Tensor *const *t, const LatentWork *work, void *da, const void *dout,
                     const void *out, const void *saved, const void *a);
