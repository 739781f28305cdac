// Declarations shared by the files of the CUDA backend. Each operation of backend/operations.h is a function cuda_NAME;
// kernels/ holds the operations that are kernels of our own.
//
// Everything is queued on the compute stream in the order of the calls. Operations allocate no device memory: data that
// a kernel leaves for the next launch of the same operation is in `scratch`, and is lost when the operation ends.
// Operations do not return errors. CudaBackend stores the first failure, and `synchronize` reports it.
//
// The only CUDA headers that files in kernels/ include are this file, <cuda_runtime.h> and <cuda_bf16.h>; they launch
// only through CUDA_LAUNCH (launch.cuh). So an ordinary C++ compiler can build them for the CPU, with
// test/virtual/include first in the include path.
#pragma once

#include "backend/backend.h"

#include <cuda_runtime.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

enum { CUDA_SCRATCH_BYTES = 32 << 20, CUDA_MATMUL_BYTES = 32 << 20 };

typedef struct CudaBackend {
    Backend backend; // first, so that a Backend * of this implementation is a CudaBackend *
    int device;
    int multiprocessors;
    // FLOPs of compute that can still overlap the tensor ranks' collectives in flight. Queued work is subtracted; at 0
    // the collectives have ended when the next product starts. INFINITY: the rates are unknown.
    double collective_flops;
    int64_t shared_bytes; // bytes of shared memory that a block may request (sharedMemPerBlockOptin)
    cudaStream_t streams[STREAM_COUNT];
    cudaStream_t beside; // sums and gathers over data ranks, one after another (comm_nccl.cpp); NULL: none
    // Why memory that was mapped may receive two copies in another order, as a clause; NULL: it does not. The reader
    // resets it.
    const char *unordered;
    bool registers;    // NCCL can use registered memory for collectives over tensor ranks
    void *registered;  // memory of ncclMemAlloc, which NCCL can register, or NULL
    const void **lent; // [lent_count] allocations that other processes may have mapped: freed with the process
    int lent_count;
    void *scratch; // device memory, CUDA_SCRATCH_BYTES, for operations on the compute stream
    int64_t scratch_bytes;
    cudaError_t status;    // status of the first call or launch that failed
    const char *failed_at; // failed call, or text of cuda_refuse (then status is cudaSuccess); NULL: no failure
    struct CudaMatmul *matmul;
    struct CudaFlash *flash;
} CudaBackend;

static inline CudaBackend *cuda_self(Backend *be) { return (CudaBackend *)be->self; }
static inline bool cuda_is_bf16(const Backend *be) { return be->precision == PRECISION_BF16; }
static inline cudaStream_t cuda_compute(const CudaBackend *cuda) { return cuda->streams[STREAM_COMPUTE]; }

// Records the failure of a call, unless an earlier failure is recorded. `what` must stay valid.
static inline void cuda_note(CudaBackend *cuda, cudaError_t status, const char *what) {
    if (status == cudaSuccess || cuda->failed_at) return;
    cuda->status = status;
    cuda->failed_at = what;
}

// Records a failure that CUDA would not report, as a sentence: "norms on a GPU support at most 32768 columns".
static inline void cuda_refuse(CudaBackend *cuda, const char *sentence) {
    if (!cuda->failed_at) cuda->failed_at = sentence;
}

#ifndef EMULATED
// Queries an event. A pending event may leave cudaErrorNotReady as the last error; it is cleared, so that the check
// after the next launch does not report it.
static inline cudaError_t cuda_event_status(cudaEvent_t event) {
    cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
}
#endif

// --- the operations: cuda_linear_forward and so on. Matrix products and attention are in matmul.cpp and attention.cpp,
// the other operations in kernels/. cuda_squared_norms waits for the compute stream.
#define OPERATION(result, name, ...) result cuda_##name(Backend *be, __VA_ARGS__)
#include "backend/operations.h"

// --- kernels around matrix products and in attention
// pointwise.cu: dx = dout * gelu'(x), for products without a fused GELU epilogue. dx may be dout.
void cuda_gelu_backward(Backend *be, void *dx, const void *dout, const void *x, int64_t count);
// Adds bias (cols) to each row of y (rows, cols).
void cuda_bias_add(Backend *be, void *y, const void *bias, int64_t rows, int64_t cols);
// to[i] += from[i]; `from` is in the precision of the run.
void cuda_accumulate_narrow(Backend *be, float *to, const void *from, int64_t count);
// Sums one block of `count` elements per rank in rank order, in fp32, and rounds once, as CPUs do. The block of `rank`
// is own (count); the block of any other rank q is block q of others (ranks, count). out (count) may be own.
void cuda_sum_blocks(Backend *be, void *out, const void *own, const void *others, int ranks, int rank, int64_t count);
// norm.cu: sums (cols) += column sums of x (rows, cols), in an order that depends only on the shape and the device.
void cuda_column_sums(Backend *be, float *sums, const void *x, int64_t rows, int64_t cols);

// softmax.cu. Causal softmax of a block of query rows: p = softmax(scale * scores) in the columns that a row sees, and
// 0 elsewhere. scores: (matrices, rows, cols) in the run's precision; cols >= first + rows. Row r is the query at
// position q = first + r. It sees the columns 0 .. q or, with places, q - places[r * apart] .. q. p may be scores.
typedef struct CudaScores {
    int64_t matrices, rows;
    int cols;
    int64_t first;
    float scale;
    const int32_t *places; // NULL: one document
    int64_t apart;
} CudaScores;

// wide: NULL, or workspace of matrices * rows * cols floats for separate fp32 passes (cast, scale, mask, softmax, cast)
// over all scores, as Megatron-LM makes them where its fused kernel does not apply.
void cuda_softmax_forward(Backend *be, void *p, const void *scores, float *wide, const CudaScores *shape);
// Computes dscores = scale * p * (dp - row sum of p * dp). dscores may be dp. dp above the diagonal is ignored.
void cuda_softmax_backward(Backend *be, void *dscores, const void *dp, const void *p, float *wide,
                           const CudaScores *shape);

__END_DECLS
