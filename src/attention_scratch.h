// What attention on an NVIDIA GPU needs beside its operands, so that a plan for GPUs can be made where there is none.
#ifndef ATTENTION_SCRATCH_H
#define ATTENTION_SCRATCH_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Bytes, the larger of forward and backward; element: bytes of one activation. Assumed: flash attention accumulates the gradient of the
// queries in fp32 and keeps one fp32 number a row (of dout * out); `none` holds the gradient of the probabilities beside what is stored,
// `recompute` the probabilities too.
int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element);

#ifdef __cplusplus
}
#endif

#endif
