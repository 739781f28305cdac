// The CUDA backend from the inside: what its files share. Each operation of backend.h is a function cuda_<operation>
// with the signature the table in backend.h expects; kernels/ holds those that are kernels of our own.
//
// Everything is queued on the compute stream in the order of the calls. Nothing allocates: what a kernel leaves for the
// next launch of the same operation is in `scratch`, which no operation may expect to find again at its next call.
// An operation has no way to fail at the call, so the first failure is kept here and surfaces in `synchronize`.
//
// The files in kernels/ include this header, <cuda_runtime.h> and <cuda_bf16.h> and nothing else of CUDA, and launch
// through CUDA_LAUNCH (launch.cuh) alone: with test/emulate first in the include path an ordinary C++ compiler builds
// them for the CPU.
#ifndef CUDA_H
#define CUDA_H

#include "backend/backend.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_SCRATCH_BYTES = 32 << 20, CUDA_MATMUL_BYTES = 32 << 20 };

typedef struct CudaBackend {
    Backend backend; // first, so that a Backend * of this implementation is a CudaBackend *
    int device;
    int multiprocessors;
    // Bytes that this rank sends in collectives over tensor ranks which products run beside: from their call until
    // compute waits for them.
    int64_t collective_bytes;
    int64_t shared_bytes; // shared memory one block may have (cudaDeviceProp's sharedMemPerBlockOptin)
    cudaStream_t streams[STREAM_COUNT];
    bool registers;    // NCCL can use registered memory for collectives over tensor ranks
    void *registered;  // memory of ncclMemAlloc, which NCCL can register; NULL: none
    const void **lent; // [lent_count] allocations that other processes may have mapped: freed with the process
    int lent_count;
    void *scratch; // device memory, CUDA_SCRATCH_BYTES, for operations on the compute stream
    int64_t scratch_bytes;
    cudaError_t status;    // of the first call or launch that failed
    const char *failed_at; // which one; with status cudaSuccess, a sentence about something else that is impossible
    struct CudaMatmul *matmul;
    struct CudaFlash *flash;
} CudaBackend;

static inline CudaBackend *cuda_self(Backend *backend) {
    return (CudaBackend *)backend->self;
}
static inline bool cuda_is_bf16(const Backend *backend) {
    return backend->precision == PRECISION_BF16;
}
static inline cudaStream_t cuda_compute(const CudaBackend *cuda) {
    return cuda->streams[STREAM_COMPUTE];
}

// Keeps the first failure; `what` must stay valid.
static inline void cuda_note(CudaBackend *cuda, cudaError_t status, const char *what) {
    if (status == cudaSuccess || cuda->failed_at) return;
    cuda->status = status;
    cuda->failed_at = what;
}

// Keeps as a failure what CUDA would not report: "norm: a row of more than 32768 columns".
static inline void cuda_refuse(CudaBackend *cuda, const char *sentence) {
    if (!cuda->failed_at) cuda->failed_at = sentence;
}

#ifndef EMULATED
// Queries an event. Clears the last error afterwards: a pending event leaves cudaErrorNotReady there, which the check
// after the next launch would take for that launch's own.
static inline cudaError_t cuda_event_status(cudaEvent_t event) {
    cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
}
#endif

// --- operations of kernels/ (see backend.h)
// pointwise.cu
void cuda_from_float(Backend *backend, void *to, const float *from, int64_t count);
void cuda_to_float(Backend *backend, float *to, const void *from, int64_t count);
void cuda_add(Backend *backend, void *out, const void *a, const void *b, int64_t count);
void cuda_accumulate(Backend *backend, float *to, const float *from, int64_t count);
void cuda_swiglu_forward(Backend *backend, void *out, const void *gate_up, int64_t rows, int64_t ffn);
void cuda_swiglu_backward(Backend *backend, void *dgate_up, const void *dout, const void *gate_up, int64_t rows,
                          int64_t ffn);
// rope.cu
void cuda_rope(Backend *backend, void *qkv, const AttentionShape *shape, const RopeTable *table, int direction);
// norm.cu
void cuda_rmsnorm_forward(Backend *backend, void *out, void *sum, const void *x, const void *delta, const void *w,
                          int64_t rows, int64_t cols, double eps);
