// What operations on an NVIDIA GPU need beside their operands, so that a plan for GPUs can be made where there is none.
#ifndef ATTENTION_SCRATCH_H
#define ATTENTION_SCRATCH_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUDA_OWN_BYTES = 64 << 20, // scratch of kernels and workspace of matrix products, half each: held from start to end
    CUDA_LENT_PAGE = 2 << 20,  // memory that another process maps is taken in whole pages
};

// Of attention, in bytes, the larger of forward and backward; element: bytes of one activation. `none` and `recompute` go through the
// sequences of a microbatch one by one: `none` holds the gradient of one sequence's probabilities beside what is stored,
// `recompute` the probabilities too, and an unfused softmax them in fp32. Flash attention is assumed to accumulate the
// gradient of the queries in fp32, to keep two fp32 numbers a row, and with grouped queries the gradients of keys and
// values for each query head; where the library asks for more at start, more is taken then.
int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element);

// Whether the softmax of `none` and `recompute` is one kernel; the rule of SOFTMAX_MEGATRON is that of Megatron-LM's
// fused kernel: 16-bit, 16 < seq <= 4096, seq and batch * heads multiples of 4.
bool attention_softmax_fuses(const AttentionShape *shape, int64_t element);

#ifdef __cplusplus
}
#endif

#endif
