// Matrix products by cuBLASLt. Sums are fp32 throughout; the product accumulates into weight gradients, which are fp32.
//
// The kernel of a product is chosen once and cached: cuBLASLt's first suggestion, which is the same on all ranks and at
// every start, or the one that --tune chose (backend/products.h). Other kernels would sum in another order.
//
// cuBLASLt is column-major: it reads a row-major (rows, cols) matrix as its (cols, rows) transpose. So c = a b is
// computed as cT = bT aT, without moving an operand.
//
// cuBLASLt's GELU is the tanh form (documentation of CUBLASLT_EPILOGUE_GELU), and so is ours. A kernel of our own sums
// bias gradients: the product's epilogue can only overwrite a bias gradient, not add to it.
#include "internal.h"
#include "base/clock.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <cublasLt.h>
#include <map>

// Shapes, layout, types, alignment and multiprocessors of a product.
typedef std::array<int64_t, PRODUCT_KEY> MatmulKey;

struct MatmulPlan {
    bool found;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

struct CudaMatmul {
    cublasLtHandle_t handle;
    void *workspace;
    std::map<MatmulKey, MatmulPlan> plans;
    bool varies;           // the rows of the next product vary from step to step: not measured
    cublasStatus_t status; // answer to the last search for a kernel, or to the last kernel that did not run
    char refusal[256];     // message of the first product without a kernel
};

int cuda_matmul_create(CudaBackend *cuda, Error *err) {
    CudaMatmul *matmul = cuda->matmul = new CudaMatmul();
    cuda->backend.library = (int64_t)cublasLtGetVersion();
    cublasStatus_t status = cublasLtCreate(&matmul->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return error_set(err, EXIT_FAILED, "%s: cannot create a cuBLASLt handle: %s", cuda->backend.device,
                         cublasLtGetStatusString(status));
    cudaError_t allocated = cudaMalloc(&matmul->workspace, CUDA_MATMUL_BYTES);
    if (allocated == cudaSuccess) return 0;
    cudaGetLastError();
    return error_set(err, EXIT_FAILED, "%s: cannot allocate %d MiB of workspace for cuBLASLt: %s%s",
                     cuda->backend.device, CUDA_MATMUL_BYTES >> 20, cudaGetErrorString(allocated), cuda_remedy());
}

void cuda_matmul_destroy(CudaBackend *cuda) {
    CudaMatmul *matmul = cuda->matmul;
    if (matmul == NULL) return;
    for (auto &entry : matmul->plans) {
        if (entry.second.product != NULL) cublasLtMatmulDescDestroy(entry.second.product);
        for (cublasLtMatrixLayout_t layout : {entry.second.a, entry.second.b, entry.second.c})
            if (layout != NULL) cublasLtMatrixLayoutDestroy(layout);
    }
    if (matmul->handle != NULL) cublasLtDestroy(matmul->handle);
    cudaFree(matmul->workspace);
    delete matmul;
    cuda->matmul = NULL;
}

// --- plans

// Returns the largest power of two that divides an address, at most 256, the largest alignment cuBLASLt considers.
static uint32_t alignment_(const void *address) {
    uintptr_t at = (uintptr_t)address | 256;
    return (uint32_t)(at & (~at + 1));
}

static double flops_(const CudaProduct *p) {
    return 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)std::max(p->batch, (int64_t)1);
}

// Returns the number of multiprocessors that the kernel of a product is chosen for; 0: all.
//
// Collectives in flight occupy COMPUTE_CTAS multiprocessors. A kernel chosen for the remaining multiprocessors may take
// all / remaining times as long. If a kernel is chosen for all, its last blocks may have to wait until the collectives
// end. So a product uses the remaining multiprocessors if the added time is less than the time that the collectives
// still need, or if that time is unknown. Work queued since the collectives started reduces that time: the gather of
// norm1's output starts before the backward of attention and ends long before the next product. Gathers of weights over
// data ranks are counted alike, from a step's first forward on (stage.c). Sums over data ranks count until the backward
// ends: their real end depends on the network, but the choice of kernels must not. If messages between nodes hold their
// blocks for much of a step, the other products leave LINK_CTAS free; the configuration decides (counted_moves).
static int32_t matmul_sms_(const CudaBackend *cuda, const CudaProduct *p) {
    const bool collects = cuda->collective_flops > 0;
    const int64_t kept = cuda_ctas(cuda, collects ? COMPUTE_CTAS : BESIDE_CTAS), others = cuda->multiprocessors - kept;
    const int64_t unmoved = cuda->multiprocessors - cuda_ctas(cuda, LINK_CTAS);
    const double flight = std::max(cuda->collective_flops, cuda->backend.gathering);
    bool loses_more = flops_(p) * (double)kept > flight * (double)others;
    bool leaves = cuda->backend.summing || (flight > 0 && !loses_more);
    if (!leaves) return cuda->backend.moving && unmoved > 0 ? (int32_t)unmoved : 0;
    return others > 0 ? (int32_t)others : 0;
}

static MatmulKey matmul_key_(const CudaBackend *cuda, const CudaProduct *p) {
    return MatmulKey{p->m,
                     p->n,
                     p->k,
                     p->lda,
                     p->ldb,
                     p->ldc,
                     p->batch,
                     p->stride_a,
                     p->stride_b,
                     p->stride_c,
                     p->transpose_a,
                     p->transpose_b,
                     p->wide,
                     p->accumulate,
                     p->epilogue,
                     p->bias != NULL,
                     alignment_(p->a),
                     alignment_(p->b),
                     alignment_(p->c),
                     p->aux == NULL ? 0 : (int64_t)alignment_(p->aux),
                     cuda_is_bf16(&cuda->backend),
                     matmul_sms_(cuda, p),
                     p->kind_a,
                     p->kind_b};
}

static cudaDataType_t input_type_(const CudaBackend *cuda) {
    return cuda_is_bf16(&cuda->backend) ? CUDA_R_16BF : CUDA_R_32F;
}

static cudaDataType_t operand_type_(const CudaBackend *cuda, int kind) {
    if (kind == FACTOR_PLAIN) return input_type_(cuda);
    return kind == FACTOR_E5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

static bool ok_(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

template <typename T>
static bool matmul_describe_(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, T value) {
    return ok_(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value));
}

template <typename T>
static bool prefer_(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return ok_(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

// Describes a row-major (rows, cols) matrix.
static bool layout_(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride,
                    int64_t batch, int64_t batch_stride) {
    if (!ok_(cublasLtMatrixLayoutCreate(layout, type, (uint64_t)cols, (uint64_t)rows, stride))) return false;
    if (batch <= 1) return true;
    int32_t count = (int32_t)batch;
    return ok_(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count)) &&
           ok_(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                                sizeof batch_stride));
}

#if CUBLAS_VERSION >= 120900
static cublasLtMatmulMatrixScale_t scale_mode_(int kind) {
    if (kind == FACTOR_ROWS_128) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    if (kind == FACTOR_BLOCKS_128) return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    return kind == FACTOR_ROWS_32 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}
#endif

// Describes 8-bit operands. Hopper's fast accumulation keeps fewer bits of partial sums. Forward products with one
// scale per matrix use it; products of gradients (E5M2) and products with block scales do not. Transformer Engine does
// the same (common/recipe and module/_common: _2X_ACC_FPROP false, _2X_ACC_DGRAD and _2X_ACC_WGRAD true).
static bool describe_quantized_(const CudaProduct *p, MatmulPlan *plan) {
    int8_t fast = p->kind_a == FACTOR_E4M3 && p->kind_b == FACTOR_E4M3;
    if (p->kind_a == FACTOR_PLAIN) return true;
#if CUBLAS_VERSION >= 120900
    if (!matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, (int32_t)scale_mode_(p->kind_b)) ||
        !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, (int32_t)scale_mode_(p->kind_a)))
        return false;
#else
    if (p->kind_a > FACTOR_E5M2) return false;
#endif
    return matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
}

