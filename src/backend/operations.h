// The operations of a device, one entry each: OPERATION(result, name, parameters that follow the Backend *);
//
// Files include this list with an OPERATION of their own: backend.h for the members of Backend, cpu.h and cuda.h for
// the prototypes of cpu_NAME and cuda_NAME, backend_cpu.c and backend_cuda.cpp for the table. For example
// OPERATION(void, rope, ...) is `void (*rope)(Backend *, ...)`, `void cpu_rope(Backend *, ...)` and `b->rope =
// cpu_rope`. So a backend that lacks an operation does not link.
//
// COST(...) gives an operation's cost in the terms of device/count.c, which counts operations instead of computing
// them: PASS(bytes) a kernel that moves bytes in memory, SUMMED and NORM_SUMMED one that also sums over rows, PRODUCT(
// operand, m, n, k) a matrix product, PRODUCT_ADDED one that adds to fp32, EXPERTS(k, n) and EXPERTS_ADDED grouped
// products, ATTENTION(backward), QUANTIZE(to, from, numbers), OPTIMIZE(bytes, more for a second moment) per element of
// all tensors. ROUTED fills in the counts of a balanced routing. WRITING and GELU are bytes per number, since eight
// bits take fewer or need passes. An entry without a COST does not compile.
//
// LIBRARY_OPERATION marks matrix products and attention, which a GPU runs with cuBLASLt and cuDNN. It defaults to
// OPERATION. The conventions are in backend.h.
#ifndef LIBRARY_OPERATION
#define LIBRARY_OPERATION OPERATION
#endif
#ifndef COST
#define COST(...) ;
#endif

// --- precision: fp32 to the run's precision and back (a plain copy where the run is fp32)
OPERATION(void, from_float, void *to, const float *from, int64_t count)
COST(PASS((4 + be->element) * count))
OPERATION(void, to_float, float *to, const void *from, int64_t count)
COST(PASS((4 + be->element) * count))

// --- columns of a matrix: to (rows, cols) = from, with row strides to_cols and from_cols in elements. wide: from is
// fp32 and is rounded to the run's precision.
OPERATION(void, copy_columns, void *to, int64_t to_cols, const void *from, int64_t from_cols, bool wide, int64_t rows,
          int64_t cols)
COST(PASS((be->element + (wide ? 4 : be->element)) * rows * cols))

// --- matrix products. y (rows, out), x (rows, in), w (out, in), bias (out) or NULL. Both operands are plain or both
// are quantized. The product sums along the rows of a quantized operand, so the caller passes dyT, xT or wT where
// noted.
// y = x wT + bias. With EPILOGUE_GELU: aux (rows, out) = x wT + bias, y = gelu(aux) (tanh form).
LIBRARY_OPERATION(void, linear_forward, void *y, void *aux, Factor x, Factor w, const void *bias, int64_t rows,
                  int64_t in, int64_t out, Epilogue epilogue)
COST(PRODUCT(x, rows, out, in); PASS(GELU(epilogue, x, bias == NULL ? 2 : 4) * rows * out))
// dx = dy w (quantized: wT is passed for w). With EPILOGUE_GELU dx is multiplied by gelu'(aux), aux (rows, in).
LIBRARY_OPERATION(void, linear_backward_input, void *dx, const void *aux, Factor dy, Factor w, int64_t rows, int64_t in,
                  int64_t out, Epilogue epilogue)
COST(PRODUCT(dy, rows, in, out); PASS(GELU(epilogue, dy, 3) * rows * in))
// dw += dyT x (quantized: dyT and xT are passed), or without `adds` dw = dyT x, dw not being read. dbias += column sums
// of dy.source; dbias may be NULL (no bias).
LIBRARY_OPERATION(void, linear_backward_weight, float *dw, float *dbias, Factor dy, Factor x, int64_t rows, int64_t in,
                  int64_t out, bool adds)
