// Eight-bit operands (train.fp8) of the layers' four products and their gradients: kind, place and quantization.
// Weights are quantized once per engine run, before their first use, inputs and gradients before each product. Their
// bf16 values are the same for every schedule, and each scale covers one rank's operand of one product. So no bit
// depends on stages, schedules, slots or resumes.
//
// Scales along rows are local to a rank's shard. So a gathered input or gradient is quantized once, on the shard, and
// the bundle keeps the outputs of norms and activation only in eight bits. The backward quantizes the transposes from
// the eight-bit numbers. Scales are powers of two, so this second quantization can change only the smallest numbers of
// a block. A scale per tensor would need the maximum over all tensor ranks before each gather, so `tensor` gathers
// bf16. Computing the scale of a tensor takes a pass over the operand, so the scale is kept for the transpose: in the
// bundle for outputs of norms and attention, in pass->scales for gradients.
#pragma once

#include "model.h"

// Inputs and gradients of products, and weights.
typedef enum FactorUse { FACTOR_INPUT, FACTOR_GRADIENT, FACTOR_WEIGHT } FactorUse;

// Fills shape->narrow. biased: column sums of the output gradients are needed, so output gradients stay bf16.
void quantized_shape(Shape *shape, bool biased);

// Return the bytes of a (rows, cols) operand of this kind, and the operand at `memory`. A plain operand is in the run's
// precision. source: the bf16 values that quantized_make reads.
int64_t quantized_bytes(const Shape *shape, int kind, int64_t rows, int64_t cols);
Factor quantized_at(const void *memory, const void *source, int kind, int64_t rows, int64_t cols);
// Quantizes the source of an operand that is not plain.
void quantized_make(Pass *pass, const Factor *operand, int64_t rows, int64_t cols);

// Returns the bytes of one buffer in pass->quantized, enough for the input or the gradient of any product of a layer; 0
// without train.fp8.
int64_t quantized_work_bytes(const Shape *shape);

// Returns x (rows, cols), or its transpose, as an operand of a product. Returns x itself if `with`, the FactorKind of
// the weight, is plain, or if x is in eight bits and `transposed` is false. Otherwise quantizes into pass->quantized,
// which has one buffer for inputs and one for gradients. If a plain x has x.scales, the first of the two calls for x
// and its transpose computes the single scale.
Factor quantized_factor(Pass *pass, Factor x, int64_t rows, int64_t cols, FactorUse use, bool transposed, int with);

// Lays out the stage's quantized weights at `base` and returns their bytes; base NULL: only counts. tensors_quantize
// quantizes those of the tensors [begin, end).
int64_t tensors_quantized_layout(const StageTensors *tensors, char *base);
void tensors_quantize(const StageTensors *tensors, Backend *be, int64_t begin, int64_t end);