// Describes a product without the addresses of bias, aux and scales, which are set before every call (point_).
static bool describe_product_(const CudaBackend *cuda, const CudaProduct *p, MatmulPlan *plan) {
    if (!ok_(cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F))) return false;
    // "Optimizes heuristics for execution on a different number of SMs when user expects a concurrent stream to be
    // using some of the device resources" (cublasLt.h). Transformer Engine and PyTorch set it for the same purpose.
    int32_t sms = matmul_sms_(cuda, p);
    if (sms > 0 && !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms)) return false;
    cublasOperation_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (!matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, first) ||
        !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, second) || !describe_quantized_(p, plan))
        return false;
    if (p->epilogue == 0) return true;
    if (!matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, (cublasLtEpilogue_t)p->epilogue)) return false;
    if (p->bias != NULL &&
        !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)input_type_(cuda)))
        return false;
    if (p->aux == NULL) return true;
    return matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->ldc) &&
           (p->batch <= 1 ||
            matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p->stride_c));
}

static bool point_(const CudaProduct *p, MatmulPlan *plan) {
    if (p->kind_a != FACTOR_PLAIN &&
        (!matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p->scales_b) ||
         !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p->scales_a)))
        return false;
    if (p->bias != NULL && !matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias)) return false;
    return p->aux == NULL || matmul_describe_(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux);
}