COST(PRODUCT_ADDED(dy, out, in, rows, adds); if (dbias != NULL) SUMMED(rows * out * be->element, rows, out, 2048))
// Quantizes x (rows, cols), or its transpose, to an operand of to's kind: 8-bit numbers, row-major, and scales
// (factor.h). x is bf16, or already quantized with scales along its rows; its values are then read as bf16. If a value
// is not finite, the scale that it shares becomes NaN, and so does every result that uses the scale. If a plain x has
// scales, this is the second call for the matrix: x.scales equals to.scales and holds the first call's single scale.
OPERATION(void, quantize, Factor to, Factor x, int64_t rows, int64_t cols, bool transposed)
COST(QUANTIZE(to, x, rows *cols))
// Copies the scales of `ranks` operands (rows / ranks, cols), gathered one after another, into the layout of one
// operand (rows, cols). Only for kinds with scales along rows.
OPERATION(void, join_scales, void *scales, const void *gathered, int ranks, int64_t rows, int64_t cols, int kind)
COST(PASS(2 * factor_scale_bytes(kind, rows, cols)))

// --- experts (RouteShape in backend.h; E: experts, k: chosen). A copy of a row is numbered row * k + j for its j-th
// expert. Results of a row never depend on other rows.
// logits (rows, E) fp32 = x wT; x (rows, hidden), w (E, hidden).
LIBRARY_OPERATION(void, router_forward, float *logits, const void *x, const void *w, int64_t rows, int64_t hidden,
                  int64_t experts)
COST(PRODUCT(factor_plain(x), rows, experts, hidden))
// chosen (rows, k): the experts of each row, ascending; weights (rows, k). bias (E) is added to the scores that choose,
// or NULL. Of equal scores the lower index wins. If a logit is NaN, the row chooses 0 .. k-1 with weights NaN.
OPERATION(void, route_forward, int32_t *chosen, float *weights, const float *logits, const float *bias, int64_t rows,
          const RouteShape *shape)
COST(PASS(4 * rows * (shape->experts + 2 * shape->chosen)))
// counts (parts, E), in host memory at return: copies for each expert in rows [rows*i/parts, rows*(i+1)/parts).
OPERATION(void, route_counts, int64_t *counts, int64_t parts, const int32_t *chosen, int64_t rows,
          const RouteShape *shape)
COST(PASS(8 * shape->experts); PASS(4 * rows * shape->chosen); ROUTED(counts, parts))
// place (rows, k): position of each copy in the order by expert, then row.
OPERATION(void, route_places, int32_t *place, const int32_t *chosen, int64_t rows, const RouteShape *shape)
COST(PASS(4 * rows * shape->chosen); PASS(8 * shape->experts); PASS(8 * rows * shape->chosen))
// dlogits (rows, E) in the run's precision. dweights (rows, k). share (E) or NULL: gradient of the balance loss with
// respect to each score; with sigmoid, to each score divided by its row's sum. z: adds the gradient of z *
// logsumexp(logits)^2.
OPERATION(void, route_backward, void *dlogits, const float *dweights, const int32_t *chosen, const float *logits,
          const float *share, double z, int64_t rows, const RouteShape *shape)
COST(PASS(rows *((4 + be->element) * shape->experts + 8 * shape->chosen)))
// sum, in host memory at return: over all rows and experts, share (E) times the score; with sigmoid, the score divided
// by the sum of its row's.
OPERATION(void, route_balance, double *sum, const float *logits, const float *share, int64_t rows,
          const RouteShape *shape)
