// Matrix products as cuBLASLt describes them (cuBLAS documentation, "Using the cuBLASLt API"): column-major layouts,
// D = epilogue(alpha * op(A) op(B) + beta * C). Sums are computed in double, so that differences from the CPU are due
// to the program. The heuristic has only the documented rules: it cannot tell whether NVIDIA has a kernel for a shape.
//
// A product of few results and many terms is split among blocks, whose sums are then added (CUBLASLT_ALGO_CONFIG_
// SPLITK_NUM). CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE: "Intermediate results are stored in output type", and the mask of
// the preference allows all schemes by default.
#include "virtual.h"
#include "backend/factor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cublasLt.h>
#include <functional>
#include <map>
#include <thread>

using namespace virtual_gpu;

struct VirtualLt {
    int alive;
};

struct VirtualProduct {
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    void *aux = nullptr;
    int64_t aux_leading = 0, aux_stride = 0;
    int32_t bias_type = -1; // -1: the type of D
    int32_t multiprocessors = 0;
    const void *a_scale = nullptr, *b_scale = nullptr; // on the device, read by the product
    int32_t a_mode = 0, b_mode = 0;
    int8_t fast = 0;
};

struct VirtualLayout {
    cudaDataType_t type;
    int64_t rows, columns, leading;
    int32_t batch = 1;
    int64_t stride = 0;
};

struct VirtualPreference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

enum : uint64_t { ALGORITHM = 0x6c746d61 };

// "CUBLASLT_EPILOGUE_GELU: GELU ... approximation by tanh".
const double ROOT = 0.79788456080286535588, CUBE = 0.044715;

double gelu(double x) { return 0.5 * x * (1.0 + tanh(ROOT * (x + CUBE * x * x * x))); }