// Partial sums of a split product are kept in fp32 (COMPUTE_TYPE). By default cuBLASLt may also store them in the
// output's type (OUTPUT_TYPE), or add them in place (INPLACE), without a guaranteed order.
static const uint32_t REDUCTIONS = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

static cublasStatus_t multiply_(CudaBackend *cuda, const CudaProduct *p, MatmulPlan *plan);

// Runs the suggestions for a product in turns, so that clock and heat are alike for all, for about 10 ms a turn, and
// stores the median of their times. The plan keeps the first.
static void measure_(CudaBackend *cuda, const CudaProduct *p, const MatmulKey &key, MatmulPlan *plan,
                     const cublasLtMatmulHeuristicResult_t *result, int found) {
    enum { TURNS = 5 };
    ProductKernels product = {};
    double turns[PRODUCT_CANDIDATES][TURNS];
    std::copy(key.begin(), key.end(), product.key);
    product.candidates = found;
    int64_t each = 1;
    cudaStreamSynchronize(cuda_compute(cuda));
    for (int turn = -2; turn < TURNS; turn++) { // the first loads the kernels, the second finds how long they take
        double longest = 1e-6;
        for (int i = 0; i < found; i++) {
            bool runs = true;
            plan->algorithm = result[i].algo;
            double began = clock_seconds();
            for (int64_t k = 0; runs && k < each; k++) runs = ok_(multiply_(cuda, p, plan));
            cudaStreamSynchronize(cuda_compute(cuda));
            double seconds = (clock_seconds() - began) / (double)each;
            turns[i][std::max(turn, 0)] = runs ? seconds : INFINITY;
            if (runs) longest = std::max(longest, seconds);
        }
        if (turn == -1) each = std::min((int64_t)(0.01 / longest) + 1, (int64_t)1000);
    }
    for (int i = 0; i < found; i++) {
        std::sort(turns[i], turns[i] + TURNS);
        product.seconds[i] = turns[i][TURNS / 2];
        memcpy(product.algorithm[i], &result[i].algo, sizeof product.algorithm[i]);
    }
    cudaGetLastError();
    plan->algorithm = result[0].algo;
    products_add(cuda->backend.products, &product);
}

