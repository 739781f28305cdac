// The part of CUDA that the kernels in src/cuda/kernels use, for a CPU. Found instead of the toolkit's header of the
// same name because test/emulate comes first in the include path; see emulate.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 } cudaError_t;
typedef enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 } cudaMemcpyKind;
typedef struct EmulatedStream *cudaStream_t;

#ifdef __cplusplus
#include <math.h>
#include <string.h>

// Device memory is host memory, and queued work is complete when the call returns.
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) {
    memset(to, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
#endif