COST(PASS(4 * rows * shape->experts))
// bias[i] += rate * sign(mean - counts[i]): experts with fewer copies than `mean` are chosen more often (Wang et al.
// 2024, arXiv 2408.15664). Sets counts to 0.
OPERATION(void, route_bias, float *bias, float *counts, int64_t count, double mean, double rate)
COST(PASS(16 * count))
// to[place[i]] = from[i / k] for all rows * k copies. bytes: size of a row, a multiple of 2. With k = 1 this is a
// permutation.
OPERATION(void, rows_scatter, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k, int64_t bytes)
COST(PASS(rows *((1 + k) * bytes + 4 * k)))
// to[i] = from[place[i]], i < count; bytes as above.
OPERATION(void, rows_gather, void *to, const void *from, const int32_t *place, int64_t count, int64_t bytes)
COST(PASS(count *(2 * bytes + 4)))
// to[r] = sum over j < k, in this order, of from[place[r*k + j]], in fp32 and rounded once; cols elements.
OPERATION(void, rows_combine, void *to, const void *from, const int32_t *place, int64_t rows, int64_t k, int64_t cols)
COST(PASS(rows *(be->element *(1 + k) * cols + 4 * k)))
// Grouped products: rows [first[n], first[n+1]) use expert n's weights w_n (out, in), at w + n * stride elements. first
// (experts + 1) is in host memory; first[0] is 0.
// y (rows, out) = x w_nT.
LIBRARY_OPERATION(void, experts_forward, void *y, const void *x, const void *w, int64_t stride, const int64_t *first,
                  int64_t experts, int64_t in, int64_t out)
COST(EXPERTS(in, out))
// dx (rows, in) = dy w_n.
LIBRARY_OPERATION(void, experts_backward_input, void *dx, const void *dy, const void *w, int64_t stride,
                  const int64_t *first, int64_t experts, int64_t in, int64_t out)
COST(EXPERTS(out, in))
// dw_n += dy_nT x_n, summed over the rows in their order. An expert without rows adds nothing.
LIBRARY_OPERATION(void, experts_backward_weight, float *dw, int64_t stride, const void *dy, const void *x,
                  const int64_t *first, int64_t experts, int64_t in, int64_t out)
COST(EXPERTS_ADDED(in, out))

// --- norms over the last dimension: LayerNorm, or RMSNorm where b, or db, is NULL.
// Forward: sum = x + delta and out = norm(sum) * w (+ b); with delta NULL nothing is added and sum is not written (it
// may be NULL). Statistics are not kept: the backward recomputes them from its input.
// out is plain, or has scales along its rows. A quantized out holds the result rounded to the run's precision and then
// quantized; out.source is workspace of that precision.
// Backward: dx += gradient of the norm at x (x: the norm's input), dw +=, db +=.
OPERATION(void, norm_forward, Factor out, void *sum, const void *x, const void *delta, const void *w, const void *b,
          int64_t rows, int64_t cols, double eps)
COST(PASS(((double)(be->element * (delta == NULL ? 1 : 3)) + WRITING(out)) * (double)(rows * cols)))
OPERATION(void, norm_backward, void *dx, float *dw, float *db, const void *dout, const void *x, const void *w,
          int64_t rows, int64_t cols, double eps)
COST(NORM_SUMMED(4, rows, cols, db == NULL ? 1 : 2))

// --- pointwise. out = a x + b y; out may be x or y.
OPERATION(void, combine, void *out, double a, const void *x, double b, const void *y, int64_t count)
COST(PASS(3 * count * be->element))
// to[i] += from[i], fp32: adds the gradients of one weight that is used in two places.
OPERATION(void, accumulate, float *to, const float *from, int64_t count)
COST(PASS(12 * count))
// gate_up (rows, 2*ffn): gate in the first ffn columns, up in the others. out (rows, ffn) = scale[row] * silu(gate) *
// up; plain or quantized, like out of norm_forward. scale (rows), or NULL: 1.
OPERATION(void, swiglu_forward, Factor out, const void *gate_up, const float *scale, int64_t rows, int64_t ffn)
COST(PASS(((double)(2 * be->element) + WRITING(out)) * (double)(rows * ffn)))
// If dgate_up is quantized, its source is also written. With scale, dscale (rows) = row sums of dout * silu(gate) * up,
// and dgate_up is plain. Without, dscale is NULL.
OPERATION(void, swiglu_backward, Factor dgate_up, float *dscale, const void *dout, const void *gate_up,
          const float *scale, int64_t rows, int64_t ffn)