// Stores in the plan the kernel that --tune chose, else the one that cuBLASLt ranks first. Returns false if there is no
// kernel.
static bool suggest_(CudaBackend *cuda, const CudaProduct *p, const MatmulKey &key, MatmulPlan *plan) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(ProductKernels::algorithm[0]), "a kernel is stored whole");
    CudaMatmul *matmul = cuda->matmul;
    const ProductChoices *products = cuda->backend.products;
    bool measures = products != NULL && products->measures && !matmul->varies;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result[PRODUCT_CANDIDATES], checked;
    int found = 0;
    if (!ok_(cublasLtMatmulPreferenceCreate(&preference))) return false;
    bool asked = prefer_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)CUDA_MATMUL_BYTES) &&
                 prefer_(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCTIONS) &&
                 prefer_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_(p->b)) &&
                 prefer_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_(p->a)) &&
                 prefer_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_(p->c)) &&
                 prefer_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_(p->c)) &&
                 ok_(matmul->status = cublasLtMatmulAlgoGetHeuristic(
                         matmul->handle, plan->product, plan->a, plan->b, plan->c, plan->c, preference,
                         measures ? PRODUCT_CANDIDATES : 1, result, &found));
    cublasLtMatmulPreferenceDestroy(preference);
    if (!asked || found == 0) return false;
    plan->algorithm = result[0].algo;
    if (measures) measure_(cuda, p, key, plan, result, found);
    const ProductKernels *chosen = products == NULL || products->measures ? NULL : products_find(products, key.data());
    if (chosen == NULL) return true;
    memcpy(&result[0].algo, chosen->algorithm[0], sizeof result[0].algo);
    if (ok_(cublasLtMatmulAlgoCheck(matmul->handle, plan->product, plan->a, plan->b, plan->c, plan->c, &result[0].algo,
                                    &checked)) &&
        checked.workspaceSize <= CUDA_MATMUL_BYTES)
        plan->algorithm = result[0].algo;
    return true;
}

static MatmulPlan matmul_make_plan_(CudaBackend *cuda, const CudaProduct *p, const MatmulKey &key) {
    MatmulPlan plan = {};
    cuda->matmul->status = CUBLAS_STATUS_NOT_SUPPORTED; // if cuBLASLt is not asked: it cannot describe the product
    int64_t b_rows = p->transpose_b ? p->n : p->k, a_rows = p->transpose_a ? p->k : p->m;
    plan.found =
        describe_product_(cuda, p, &plan) && point_(p, &plan) &&
        layout_(&plan.a, operand_type_(cuda, p->kind_b), b_rows, p->n + p->k - b_rows, p->ldb, p->batch, p->stride_b) &&
        layout_(&plan.b, operand_type_(cuda, p->kind_a), a_rows, p->m + p->k - a_rows, p->lda, p->batch, p->stride_a) &&
        layout_(&plan.c, p->wide ? CUDA_R_32F : input_type_(cuda), p->m, p->n, p->ldc, p->batch, p->stride_c) &&
        suggest_(cuda, p, key, &plan);
    return plan;
}

// --- products

static cublasStatus_t multiply_(CudaBackend *cuda, const CudaProduct *p, MatmulPlan *plan) {
    CudaMatmul *matmul = cuda->matmul;
    const float alpha = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    if (!point_(p, plan)) return CUBLAS_STATUS_INVALID_VALUE;
    return cublasLtMatmul(matmul->handle, plan->product, &alpha, p->b, plan->a, p->a, plan->b, &beta, p->c, plan->c,
                          p->c, plan->c, &plan->algorithm, matmul->workspace, CUDA_MATMUL_BYTES, cuda_compute(cuda));
}

// Queues a product. Returns 0, or -1 if cuBLASLt cannot run it; then nothing is queued and no failure is recorded.
static int product_try_(CudaBackend *cuda, const CudaProduct *p) {
    CudaMatmul *matmul = cuda->matmul;
    MatmulKey key = matmul_key_(cuda, p);
    auto known = matmul->plans.find(key);
    if (known == matmul->plans.end()) known = matmul->plans.emplace(key, matmul_make_plan_(cuda, p, key)).first;
    MatmulPlan *plan = &known->second;
    if (plan->found && !ok_(matmul->status = multiply_(cuda, p, plan))) {
        plan->found = false;
        cudaGetLastError(); // clears the error, which the next kernel launch would report
    }
    if (plan->found) cuda_beside(cuda, flops_(p));
    return plan->found ? 0 : -1;
}

// --- products of a model

