// Declarations shared by the files of the CPU backend. Each operation of backend/operations.h is a function cpu_NAME.
//
// Bits do not depend on the number of threads. Every element of an output is computed by one thread from start to end,
// or from partial sums over blocks whose boundaries depend only on the shapes, added in block order.
// Nothing here is compiled with fast-math or contraction, so a vector loop and its scalar remainder agree as well.
//
// Both precisions run the same arithmetic in fp32: kernels work on rows of floats. cpu_load returns a row as floats
// (the row itself if the run is fp32), cpu_store rounds floats to the run's precision.
#pragma once

#include "backend/backend.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#define CPU_PRAGMA_(text) _Pragma(#text)
// A region run by the backend's threads; inside it cpu_thread() is 0..threads-1.
#define CPU_PARALLEL(be) CPU_PRAGMA_(omp parallel num_threads(cpu_self(be)->threads))
// Distribute loop iterations over the threads: in equal contiguous shares, or (DYNAMIC) one at a time to the next free
// thread, for iterations that differ in cost. No sum may be carried from one iteration to the next.
#define CPU_PARALLEL_FOR(be) CPU_PRAGMA_(omp parallel for num_threads(cpu_self(be)->threads) schedule(static))
#define CPU_PARALLEL_FOR_DYNAMIC(be)                                                                                   \
    CPU_PRAGMA_(omp parallel for num_threads(cpu_self(be)->threads) schedule(dynamic, 1))
static inline int cpu_thread(void) { return omp_get_thread_num(); }
#else
#define CPU_PARALLEL(be)             (void)(be);
#define CPU_PARALLEL_FOR(be)         (void)(be);
#define CPU_PARALLEL_FOR_DYNAMIC(be) (void)(be);
static inline int cpu_thread(void) { return 0; }
#endif

typedef struct CpuProducts CpuProducts; // gemm_bf16.c

typedef struct CpuScratch {
    float *memory;
    int64_t floats;
    CpuProducts *products; // this thread's oneDNN primitives for bf16 products; NULL before the first product
    bool given;            // true: supplied by cpu_use_workspace_; false: allocated here, counted as workspace
    char apart[32];        // padding to 64 bytes, so that threads do not share a cache line
} CpuScratch;

// Memory that other processes can map.
typedef struct CpuShared {
    void *memory;
    int64_t bytes;
    int fd;
} CpuShared;

typedef struct CpuBackend {
    Backend backend; // first, so that a Backend * of this implementation is a CpuBackend *
    int threads;
    bool own_time;       // events record clock_thread_seconds()
    CpuScratch *scratch; // one per thread; cpu_scratch enlarges its memory
    bool bf16_library;   // true: oneDNN computes bf16 products
    CpuShared shared;
} CpuBackend;

static inline CpuBackend *cpu_self(Backend *be) { return (CpuBackend *)be->self; }
static inline bool cpu_is_bf16(const Backend *be) { return be->precision == PRECISION_BF16; }

// Returns scratch of at least `floats` floats for the calling thread, 64-byte aligned, with undefined contents. Each
// thread has one scratch, which a second call reuses or replaces. Outside CPU_PARALLEL(_FOR), returns thread 0's.
float *cpu_scratch(Backend *be, int64_t floats);
// Resets a scratch except for `products`, and frees its memory unless the memory was `given`.
void cpu_scratch_drop(CpuBackend *cpu, CpuScratch *scratch);

// Return the floats of scratch that one thread needs for linear layers, for attention, and for a norm. In a norm's
// backward, thread 0's scratch holds the sums over blocks and the rows of every thread.
int64_t cpu_linear_workspace(void);
int64_t cpu_attention_workspace(const AttentionShape *shape);
int64_t cpu_norm_workspace(int64_t rows, int64_t cols, int threads, int thread);

// --- rows
// Returns `count` elements from element `offset` of `from` (run precision) as floats: a pointer into `from` if the run
// is fp32, else `workspace` after conversion.
const float *cpu_load(const Backend *be, float *workspace, const void *from, int64_t offset, int64_t count);

// Returns where to compute the elements of `to` from `offset` on as floats: in `to` itself if the run is fp32, else in
// `workspace`. Afterwards cpu_store writes them to `to`: it rounds to bf16, or copies floats that are elsewhere.
static inline float *cpu_place(const Backend *be, float *workspace, void *to, int64_t offset) {
    return cpu_is_bf16(be) ? workspace : (float *)to + offset;
}
void cpu_store(const Backend *be, void *to, int64_t offset, const float *from, int64_t count);

// Quantizes out.source (rows, cols) into `out`; does nothing if `out` is plain.
void cpu_narrow(Backend *be, Factor out, int64_t rows, int64_t cols);

static inline void cpu_accumulate_row(float *restrict sum, const float *restrict x, int64_t count) {
    for (int64_t i = 0; i < count; i++) sum[i] += x[i];
}

