// Shared by the host code of the CUDA backend in addition to cuda.h: matrix products, attention and lending.
#pragma once

#include "backend/attention_scratch.h"
#include "cuda.h"

// Returns the end of an error message: a remedy if this process has lost its device, else "". After a sticky error
// every later call fails, and the process cannot use its device again (CUDA Runtime API, cudaErrorLaunchFailure and
// similar).
static inline const char *cuda_remedy(void) {
    return cudaFree(NULL) == cudaSuccess ? ""
                                         : "; this process has lost the GPU: see nvidia-smi and the kernel log "
                                           "(dmesg, Xid), and resume from the last checkpoint with --resume";
}

// Returns `blocks`, scaled down if the kernels of all groups would not fit at once on the 108 multiprocessors of an
// A100, or if the GPU has fewer. At least 1.
static inline int cuda_ctas(const CudaBackend *cuda, int blocks) {
    const int all = 108, asked = cuda->backend.blocks > all ? cuda->backend.blocks : all;
    int part = blocks * (cuda->multiprocessors < all ? cuda->multiprocessors : all) / asked;
    return part > 1 ? part : 1;
}

// Creates a stream with a higher priority than the compute stream.
static inline cudaError_t cuda_first_stream(CudaBackend *cuda, cudaStream_t *stream) {
    cuda->backend.streams++;
    int least = 0, most = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &most);
    return status == cudaSuccess ? cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, most) : status;
}

// --- comm_nccl.cpp
// Call after queueing `flops` on compute: that much less work can still overlap the collectives in flight.
static inline void cuda_beside(CudaBackend *cuda, double flops) {
    Backend *be = &cuda->backend;
    cuda->collective_flops = cuda->collective_flops > flops ? cuda->collective_flops - flops : 0;
    be->gathering = be->gathering > flops ? be->gathering - flops : 0;
}

// --- matmul.cpp
// c (m, n) = a (m, k) b (k, n), or += if `accumulate`; row-major with leading dimensions. Transposed operands
// are stored as (k, m) and (n, k). `batch` such products, with strides in elements. Inputs are in the precision of the
// run, or quantized: then b is transposed and a is not. The output is in the precision of the run, or fp32 if `wide`.
typedef struct CudaProduct {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    bool transpose_a, transpose_b, accumulate, wide;
    int64_t batch, stride_a, stride_b, stride_c;
    const void *bias;   // (n), or NULL; needs an epilogue with a bias
    void *aux;          // (m, n), row stride ldc: GELU's input, written or read by its epilogue; NULL: no GELU
    int epilogue;       // cublasLtEpilogue_t, or 0
    int kind_a, kind_b; // FactorKind
    const void *scales_a, *scales_b;
} CudaProduct;

// Creates the resources for products, including 32 MiB of device memory. Returns 0, or -1 with err.
int cuda_matmul_create(CudaBackend *cuda, Error *err);
void cuda_matmul_destroy(CudaBackend *cuda);

// Queues a product, and notes the failure if there is no kernel for it.
void cuda_product(CudaBackend *cuda, const CudaProduct *product);

void cuda_linear_forward_blocks(Backend *be, void *y, void *aux, const void *x, const void *w, const void *bias,
                                const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue);

// --- kernels/documents.cu
// A document's rows of queries and keys, counted in its sequence; keys before the queries only in a range.
typedef struct CudaDocument {
    int32_t query, queries, key, keys;
} CudaDocument;

// The documents of a call, in their order, passed to the kernel by value. row: elements from row to row, by FlashRows.
typedef struct CudaDocuments {
    int32_t count; // > 0
    int64_t row[FLASH_ROW_KINDS];
    CudaDocument document[FLASH_DOCUMENTS];
} CudaDocuments;

// Writes the lengths and offsets that a call of flash reads; documents after the last have no rows.
void cuda_flash_documents(Backend *be, FlashDocuments *to, const CudaDocuments *list);

// --- attention_cudnn.cpp. Plans are built once per shape and cached; without cuDNN's frontend no shape has a plan.
typedef struct CudaFlashCall {
    const void *qkv, *out, *dout;
    float *saved;
    void *to;                  // result: out of the forward, dqkv of the backward
    void *dkeys;               // backward of a range: gradients of all keys and values, rows (k | v), overwritten
    FlashDocuments *documents; // written by each call with documents
    void *workspace;
} CudaFlashCall;

// Returns the bytes of workspace of a shape's plans, or -1 with the reason in `why`, as one clause.
int64_t cuda_flash_prepare(CudaBackend *cuda, const AttentionShape *shape, char why[256]);
void cuda_flash_forward(CudaBackend *cuda, const AttentionShape *shape, const CudaFlashCall *call);
void cuda_flash_backward(CudaBackend *cuda, const AttentionShape *shape, const CudaFlashCall *call);
void cuda_flash_destroy(CudaBackend *cuda);
int64_t cuda_flash_version(void); // cuDNN's version, 91900 for 9.19.0; 0 without cuDNN

// --- lend.cpp
int cuda_lend(Backend *be, const void *memory, int64_t bytes, Loan *loan, Error *err);
void *cuda_borrow(Backend *be, const Loan *loan, int64_t bytes, Error *err);
void cuda_take_back(CudaBackend *cuda, const void *memory); // removes `memory` from `lent` once no process maps it
void cuda_give_back(Backend *be, void *memory, int64_t bytes);
int cuda_pin(Backend *be, void *host, int64_t bytes, Error *err);
void cuda_unpin(Backend *be, void *host);