void cuda_product(CudaBackend *cuda, const CudaProduct *product) {
    if (product_try_(cuda, product) == 0) return;
    cuda_note(cuda, cudaFree(NULL), "a matrix product"); // reports a lost GPU, which also makes products fail
    if (cuda->failed_at != NULL) return;
    CudaMatmul *matmul = cuda->matmul;
    snprintf(
        matmul->refusal, sizeof matmul->refusal,
        "cuBLASLt has no kernel for a matrix product of this model, %lld x %lld x %lld: %s; use another version of "
        "cuBLAS%s",
        (long long)product->m, (long long)product->n, (long long)product->k, cublasLtGetStatusString(matmul->status),
        product->kind_a == FACTOR_PLAIN ? "" : ", or train.fp8 off");
    cuda_refuse(cuda, matmul->refusal);
}

// Describes c (m, n) = a b without gaps between rows. Quantized operands are (m, k) and (n, k).
static CudaProduct product_of_(void *c, Factor a, bool transpose_a, Factor b, bool transpose_b, int64_t m, int64_t n,
                               int64_t k) {
    CudaProduct p = {};
    p.m = m, p.n = n, p.k = k;
    p.a = a.data, p.b = b.data, p.c = c;
    p.kind_a = a.kind, p.kind_b = b.kind;
    p.scales_a = a.scales, p.scales_b = b.scales;
    p.transpose_a = transpose_a && a.kind == FACTOR_PLAIN, p.transpose_b = transpose_b || a.kind != FACTOR_PLAIN;
    p.lda = p.transpose_a ? m : k, p.ldb = p.transpose_b ? k : n, p.ldc = n;
    p.batch = 1;
    return p;
}

// Describes y = x wT. Blocks of rows form a batch; all its products read the same w (stride 0) and bias.
static CudaProduct matmul_forward_(void *y, Factor x, Factor w, const RowBlocks *blocks, int64_t in, int64_t out) {
    CudaProduct p = product_of_(y, x, false, w, true, blocks->rows, out, in);
    p.batch = blocks->count;
    if (p.batch > 1) p.stride_a = blocks->x_stride * in, p.stride_c = blocks->y_stride * out;
    return p;
}

// Computes a forward product, with a fused epilogue where possible. 8-bit products have no GELU epilogue.
static void matmul_product_(Backend *be, void *y, void *aux, Factor x, Factor w, const void *bias,
                            const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue) {
    CudaBackend *cuda = cuda_self(be);
    bool gelu = epilogue == EPILOGUE_GELU;
    CudaProduct fused = matmul_forward_(y, x, w, blocks, in, out);
    // No preference names a bias, of which kernels read 16 bytes at once (PyTorch, pull request 194497).
    assert(bias == NULL || alignment_(bias) >= 16);
    fused.bias = bias;
    fused.aux = gelu ? aux : NULL;
    if (gelu) fused.epilogue = bias != NULL ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    else if (bias != NULL) fused.epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (!(gelu && x.kind != FACTOR_PLAIN) && product_try_(cuda, &fused) == 0) return;
    CudaProduct plain = matmul_forward_(gelu ? aux : y, x, w, blocks, in, out);
    cuda_product(cuda, &plain);
    for (int64_t i = 0; i < blocks->count; i++) {
        int64_t at = i * blocks->y_stride * out * be->element;
        if (bias != NULL) cuda_bias_add(be, (char *)plain.c + at, bias, blocks->rows, out);
        if (gelu) cuda_gelu_forward(be, (char *)y + at, (char *)aux + at, blocks->rows * out);
    }
}

void cuda_linear_forward_blocks(Backend *be, void *y, void *aux, const void *x, const void *w, const void *bias,
                                const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue) {
    matmul_product_(be, y, aux, factor_plain(x), factor_plain(w), bias, blocks, in, out, epilogue);
}

void cuda_linear_forward(Backend *be, void *y, void *aux, Factor x, Factor w, const void *bias, int64_t rows,
                         int64_t in, int64_t out, Epilogue epilogue) {
    const RowBlocks whole = {1, rows, 0, 0};
    matmul_product_(be, y, aux, x, w, bias, &whole, in, out, epilogue);
}