COST(PASS((5 * be->element + (dgate_up.kind == FACTOR_PLAIN ? 0 : 2)) * rows * ffn))
// out = gelu(x), tanh form: the y of EPILOGUE_GELU for aux = x.
OPERATION(void, gelu_forward, void *out, const void *x, int64_t count)
COST(PASS(2 * count * be->element))
// Rotates the query and key heads of qkv (rows, (heads + 2*kv_heads) * head_dim) in place. Pair i is (i, i +
// table->pairs) and turns by the angle position * frequency[i]. position is positions[row], or shape->first + row /
// batch if positions is NULL. direction +1: forward; -1: backward (the transposed rotation).
OPERATION(void, rope, void *qkv, const AttentionShape *shape, const RopeTable *table, const int32_t *positions,
          int direction)
COST(PASS(2 * be->element * shape->batch * shape->seq * (shape->heads + shape->kv_heads) * shape->head_dim))
// Latent attention (LatentShape in backend.h; H heads, D = nope + rope). qkv (rows, 3 H D), a row all queries, keys and
// values: query [rope of q | nope of q] * scale, key [shared | nope of kv], value [value of kv | zeros]. q (rows, H,
// nope | rope), kv (rows, H, nope | value), shared (rows, rope). Pairs of rope that are (2i, 2i + 1) in q and shared
// become (i, i + rope/2), as `rope` turns them.
OPERATION(void, latent_join, void *qkv, const void *q, const void *kv, const void *shared, int64_t rows,
          const LatentShape *shape)
COST(PASS(be->element *rows *(shape->heads *(5 * (shape->nope + shape->rope) + shape->value) + shape->rope)))
// The backward of latent_join; dshared is the sum over the heads, in their order.
OPERATION(void, latent_split, void *dq, void *dkv, void *dshared, const void *dqkv, int64_t rows,
          const LatentShape *shape)
COST(PASS(be->element *rows *(shape->heads *(5 * (shape->nope + shape->rope) + shape->value) + shape->rope)))
// Applies RMSNorm in place to every query head of qkv, with weights wq (head_dim), and to every key head, with weights
// wk. `kept` (rows, (heads + kv_heads) * head_dim) receives the norms' inputs for the backward. In dqkv the backward
// replaces the gradient of the norms' outputs by the gradient of their inputs; dwq, dwk +=.
OPERATION(void, heads_norm_forward, void *qkv, void *kept, const void *wq, const void *wk, const AttentionShape *shape,
          double eps)
COST(PASS(3 * be->element * shape->batch * shape->seq * shape->heads * shape->head_dim);
     PASS(3 * be->element * shape->batch * shape->seq * shape->kv_heads * shape->head_dim))
OPERATION(void, heads_norm_backward, void *dqkv, float *dwq, float *dwk, const void *kept, const void *wq,
          const void *wk, const AttentionShape *shape, double eps)
COST(NORM_SUMMED(3, shape->batch * shape->seq * shape->heads, shape->head_dim, 1);
     NORM_SUMMED(3, shape->batch * shape->seq * shape->kv_heads, shape->head_dim, 1))

// --- attention. qkv (rows, (heads + 2*kv_heads) * head_dim), each row q | k | v; out (rows, heads * head_dim); scale
// 1/sqrt(head_dim); causal or full, within documents (AttentionShape). saved: none - probabilities (batch, heads, seq,
// keys) in the run's precision, zero for hidden keys; flash - log-sum-exp (batch, heads, seq) fp32; recompute - NULL.
// scratch: attention_scratch bytes, enough for forward and backward. attention_scratch may be called before any device
// memory is allocated.
LIBRARY_OPERATION(int64_t, attention_scratch, const AttentionShape *shape)
COST(return 0)
LIBRARY_OPERATION(void, attention_forward, void *out, void *saved, void *scratch, const void *qkv,
                  const AttentionShape *shape)