// Returns a * b + c, rounded once if compiled for a processor with FMA. Vector loops and their remainders round alike.
static inline float cpu_fmaf(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// --- exp that compilers vectorize, without table or branch: |relative error| < 2e-7 (test_linear.c), 0 below -87.3 and
// for -inf, +inf above 88.3, NaN for NaN. x = n ln2 + r; exp(r) by the polynomial of Cephes (Moshier), |r| <= ln2/2.
static inline float cpu_expf(float x) {
    float shifted = cpu_fmaf(x, 1.44269504f, 12582912.0f); // 1.5 * 2^23: the sum's low bits are the rounded n
    float n = shifted - 12582912.0f;
    float r = cpu_fmaf(n, 2.12194440e-4f, cpu_fmaf(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = cpu_fmaf(p, r, 1.3981999507e-3f);
    p = cpu_fmaf(p, r, 8.3334519073e-3f);
    p = cpu_fmaf(p, r, 4.1665795894e-2f);
    p = cpu_fmaf(p, r, 1.6666665459e-1f);
    p = cpu_fmaf(p, r, 5.0000001201e-1f);
    p = cpu_fmaf(p * r, r, r) + 1.0f;
    uint32_t power;
    memcpy(&power, &shifted, sizeof power);
    power = (power + 127u) << 23; // the shift drops the bits of the constant
    float scale;
    memcpy(&scale, &power, sizeof scale);
    float y = p * scale;
    y = x > 88.3f ? INFINITY : y;
    return x < -87.3f ? 0.0f : y;
}

// Returns 2^x for x <= 127 at two thirds of cpu_expf's cost: |relative error| < 2e-7 (test_linear.c), 0 below -126 and
// for -inf, NaN for NaN. x is split into an integer n and r, |r| <= 1/2. 2^r is computed as 1 + c1 r + ... + c5 r^5,
// the polynomial of least relative error.
static inline float cpu_exp2f(float x) {
    float shifted = x + 12583039.0f; // 1.5 * 2^23 + 127: the sum's low bits are n + 127, an exponent field
    float r = x - (shifted - 12583039.0f);
    float p = 1.3264727313e-3f;
    p = cpu_fmaf(p, r, 9.6715129912e-3f);
    p = cpu_fmaf(p, r, 5.5507335812e-2f);
    p = cpu_fmaf(p, r, 2.4022242427e-1f);
    p = cpu_fmaf(p, r, 6.9314700365e-1f);
    p = cpu_fmaf(p, r, 1.0f);
    uint32_t power;
    memcpy(&power, &shifted, sizeof power);
    power <<= 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    float y = p * scale;
    return x < -126.0f ? 0.0f : y;
}

// --- matrix product on the calling thread. CpuOperand: a row-major matrix, fp32 or bf16, used as stored or transposed;
// stride: elements from row to row.
typedef struct CpuOperand {
    const void *data;
    int64_t stride;
    bool transposed, bf16;
    const struct CpuFactor *quantized; // NULL: plain
} CpuOperand;

static inline CpuOperand transposed(CpuOperand a) {
    a.transposed = !a.transposed;
    return a;
}

// An operand of a product. rows, depth: shape of its quantized form; right: it is the right factor.
typedef struct CpuFactor {
    Factor factor;
    int64_t rows, depth;
    bool right;
    float values[256]; // value of each number, without its scale
} CpuFactor;

// Block sizes that fit a core's second-level cache. For a tile of C of at most ROWS x COLS, cpu_gemm packs no element
// twice. DEPTH: number of k values summed in registers before C is updated.
enum { CPU_GEMM_ROWS = 256, CPU_GEMM_COLS = 384, CPU_GEMM_DEPTH = 256 };
enum { CPU_GEMM_WORKSPACE = (CPU_GEMM_ROWS + CPU_GEMM_COLS) * CPU_GEMM_DEPTH }; // floats

// Stores op(A) op(B) in C, or adds the product to C if `accumulate`. op(A) is (m, k) and op(B) is (k, n). C is (m, n),
// fp32, with rows `stride` apart. workspace: CPU_GEMM_WORKSPACE floats that belong to this thread. An element of C has
// the same bits for any m, n and strides.
void cpu_gemm(float *workspace, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b, bool accumulate, float *c,
              int64_t stride);

// cpu_gemm_bf16 is cpu_gemm for bf16 operands by oneDNN, with primitives that the thread caches. Returns false, with C
// unchanged, if oneDNN does not support the product. Defined only with oneDNN. cpu_bf16_by_library returns whether
// oneDNN is present and this processor has bf16 multiplication.
bool cpu_bf16_by_library(void);
void cpu_products_destroy(CpuProducts *products); // accepts NULL
bool cpu_gemm_bf16(Backend *be, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b, bool accumulate, float *c,
                   int64_t stride);

// --- the operations: cpu_linear_forward and so on
#define OPERATION(result, name, ...) result cpu_##name(Backend *be, __VA_ARGS__)
#include "backend/operations.h"

bool cpu_linear_by_library(int precision); // returns whether oneDNN computes the products
// Computes one tile on the calling thread: stores op(a) op(b) in C (m, n), or adds the product to C if `accumulate`.
// The rows of C are `stride` apart. workspace: CPU_GEMM_WORKSPACE floats.
void cpu_tile_product(Backend *be, float *workspace, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b,
                      bool accumulate, float *c, int64_t stride);