void cuda_rmsnorm_backward(Backend *backend, void *dx, float *dw, const void *dout, const void *x, const void *w,
                           int64_t rows, int64_t cols, double eps);
void cuda_layernorm_forward(Backend *backend, void *out, void *sum, const void *x, const void *delta, const void *w,
                            const void *b, int64_t rows, int64_t cols, double eps);
void cuda_layernorm_backward(Backend *backend, void *dx, float *dw, float *db, const void *dout, const void *x,
                             const void *w, int64_t rows, int64_t cols, double eps);
void cuda_heads_norm_forward(Backend *backend, void *qkv, void *kept, const void *wq, const void *wk,
                             const AttentionShape *shape, double eps);
void cuda_heads_norm_backward(Backend *backend, void *dqkv, float *dwq, float *dwk, const void *kept, const void *wq,
                              const void *wk, const AttentionShape *shape, double eps);
// embedding.cu
void cuda_embedding_forward(Backend *backend, void *x, const int32_t *tokens, const void *wte, const void *wpe,
                            int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count);
void cuda_embedding_backward(Backend *backend, float *dwte, float *dwpe, const void *dx, const int32_t *tokens,
                             int64_t rows, int64_t hidden, int64_t batch, int64_t first, int64_t count);
// cross_entropy.cu
void cuda_cross_entropy_stats(Backend *backend, float *stats, const void *logits, const int32_t *targets, int64_t rows,
                              int64_t width, int64_t first, int64_t count);
void cuda_cross_entropy_gradient(Backend *backend, void *logits, float *loss, const float *gathered, int ranks,
                                 const int32_t *targets, int64_t rows, int64_t width, int64_t first, int64_t count,
                                 float scale);
// adamw.cu. Both read the table of tensors on the host; squared_norms waits for the compute stream.
void cuda_squared_norms(Backend *backend, double *out, const AdamwTensor *tensors, int64_t tensor_count);
void cuda_adamw(Backend *backend, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step);
// random.cu
void cuda_draw_normal(Backend *backend, float *to, int64_t rows, int64_t cols, const NormalRows *draw);

// --- what matrix products and attention need beside the products themselves
// pointwise.cu: gelu of the tanh form, where no epilogue does it. out may be x; dx may be dout.
void cuda_gelu_forward(Backend *backend, void *out, const void *x, int64_t count);
void cuda_gelu_backward(Backend *backend, void *dx, const void *dout, const void *x, int64_t count);
// Adds bias (cols) to each row of y (rows, cols).
void cuda_bias_add(Backend *backend, void *y, const void *bias, int64_t rows, int64_t cols);
// norm.cu: sums (cols) += column sums of x (rows, cols), in an order that shapes and the device fix.
void cuda_column_sums(Backend *backend, float *sums, const void *x, int64_t rows, int64_t cols);

// softmax.cu. Causal softmax of a block of query rows: scores (matrices, rows, cols) in the run's precision, row r is
// the query at position first + r and sees columns 0 .. first + r; cols >= first + rows. p = softmax(scale * scores)
// where seen and 0 elsewhere. p may be scores.
typedef struct CudaScores {
    int64_t matrices, rows, cols, first;
    float scale;
} CudaScores;

void cuda_softmax_forward(Backend *backend, void *p, const void *scores, const CudaScores *shape);
// Computes dscores = scale * p * (dp - sum over the row of p * dp). dscores may be dp. Does not read what dp holds
// above the diagonal.
void cuda_softmax_backward(Backend *backend, void *dscores, const void *dp, const void *p, const CudaScores *shape);

// Does the same as separate passes through fp32 (cast, scale, mask, softmax, cast), each over all of memory, which is
// what Megatron-LM runs where its fused kernel does not apply. wide: matrices * rows * cols floats.
void cuda_softmax_unfused_forward(Backend *backend, void *p, const void *scores, float *wide, const CudaScores *shape);
void cuda_softmax_unfused_backward(Backend *backend, void *dscores, const void *dp, const void *p, float *wide,
                                   const CudaScores *shape);

#ifdef __cplusplus
}
#endif

#endif