COST(ATTENTION(false))
LIBRARY_OPERATION(void, attention_backward, void *dqkv, void *scratch, const void *dout, const void *out,
                  const void *saved, const void *qkv, const AttentionShape *shape)
COST(ATTENTION(true))

// --- embedding. tokens (rows) on the device; this rank holds the vocabulary rows [first, first + count) of wte; a
// token of another rank contributes zero. wpe (seq, hidden) is added where not NULL, position as in rope.
OPERATION(void, embedding_forward, void *x, const int32_t *tokens, const int32_t *positions, const void *wte,
          const void *wpe, int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count)
COST(PASS((wpe == NULL ? 2 : 3) * rows * hidden * be->element))
// dwte +=, dwpe (places, hidden) += (may be NULL); rows with the same token, or the same position, are added in row
// order. Every position is below `places`, which is larger than needed if the rows are a part of longer sequences.
OPERATION(void, embedding_backward, float *dwte, float *dwpe, int64_t places, const void *dx, const int32_t *tokens,
          const int32_t *positions, int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count)
COST(PASS(8 * count); PASS(4 * rows); PASS((be->element + 8) * rows * hidden);
     PASS(dwpe == NULL ? 0 : (batch * be->element + 8) * (rows / batch) * hidden))

// --- vocabulary-parallel cross-entropy, in two passes with an exchange of statistics between them. logits (rows,
// width): columns [0, count) are the vocabulary [first, first + count), the remaining columns are padding with
// probability 0. Pass 1: stats (rows, 3) fp32 = { maximum, sum of exp(logit - maximum), logit of the target or 0 if
// another rank has it }. For a target below 0, loss and gradient of its row are 0.
OPERATION(void, cross_entropy_stats, float *stats, const void *logits, const int32_t *targets, int64_t rows,
          int64_t width, int64_t first, int64_t count)
COST(PASS(be->element *rows *width))
// Pass 2: `gathered` (ranks, rows, 3) holds all tensor ranks' stats; loss (rows) = -log p(target) + z_loss * log(Z)^2,
// Z being the sum of exp(logit) (Chowdhery et al., PaLM, 2022). Logits are replaced by their gradient (p * (1 + 2
// z_loss log Z) - [target]) * scale, padding columns by 0. scale 0 (evaluation): writes only loss, without z_loss.
OPERATION(void, cross_entropy_gradient, void *logits, float *loss, const float *gathered, int ranks,
          const int32_t *targets, int64_t rows, int64_t width, int64_t first, int64_t count, float scale, float z_loss)
COST(PASS((scale == 0 ? 0 : 2) * rows * width * be->element))

// --- initial weights: to (rows, cols), contiguous fp32.
OPERATION(void, draw_normal, float *to, int64_t rows, int64_t cols, const NormalRows *draw)
COST(PASS(4 * rows * cols))

// --- optimizer: all tensors of a stage in one call; the table of tensors is in host memory. out[i] = sum of squares of
// tensor i's gradient, in double over fixed blocks, in host memory at return. Infinities and NaN propagate.
OPERATION(void, squared_norms, double *out, const AdamwTensor *tensors, int64_t tensor_count)
COST(OPTIMIZE(4, 0))
// Muon's momentum (Jordan et al. 2024), Nesterov's form: with g = gradient_scale * gradient, m = beta m + (1 - beta) g
// and then gradient = beta m + (1 - beta) g.
OPERATION(void, momentum, const AdamwTensor *tensors, int64_t tensor_count, double beta, double gradient_scale)
COST(OPTIMIZE(16, 0))
// Decoupled weight decay (Loshchilov & Hutter 2019); one pass over memory, which also zeroes the gradients, but not
// those of tensors that are `written`. For a tensor without v, `gradient` is the direction of the update:
// w -= lr (scale * gradient + weight_decay w).
OPERATION(void, adamw, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step)
COST(OPTIMIZE(8 + (be->element == 4 ? 8 : 8 + 2), 16))

#undef OPERATION
#undef LIBRARY_OPERATION
#undef COST