double gelu_slope(double x) {
    double t = tanh(ROOT * (x + CUBE * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * ROOT * (1.0 + 3.0 * CUBE * x * x);
}

struct Call {
    VirtualProduct product;
    VirtualLayout a, b, c;
    const void *a_data, *b_data;
    void *d;
    float alpha, beta;
    int64_t m = 0, n = 0, k = 0;
    bool split = false;                // k is summed in parts, which are then added
    cudaDataType_t parts = CUDA_R_32F; // type in which they are stored
};

bool narrow(const VirtualLayout &l) { return width_of(l.type) == 1; }

// Returns an 8-bit operand as a Factor: each column of the layout is a row of the Factor.
Factor factor_of(const VirtualLayout &l, const void *data, const void *scales, int mode) {
    int kind = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F       ? FACTOR_ROWS_128
               : mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? FACTOR_BLOCKS_128
               : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0    ? FACTOR_ROWS_32
               : l.type == CUDA_R_8F_E5M2                            ? FACTOR_E5M2
                                                                     : FACTOR_E4M3;
    return Factor{data, scales, nullptr, kind};
}

Factor factor_a(const Call &call) { return factor_of(call.a, call.a_data, call.product.a_scale, call.product.a_mode); }

Factor factor_b(const Call &call) { return factor_of(call.b, call.b_data, call.product.b_scale, call.product.b_mode); }

void touch_scales(const Access &access, const Factor &f, const VirtualLayout &l) {
    if (!narrow(l)) return;
    bool one = f.kind == FACTOR_E4M3 || f.kind == FACTOR_E5M2;
    touch(access, f.scales, one ? 4 : factor_scale_bytes(f.kind, l.columns, l.rows), false);
}

// "Fill out of bounds values with zeroes" (cuBLAS documentation, "1D Block Scaling Factors Layout"): UE8M0 scales past
// the last row or column lie in the last tiles, and NaN among them reaches every sum.
void check_padding(const Factor &f, const VirtualLayout &l) {
    for (int64_t row = 0; f.kind == FACTOR_ROWS_32 && row < (l.columns + 127) / 128 * 128; row++)
        for (int64_t col = row < l.columns ? l.rows : 0; col < (l.rows + 127) / 128 * 128; col += 32)
            if (((const uint8_t *)f.scales)[factor_scale_place(f.kind, l.columns, l.rows, row, col)] != 0)
                defect("an operand (%lld, %lld) has a scale other than 0 at (%lld, %lld), outside of it",
                       (long long)l.columns, (long long)l.rows, (long long)row, (long long)col);
}

// Returns the rule for operands of 8 bits that a product breaks; NULL: none. "Requirements to use FP8 kernels" of
// cublasLtMatmul: dimensions and pointers of 16 bytes, A transposed and B not on compute capability 9.0, no E5M2 times
// E5M2; "1D and 2D Block Scaling": not both operands by blocks of 128 x 128, E4M3 alone, on 9.0; UE8M0 from 10.0 on.
const char *broken_rule(const VirtualProduct *p, const VirtualLayout *a, const VirtualLayout *b, const VirtualLayout *c,
                        int generation) {
    if (!narrow(*a) && !narrow(*b)) return nullptr;
    const int blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, mx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    bool wide = c->type == CUDA_R_32F || c->type == CUDA_R_16BF;
    if (!narrow(*a) || !narrow(*b)) return "one operand of 8 bits and one of more";
    if (p->a != CUBLAS_OP_T || p->b != CUBLAS_OP_N) return "operands that are not TN";
    if (a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2) return "E5M2 times E5M2";
    if (a->rows % 16 != 0 || a->columns % 16 != 0 || b->columns % 16 != 0 || a->leading % 16 != 0 ||
        b->leading % 16 != 0 || !wide)
        return "a dimension that is no multiple of 16, or another type of C than bf16 and fp32";
    if (p->a_scale == nullptr || p->b_scale == nullptr) return "no scales";
    if (p->a_mode == blocks && p->b_mode == blocks) return "blocks of 128 x 128 in both operands";
    if ((p->a_mode == mx) != (p->b_mode == mx)) return "UE8M0 scales in one operand alone";
    if (p->a_mode == mx) return generation < 100 ? "UE8M0 scales before compute capability 10.0" : nullptr;
    if ((p->a_mode == 0) != (p->b_mode == 0)) return "scales of blocks in one operand alone";
    if (p->a_mode != 0 && generation != 90) return "fp32 scales of blocks on another compute capability than 9.0";
    if (p->a_mode != 0 && p->fast != 0) return "fast accumulation with scales of blocks";
    return nullptr;
}

void declare(const Access &access, const Call &call) {
    touch_scales(access, factor_a(call), call.a);
    touch_scales(access, factor_b(call), call.b);
    const VirtualLayout *layouts[] = {&call.a, &call.b};
    const void *data[] = {call.a_data, call.b_data};
    int64_t batches = call.c.batch;
    for (int64_t i = 0; i < batches; i++) {
        for (int o = 0; o < 2; o++) {
            const VirtualLayout *l = layouts[o];
            int64_t w = width_of(l->type);
            touch_rows(access, (const char *)data[o] + i * l->stride * w, l->columns, l->rows * w, l->leading * w,
                       false);
        }
        int64_t w = width_of(call.c.type);
        char *d = (char *)call.d + i * call.c.stride * w;
        if (call.beta != 0.0f) touch_rows(access, d, call.n, call.m * w, call.c.leading * w, false);
        touch_rows(access, d, call.n, call.m * w, call.c.leading * w, true);
    }
    const VirtualProduct &p = call.product;
    int64_t w = width_of(call.c.type);
    if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        touch(access, p.bias, call.m * width_of((cudaDataType_t)p.bias_type), false);
    for (int64_t i = 0; p.aux != nullptr && i < batches; i++)
        touch_rows(access, (char *)p.aux + i * p.aux_stride * w, call.n, call.m * w, p.aux_leading * w,
                   p.epilogue != CUBLASLT_EPILOGUE_DGELU);
}

double after(const Call &call, int64_t batch, double value, int64_t row, int64_t column) {
    const VirtualProduct &p = call.product;
    cudaDataType_t type = call.c.type;
    int64_t at = batch * p.aux_stride + column * p.aux_leading + row;
    switch (p.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return value + number_at(p.bias, row, (cudaDataType_t)p.bias_type);
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        value += number_at(p.bias, row, (cudaDataType_t)p.bias_type);
        put_number(p.aux, at, type, value);
        return gelu(value);
    case CUBLASLT_EPILOGUE_GELU_AUX: put_number(p.aux, at, type, value); return gelu(value);
    case CUBLASLT_EPILOGUE_DGELU: return value * gelu_slope(number_at(p.aux, at, type));
    default: return value;
    }
}

// op(A) as (k, m) doubles: a column of D is then a sum of its rows.
std::vector<double> spread(const Call &call, int64_t batch) {
    std::vector<double> a((size_t)(call.k * call.m));
    const char *data = (const char *)call.a_data + batch * call.a.stride * width_of(call.a.type);
    bool turned = call.product.a == CUBLAS_OP_T;
    Factor factor = factor_a(call);
    for (int64_t i = 0; i < call.k; i++)
        for (int64_t row = 0; row < call.m; row++) {
            double &to = a[(size_t)(i * call.m + row)];
            to = number_at(data, turned ? row * call.a.leading + i : i * call.a.leading + row, call.a.type);
            if (narrow(call.a)) to *= factor_scale(&factor, call.m, call.k, row, i);
        }
    return a;
}

enum { PARTS = 4 };

double rounded(double value, cudaDataType_t type) {
    double stored = 0.0;
    put_number(&stored, 0, type, value);
    return number_at(&stored, 0, type);
}

// Adds what was summed since the last part to `parts`, in their type.
void end_part(const Call &call, std::vector<double> *sum, std::vector<double> *parts) {
    for (size_t row = 0; row < sum->size(); row++) {
        (*parts)[row] = rounded((*parts)[row] + rounded((*sum)[row], call.parts), call.parts);
        (*sum)[row] = 0.0;
    }
}

void multiply(const Call &call, int64_t batch) {
    std::vector<double> a = spread(call, batch), sum((size_t)call.m), parts((size_t)call.m);
    const char *b = (const char *)call.b_data + batch * call.b.stride * width_of(call.b.type);
    char *d = (char *)call.d + batch * call.c.stride * width_of(call.c.type);
    bool turned = call.product.b == CUBLAS_OP_T;
    Factor factor = factor_b(call);
    for (int64_t column = 0; column < call.n; column++) {
        for (double &value : sum) value = 0.0;
        for (int64_t i = 0; i < call.k; i++) {
            double x = number_at(b, turned ? i * call.b.leading + column : column * call.b.leading + i, call.b.type);
            if (narrow(call.b)) x *= factor_scale(&factor, call.n, call.k, column, i);
            const double *__restrict__ from = a.data() + i * call.m;
            double *__restrict__ to = sum.data();
            for (int64_t row = 0; row < call.m; row++) to[row] += x * from[row];
            if (call.split && (i + 1) % (call.k / PARTS) == 0) end_part(call, &sum, &parts);
        }
        if (call.split) {
            end_part(call, &sum, &parts);
            std::swap(sum, parts);
            for (double &value : parts) value = 0.0;
        }
        for (int64_t row = 0; row < call.m; row++) {
            int64_t at = column * call.c.leading + row;
            double value = (double)call.alpha * sum[(size_t)row];
            if (call.beta != 0.0f) value += (double)call.beta * number_at(d, at, call.c.type);
            put_number(d, at, call.c.type, after(call, batch, value, row, column));
        }
    }
}

bool has_aux(int epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
}

uint32_t aligned(const void *memory) {
    uintptr_t at = (uintptr_t)memory | 256;
    return (uint32_t)(at & (~at + 1));
}

// Returns whether the product meets the documented requirements of cublasLtMatmul and its attributes. Sets m, n and k.
bool consistent(const VirtualProduct *p, const VirtualLayout *a, const VirtualLayout *b, const VirtualLayout *c,
                int64_t *m, int64_t *n, int64_t *k) {
    *m = p->a == CUBLAS_OP_N ? a->rows : a->columns;
    *k = p->a == CUBLAS_OP_N ? a->columns : a->rows;
    *n = p->b == CUBLAS_OP_N ? b->columns : b->rows;
    int64_t other = p->b == CUBLAS_OP_N ? b->rows : b->columns;
    bool types = a->type == b->type || (narrow(*a) && narrow(*b));
    return *k == other && c->rows == *m && c->columns == *n && types && a->batch == c->batch && b->batch == c->batch &&
           a->leading >= a->rows && b->leading >= b->rows && c->leading >= c->rows;
}

// CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: "must be divisible by 8 and no less than the number of rows in the output
// matrix"; CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: aligned to 16 bytes.
bool aux_allowed(const VirtualProduct *p, int64_t m) {
    return !has_aux(p->epilogue) || (p->aux_leading % 8 == 0 && p->aux_leading >= m && aligned(p->aux) >= 16);
}

// --- algorithms

// The suggestions for a product: the first, one that sums in parts of fp32, and one that fails when it runs.
enum : uint64_t { IN_PARTS = 1, FAILS = 2, SUGGESTIONS = 3 };

uint64_t shape_mark(int64_t m, int64_t n, int64_t k) { return (uint64_t)m ^ (uint64_t)n << 20 ^ (uint64_t)k << 40; }

bool made_for(const uint64_t *algorithm, const VirtualProduct *product, int64_t m, int64_t n, int64_t k) {
    return algorithm[0] == ALGORITHM && algorithm[5] == (uint64_t)product->epilogue &&
           algorithm[6] == shape_mark(m, n, k);
}

// Returns the class of an extent that chooses a kernel: the heuristic picks a tile by the matrix's size, up to 256.
int tiles(int64_t extent) {
    int bits = 0;
    while (bits < 8 && (int64_t)1 << bits < extent) bits++;
    return bits;
}

bool splits(int64_t m, int64_t n, int64_t k, const VirtualPreference *preference) {
    return (preference->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0 && k >= 16 * std::max(m, n);
}

// Returns how many times as long a product takes: VIRTUAL_SLOW's factor, and at random up to VIRTUAL_JITTER more, one
// in fifty up to 20 times that.
double longer() {
    static uint64_t drawn = options().seed * 6364136223846793005ull + (uint64_t)process();
    drawn = drawn * 6364136223846793005ull + 1442695040888963407ull;
    double share = (double)(drawn >> 11) / (double)(1ull << 53);
    return slower("product", process()) + options().jitter * (share < 0.02 ? 1000 * share : share);
}

// From Hopper on kernels of products are persistent: each block computes tiles until none are left. Ampere's have a
// block for each tile.
void take_time(Op *op, const Call &call) {
    enum { FIRST_PERSISTENT = 90 };
    const Cost *cost = &dry_figures().cost;
    bool shared = call.c.batch > 1 && call.a.stride == 0; // then they fill the device like one product
    int64_t count = shared ? 1 : call.c.batch, columns = shared ? call.n * call.c.batch : call.n;
    int all = dry_figures().multiprocessors, target = call.product.multiprocessors;
    op->dry.sharing = dry_figures().capability >= FIRST_PERSISTENT ? SHARING_OWNS : SHARING_SPREAD;
    op->dry.blocks = op->dry.sharing == SHARING_OWNS && target > 0 ? target : all;
    bool gradient = call.c.type == CUDA_R_32F && call.a.type != CUDA_R_32F;
    int64_t loop = dry_figures().experts; // of the price of a loop over experts, a product has an equal part
    double seconds, waves = cost_waves(cost, (double)count, call.m, columns, op->dry.blocks);
    if (loop > 0) {
        seconds = gradient ? cost_experts(cost, call.k * loop, loop, call.m, call.n, 8, true)
                           : cost_experts(cost, call.n * loop, loop, call.m, call.k, 2, false);
        seconds /= (double)loop;
        if (loop > 1) waves = (double)all / op->dry.blocks;
    } else {
        seconds = narrow(call.a) ? cost_product_fp8(cost, call.m, columns, call.k)
                                 : cost_product(cost, (double)count, call.m, columns, call.k);
        if (gradient && call.beta != 0.0f)
            seconds += cost_adding(cost, (double)count * (double)call.m * (double)columns);
    }
    op->dry.seconds = seconds * longer() * waves;
    if (has_aux(call.product.epilogue)) op->dry.seconds += cost_pass(cost, 2.0 * (double)(count * call.m * columns));
}

struct Attribute {
    int name;
    void *to;
    size_t bytes;
};

cublasStatus_t set_attribute(const std::vector<Attribute> &known, int name, const void *value, size_t bytes) {
    for (const Attribute &each : known)
        if (each.name == name && each.bytes == bytes) return memcpy(each.to, value, bytes), CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_INVALID_VALUE;
}

} // namespace

extern "C" {

size_t cublasLtGetVersion(void) { return 130100 + (getenv("VIRTUAL_CUBLAS") != nullptr ? (size_t)node() : 0); }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    if (sticky() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new VirtualLt{1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t, cudaDataType_t) {
    *product = new VirtualProduct();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    return set_attribute({{CUBLASLT_MATMUL_DESC_TRANSA, &p->a, 4},
                          {CUBLASLT_MATMUL_DESC_TRANSB, &p->b, 4},
                          {CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, 4},
                          {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, 8},
                          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, 8},
                          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->aux_leading, 8},
                          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &p->aux_stride, 8},
                          {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &p->multiprocessors, 4},
                          {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->a_scale, 8},
                          {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->b_scale, 8},
                          {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &p->a_mode, 4},
                          {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &p->b_mode, 4},
                          {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &p->fast, 1},
                          {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &p->bias_type, 4}},
                         attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    *layout = new VirtualLayout{type, (int64_t)rows, (int64_t)columns, leading};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    return set_attribute({{CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &layout->batch, 4},
                          {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &layout->stride, 8}},
                         attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = new VirtualPreference();
    return CUBLAS_STATUS_SUCCESS;
}

#define DESTROYS(call, object)                                                                                         \
    cublasStatus_t call(object made) {                                                                                 \
        delete made;                                                                                                   \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }
DESTROYS(cublasLtDestroy, cublasLtHandle_t)
DESTROYS(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
DESTROYS(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
DESTROYS(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    return set_attribute({{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &preference->workspace, 8},
                          {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &preference->reductions, 4},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &preference->alignment[0], 4},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &preference->alignment[1], 4},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &preference->alignment[2], 4},
                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &preference->alignment[3], 4}},
                         attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    static uint64_t searches;
    int64_t m, n, k;
    *found = 0;
    if (fault_comes("product", ++searches)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!consistent(product, a, b, c, &m, &n, &k)) return CUBLAS_STATUS_INVALID_VALUE;
    const char *rule = broken_rule(product, a, b, c, dry_figures().capability);
    if (rule != nullptr)
        defect("a product of %lld x %lld x %lld: cuBLASLt computes none with %s", (long long)m, (long long)n,
               (long long)k, rule);
    bool gelu = has_aux(product->epilogue) && narrow(*a);
    if (gelu || asked < 1 || !aux_allowed(product, m)) return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = k < PARTS ? 1 : std::min(asked, (int)SUGGESTIONS);
    for (int i = 0; i < *found; i++) {
        const uint64_t algorithm[] = {ALGORITHM,
                                      preference->alignment[0],
                                      preference->alignment[1],
                                      preference->alignment[3],
                                      (uint64_t)splits(m, n, k, preference),
                                      (uint64_t)product->epilogue,
                                      shape_mark(m, n, k),
                                      (uint64_t)i};
        results[i] = {};
        memcpy(results[i].algo.data, algorithm, sizeof algorithm);
        results[i].workspaceSize = preference->workspace < (1 << 20) ? 0 : 1 << 20;
        results[i].state = CUBLAS_STATUS_SUCCESS;
    }
    tell("VIRTUAL_PRODUCTS", product->multiprocessors); // those that a kernel counts on; 0: all
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result) {
    int64_t m, n, k;
    if (!consistent(product, a, b, c, &m, &n, &k) || !made_for(algorithm->data, product, m, n, k))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    if (sticky() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    Call call = {*product, *a_layout, *b_layout, *c_layout, a, b, d, *(const float *)alpha, *(const float *)beta};
    call.split = algorithm->data[4] != 0 || algorithm->data[7] == IN_PARTS;
    call.parts = algorithm->data[4] != 0 ? c_layout->type : CUDA_R_32F;
    if (!consistent(product, a_layout, b_layout, c_layout, &call.m, &call.n, &call.k) || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t *chosen = algorithm->data;
    if (chosen[0] != ALGORITHM) defect("cublasLtMatmul is given an algorithm that no heuristic returned");
    if (!made_for(chosen, product, call.m, call.n, call.k) || aligned(a) < chosen[1] || aligned(b) < chosen[2] ||
        aligned(d) < chosen[3])
        defect("cublasLtMatmul: the algorithm was asked for another shape, epilogue or alignment than it is used for");
    if (!aux_allowed(product, call.m) || chosen[7] == FAILS) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!has_aux(product->epilogue)) call.product.aux = nullptr;
    if (call.product.bias_type < 0) call.product.bias_type = c_layout->type;
    if (workspace_bytes > 0) range(workspace, (int64_t)workspace_bytes, "the workspace of a product");
    load_once(text("a product of type %d, operands %d%d, epilogue %d, multiprocessors %d, sizes %d %d %d",
                   (int)a_layout->type, (int)product->a, (int)product->b, product->epilogue, product->multiprocessors,
                   tiles(call.m), tiles(call.n), tiles(call.k)),
              true);
    Op op;
    op.what = text("a product of %lld x %lld x %lld", (long long)call.m, (long long)call.n, (long long)call.k);
    check_order(stream, op.what);
    if (!dry() && product->multiprocessors > 0 && clusters_used()) // the clock of a dry run shows what it costs
        defect("%s leaves %d multiprocessors, about %d in each GPC, and NCCL's kernels come in clusters of 4 blocks",
               op.what.c_str(), options().multiprocessors - product->multiprocessors,
               (options().multiprocessors - product->multiprocessors) / 8);
    if (dry()) {
        declare(host_access(op.what.c_str()), call);
        take_time(&op, call);
    }
    double sleeps = chosen[7] == 0 ? slower("suggestion", process()) - 1 : 0; // milliseconds
    op.step = [call, workspace, sleeps](const Access &access) {
        if (sleeps > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(sleeps));
        declare(access, call);
        if (workspace != nullptr) touch(access, workspace, 64, true); // only ordered streams may share it
        check_padding(factor_a(call), call.a);
        check_padding(factor_b(call), call.b);
        for (int64_t i = 0; i < call.c.batch; i++) multiply(call, i);
        return OUTCOME_DONE;
    };
    enqueue(stream, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
}
