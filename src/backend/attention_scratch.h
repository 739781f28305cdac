// The memory that operations on an NVIDIA GPU need in addition to their operands. A plan for GPUs needs no GPU for it.
#pragma once

#include "backend.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

enum {
    CUDA_OWN_BYTES = 64 << 20, // scratch of kernels and workspace of matrix products, half each: held from start to end
    CUDA_LENT_PAGE = 2 << 20,  // bytes; memory that another process maps is allocated in such pages
};

// Returns the sequences and heads that one call of cuDNN's backward takes: all, unless it stores the gradient of the
// scores. Then fewer do, so that the store is small, but enough to fill a GPU. Calls of a backward follow one another.
AttentionShape attention_flash_part(const AttentionShape *shape, int capability);

// Returns the workspace of cuDNN's flash attention, the larger of forward and backward, exact to the byte: cuDNN 9.19
// asks for it on a GPU of compute capability 8.x, 9.x, 10.x and 12.x (80, 90, 100, 120). Except on 100 a
// deterministic backward takes the gradient of the probabilities, as large as all scores of a call in 16 bits.
// test/cuda/test_cudnn.py asks cuDNN and compares.
int64_t attention_flash_workspace(const AttentionShape *shape, int capability);

// Returns the bytes of a range's gradients of keys and values as cuDNN leaves them, before they are added to dkeys.
static inline int64_t attention_flash_gradients(const AttentionShape *shape) {
    return attention_is_range(shape) ? memory_round(2 * attention_range_count(shape)) : 0;
}

// Returns whether cuDNN has the kernels of Ampere there: GeForce and workstation cards of Blackwell (120) do.
static inline bool attention_flash_ampere(int capability) { return capability < 90 || capability >= 120; }

// Returns whether that backward is deterministic (attention.deterministic). auto: where cuDNN documents that it can be,
// from 90 on, but for Ampere's kernels.
static inline bool attention_flash_deterministic(const AttentionShape *shape, int capability) {
    return shape->deterministic == DETERMINISTIC_AUTO ? !attention_flash_ampere(capability)
                                                      : shape->deterministic == DETERMINISTIC_ON;
}

// Returns the scratch of attention in bytes, the larger of forward and backward; element: bytes of one activation.
// `none` and `recompute` process the sequences of a microbatch one by one: `none` holds the gradient of one sequence's
// probabilities in addition to the stored ones, `recompute` the probabilities too, and an unfused softmax holds them in
// fp32. If cuDNN asks for more at start-up, more is allocated then. capability: as above; 0 if the GPU is not known,
// which counts the largest of all.
int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element, int capability);

// Returns whether scale, mask and softmax of `none` and `recompute` run as one kernel. SOFTMAX_MEGATRON follows
// Megatron-LM's fused kernel (megatron/fused_kernels, 2023): 16-bit scores, 16 < seq <= 4096; the rank's seq and batch
// * heads are multiples of 4; otherwise separate passes in fp32. This is the only place of the rule: kernels, plan and
// profile ask here.
static inline bool attention_softmax_fuses(const AttentionShape *shape, int64_t element) {
    if (shape->softmax != SOFTMAX_MEGATRON) return shape->softmax == SOFTMAX_FUSED;
    bool length = shape->seq > 16 && shape->seq <= 4096 && shape->seq % 4 == 0;
    return element == 2 && length && shape->batch * shape->heads % 4 == 0;
}

__END_DECLS
