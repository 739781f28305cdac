// Operands of eight bits (train.fp8) of the layers' four products and their gradients: which kind each is, where it
// lies, and how it is made. Weights are quantized once a run of the engine; inputs and gradients are made in the
// workspace before each product, from bf16 that is the same for every schedule. A scale belongs to this rank's operand
// alone and to this product alone, so that no bit depends on stages, schedules, slots or resumes.
#pragma once

#include "model.h"

// Inputs and gradients of products, and weights.
typedef enum FactorUse { FACTOR_INPUT, FACTOR_GRADIENT, FACTOR_WEIGHT } FactorUse;

// Returns the bytes that make the input or the gradient of any product of a layer, each of two such operands; 0 without
// train.fp8.
int64_t quantized_work_bytes(const Shape *shape);

// Returns x (rows, cols), or its transpose, as an operand: `x` itself if `with`, the other operand of the product, is
// plain; else quantized into pass->quantized, where inputs and gradients have a place each.
Factor quantized_factor(Pass *pass, const void *x, int64_t rows, int64_t cols, FactorUse use, bool transposed,
                        int with);

// Lays the stage's quantized weights out at base and returns their bytes; with base NULL it only counts. Quantizes all
// of them.
int64_t tensors_quantized_layout(const StageTensors *tensors, char *base);
void tensors_quantize(const StageTensors *tensors, Backend *be);
