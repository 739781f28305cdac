// Operands of eight bits (train.fp8) of the layers' four products and their gradients: which kind each is, where it
// lies, and how it is made. Weights are quantized once a run of the engine, inputs and gradients before each product,
// from bf16 that is the same for every schedule. A scale belongs to this rank's operand and to this product alone, so
// that no bit depends on stages, schedules, slots or resumes.
//
// Scales along rows are local to a rank's shard. So an input or a gradient that is gathered is quantized once, on the
// shard, and the bundle keeps the outputs of norms and activation in eight bits alone. The backward quantizes their
// transpose from these: scales are powers of two, which leaves every number as it is, but for the smallest of a block.
// One scale for a tensor would need the maximum of all tensor ranks before each gather, so `tensor` gathers bf16. To
// find it takes a pass over the operand, so it is kept for the operand's transpose: that of the outputs of norms and
// attention in the bundle, that of gradients in pass->scales.
#pragma once

#include "model.h"

// Inputs and gradients of products, and weights.
typedef enum FactorUse { FACTOR_INPUT, FACTOR_GRADIENT, FACTOR_WEIGHT } FactorUse;

// Fills shape->narrow. biased: the column sums of output gradients are needed, so that these stay bf16.
void quantized_shape(Shape *shape, bool biased);

// Returns the bytes of (rows, cols) of a kind, and the operand at such memory; bf16 if the kind is plain. source: where
// bf16 is before it is quantized.
int64_t quantized_bytes(const Shape *shape, int kind, int64_t rows, int64_t cols);
Factor quantized_at(const void *memory, const void *source, int kind, int64_t rows, int64_t cols);
// Quantizes the operand's source, unless the operand is plain.
void quantized_make(Pass *pass, const Factor *operand, int64_t rows, int64_t cols);

// Returns the bytes that make the input or the gradient of any product of a layer, each of two such operands; 0 without
// train.fp8.
int64_t quantized_work_bytes(const Shape *shape);

// Returns x (rows, cols), or its transpose, as an operand: `x` itself if `with`, the other operand of the product, is
// plain, or if x has eight bits already; else quantized into pass->quantized, where inputs and gradients have a place
// each. The one scale of a plain x with scales is found by the first of the two calls for x and its transpose.
Factor quantized_factor(Pass *pass, Factor x, int64_t rows, int64_t cols, FactorUse use, bool transposed, int with);

// Lays the stage's quantized weights out at base and returns their bytes; with base NULL it only counts. Quantizes all
// of them.
int64_t tensors_quantized_layout(const StageTensors *tensors, char *base);
void tensors_quantize(const StageTensors *tensors, Backend *be);
