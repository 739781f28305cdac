// Shared by the host side of the CUDA backend, in addition to cuda.h: matrix products, attention and lending.
#pragma once

#include "cuda.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// --- backend_cuda.cpp
// Returns the end of an error's sentence: the remedy for a device that this process has lost; "" for any other error.
const char *cuda_remedy(void);

// Returns how many multiprocessors a collective's `blocks` keep: fewer on a GPU with fewer than the 108 of an A100.
static inline int cuda_ctas(const CudaBackend *cuda, int blocks) {
    int part = cuda->multiprocessors >= 108 ? blocks : blocks * cuda->multiprocessors / 108;
    return part > 1 ? part : 1;
}

// Makes a stream whose work goes before that of compute.
static inline cudaError_t cuda_first_stream(cudaStream_t *stream) {
    int least = 0, most = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &most);
    return status == cudaSuccess ? cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, most) : status;
}

// --- comm_nccl.cpp
// Notes work of `flops` that was queued on compute, during the collectives in flight.
static inline void cuda_beside(CudaBackend *cuda, double flops) {
    cuda->collective_flops = cuda->collective_flops > flops ? cuda->collective_flops - flops : 0;
}

// --- matmul.cpp
// c (m, n) = alpha * a (m, k) b (k, n), or += where `accumulate`; row-major with leading dimensions. Transposed
// operands are stored (k, m) and (n, k). `batch` of them at strides (elements). Inputs in the run's precision, or
// quantized: then b is transposed and a is not. The output is in the run's precision, or fp32 where `wide`.
typedef struct CudaProduct {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    bool transpose_a, transpose_b, accumulate, wide;
    float alpha;
    int64_t batch, stride_a, stride_b, stride_c;
    const void *bias;   // (n), with an epilogue that has one
    void *aux;          // (m, n) at ldc
    int epilogue;       // cublasLtEpilogue_t, or 0
    int kind_a, kind_b; // FactorKind
    const void *scales_a, *scales_b;
} CudaProduct;

// Creates the products' resources, 32 MiB of device memory included. -1 with err.
int cuda_matmul_create(CudaBackend *cuda, Error *err);
void cuda_matmul_destroy(CudaBackend *cuda);

// Queues a product. Returns 0, or -1 if cuBLASLt has no kernel for it (then nothing is queued and nothing noted).
int cuda_product_try(CudaBackend *cuda, const CudaProduct *product);
// Queues a product, and notes the failure if there is no kernel for it.
void cuda_product(CudaBackend *cuda, const CudaProduct *product);

void cuda_linear_forward_blocks(Backend *backend, void *y, void *aux, const void *x, const void *w, const void *bias,
                                const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue);

// --- attention_cudnn.cpp. Plans are made once for each shape and kept; without cuDNN's frontend no shape has one.
typedef struct CudaFlashCall {
    const void *qkv, *out, *dout;
    float *saved;
    void *to;    // out of the forward, dqkv of the backward
    void *dkeys; // of a range's backward: rows (k | v), the gradients of all keys and values, not added to
    void *workspace;
} CudaFlashCall;

// Returns the workspace of a shape's plans, or -1 with `why` in one clause.
int64_t cuda_flash_prepare(CudaBackend *cuda, const AttentionShape *shape, char why[256]);
void cuda_flash_forward(CudaBackend *cuda, const AttentionShape *shape, const CudaFlashCall *call);
void cuda_flash_backward(CudaBackend *cuda, const AttentionShape *shape, const CudaFlashCall *call);
void cuda_flash_destroy(CudaBackend *cuda);
int64_t cuda_flash_version(void); // cuDNN's: 91900; 0 without it

// --- lend.cpp
int cuda_lend(Backend *backend, const void *memory, int64_t bytes, Loan *loan, Error *err);
void *cuda_borrow(Backend *backend, const Loan *loan, int64_t bytes, Error *err);
void cuda_take_back(CudaBackend *cuda, const void *memory); // memory that was lent and is mapped nowhere any more
void cuda_give_back(Backend *backend, void *memory, int64_t bytes);
int cuda_pin(Backend *backend, void *host, int64_t bytes, Error *err);
void cuda_unpin(Backend *backend, void *host);

__END_DECLS