void cuda_linear_backward_input(Backend *be, void *dx, const void *aux, Factor dy, Factor w, int64_t rows, int64_t in,
                                int64_t out, Epilogue epilogue) {
    CudaBackend *cuda = cuda_self(be);
    bool gelu = epilogue == EPILOGUE_GELU;
    CudaProduct plain = product_of_(dx, dy, false, w, false, rows, in, out);
    CudaProduct fused = plain;
    if (gelu) {
        fused.aux = const_cast<void *>(aux);
        fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
    }
    if (!(gelu && dy.kind != FACTOR_PLAIN) && product_try_(cuda, &fused) == 0) return;
    cuda_product(cuda, &plain);
    if (gelu) cuda_gelu_backward(be, dx, dx, aux, rows * in);
}

void cuda_linear_backward_weight(Backend *be, float *dw, float *dbias, Factor dy, Factor x, int64_t rows, int64_t in,
                                 int64_t out, bool adds) {
    CudaProduct p = product_of_(dw, dy, true, x, false, out, in, rows);
    p.accumulate = adds, p.wide = true;
    cuda_product(cuda_self(be), &p);
    if (dbias != NULL) cuda_column_sums(be, dbias, dy.source, rows, out);
}

// --- experts: one product after another, each with the weights of one expert

void cuda_router_forward(Backend *be, float *logits, const void *x, const void *w, int64_t rows, int64_t hidden,
                         int64_t experts) {
    const RowBlocks whole = {1, rows, 0, 0};
    CudaProduct p = matmul_forward_(logits, factor_plain(x), factor_plain(w), &whole, hidden, experts);
    p.wide = true;
    cuda_product(cuda_self(be), &p);
}

// Calls product(n, row, rows) for each expert n with rows. Their number varies from step to step, so --tune does not
// measure these products, and a rehearsal runs them with few, more and all rows: cuBLASLt has kernels of several sizes.
template <typename Product>
static void each_expert_(Backend *be, const int64_t *first, int64_t experts, Product product) {
    const int64_t all = first[experts];
    cuda_self(be)->matmul->varies = true;
    for (int64_t rows = 1; be->rehearses && rows < 2 * all; rows *= 2) product(0, 0, std::min(rows, all));
    for (int64_t n = 0; n < experts; n++)
        if (first[n + 1] > first[n]) product(n, first[n], first[n + 1] - first[n]);
    cuda_self(be)->matmul->varies = false;
}

static Factor rows_(const Backend *be, const void *x, int64_t row, int64_t cols) {
    return factor_plain((const char *)x + row * cols * be->element);
}

void cuda_experts_forward(Backend *be, void *y, const void *x, const void *w, int64_t stride, const int64_t *first,
                          int64_t experts, int64_t in, int64_t out) {
    each_expert_(be, first, experts, [=](int64_t n, int64_t row, int64_t rows) {
        cuda_linear_forward(be, (void *)rows_(be, y, row, out).data, NULL, rows_(be, x, row, in),
                            rows_(be, w, n, stride), NULL, rows, in, out, EPILOGUE_NONE);
    });
}

void cuda_experts_backward_input(Backend *be, void *dx, const void *dy, const void *w, int64_t stride,
                                 const int64_t *first, int64_t experts, int64_t in, int64_t out) {
    each_expert_(be, first, experts, [=](int64_t n, int64_t row, int64_t rows) {
        cuda_linear_backward_input(be, (void *)rows_(be, dx, row, in).data, NULL, rows_(be, dy, row, out),
                                   rows_(be, w, n, stride), rows, in, out, EPILOGUE_NONE);
    });
}

void cuda_experts_backward_weight(Backend *be, float *dw, int64_t stride, const void *dy, const void *x,
                                  const int64_t *first, int64_t experts, int64_t in, int64_t out) {
    each_expert_(be, first, experts, [=](int64_t n, int64_t row, int64_t rows) {
        cuda_linear_backward_weight(be, dw + n * stride, NULL, rows_(be, dy, row, out), rows_(be, x, row, in), rows, in,
                                    out, true);
    });
}
