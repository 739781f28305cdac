// bf16 matrix products of one tile by oneDNN, on processors with bf16 multiplication (AVX512-BF16, AMX), where bf16
// takes half the time of fp32. Elsewhere cpu_gemm widens bf16 while packing, which is faster than oneDNN's emulation.
//
// A product is a oneDNN primitive, created once per shape and thread, then reused: creation takes longer than a small
// tile. Each primitive runs on the calling thread with its own scratch, so results do not depend on the thread count.
#include "cpu.h"
#include "base/alloc.h"

#include <stdlib.h>

#if defined(HAVE_DNNL)
#include <dnnl.h>

typedef struct ProductKey { // all int64_t, without padding, so that keys are compared as bytes
    int64_t m, n, k, a_stride, b_stride, c_stride, a_transposed, b_transposed, accumulate;
} ProductKey;

typedef struct Product {
    ProductKey key;
    dnnl_primitive_t primitive; // NULL: a free entry
    dnnl_memory_t a, b, c, scratch;
    void *scratch_bytes;
} Product;

enum { PRODUCTS = 256 }; // a layer needs about fifty, including tiles at the edges

struct CpuProducts {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int count;
    Product entry[PRODUCTS];
};

bool cpu_bf16_by_library(void) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static void product_destroy_(Product *product) {
    dnnl_memory_t memory[] = {product->a, product->b, product->c, product->scratch};
    for (int i = 0; i < 4; i++)
        if (memory[i] != NULL) dnnl_memory_destroy(memory[i]);
    if (product->primitive != NULL) dnnl_primitive_destroy(product->primitive);
    free(product->scratch_bytes);
    memset(product, 0, sizeof *product);
}

void cpu_products_destroy(CpuProducts *products) {
    if (products == NULL) return;
    for (int i = 0; i < PRODUCTS; i++) product_destroy_(&products->entry[i]);
    if (products->stream != NULL) dnnl_stream_destroy(products->stream);
    if (products->engine != NULL) dnnl_engine_destroy(products->engine);
    free(products);
}

// Supports two versions of oneDNN's C interface: 3, and the older 2.
typedef dnnl_memory_desc_t Desc;

static bool describe_matrix_(Desc *desc, int64_t rows, int64_t cols, int64_t stride, bool transposed,
                             dnnl_data_type_t type) {
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : stride, transposed ? stride : 1};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides) == dnnl_success;
#else
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides) == dnnl_success;
#endif
}

#if DNNL_VERSION_MAJOR >= 3

static bool gemm_describe_(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, const Desc matrix[3],
                           dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(desc, engine, matrix[0], matrix[1], NULL, matrix[2], attr) == dnnl_success;
}

static bool create_memory_(dnnl_memory_t *memory, const Desc *desc, dnnl_engine_t engine, void *at) {
    return dnnl_memory_create(memory, *desc, engine, at) == dnnl_success;
}

// Describes a product's scratch.
static bool describe_scratch_(Desc *scratch, dnnl_primitive_desc_t desc) {
    return dnnl_memory_desc_clone(scratch, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)) ==
           dnnl_success;
}

static size_t described_bytes_(const Desc *desc) { return dnnl_memory_desc_get_size(*desc); }

static bool append_sum_(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef) == dnnl_success;
}

static void forget_matrix_(Desc *desc) {
    if (*desc != NULL) dnnl_memory_desc_destroy(*desc);
}
#else
static bool gemm_describe_(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, const Desc matrix[3],
                           dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t product;
    return dnnl_matmul_desc_init(&product, &matrix[0], &matrix[1], NULL, &matrix[2]) == dnnl_success &&
           dnnl_primitive_desc_create(desc, &product, attr, engine, NULL) == dnnl_success;
}

static bool create_memory_(dnnl_memory_t *memory, const Desc *desc, dnnl_engine_t engine, void *at) {
    return dnnl_memory_create(memory, desc, engine, at) == dnnl_success;
}

static bool describe_scratch_(Desc *scratch, dnnl_primitive_desc_t desc) {
    *scratch = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    return true;
}

static size_t described_bytes_(const Desc *desc) { return dnnl_memory_desc_get_size(desc); }

static bool append_sum_(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f) == dnnl_success; }

static void forget_matrix_(Desc *desc) { (void)desc; }
#endif

// The caller of oneDNN supplies scratch, so that no primitive shares the library's scratch with another thread.
static bool product_create_(Product *product, dnnl_engine_t engine, const ProductKey *key) {
    Desc matrix[4]; // a, b, c, and scratch
    memset(matrix, 0, sizeof matrix);
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    bool made = dnnl_primitive_attr_create(&attr) == dnnl_success &&
                dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (made && key->accumulate)
        made = dnnl_post_ops_create(&ops) == dnnl_success && append_sum_(ops) &&
               dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
    made = made && describe_matrix_(&matrix[0], key->m, key->k, key->a_stride, key->a_transposed, dnnl_bf16) &&
           describe_matrix_(&matrix[1], key->k, key->n, key->b_stride, key->b_transposed, dnnl_bf16) &&
           describe_matrix_(&matrix[2], key->m, key->n, key->c_stride, false, dnnl_f32) &&
           gemm_describe_(&desc, engine, matrix, attr) && describe_scratch_(&matrix[3], desc);
    size_t bytes = made ? described_bytes_(&matrix[3]) : 0;
    made = made && (bytes == 0 || posix_memalign(&product->scratch_bytes, 64, bytes) == 0) &&
           dnnl_primitive_create(&product->primitive, desc) == dnnl_success &&
           create_memory_(&product->a, &matrix[0], engine, DNNL_MEMORY_NONE) &&
           create_memory_(&product->b, &matrix[1], engine, DNNL_MEMORY_NONE) &&
           create_memory_(&product->c, &matrix[2], engine, DNNL_MEMORY_NONE) &&
           create_memory_(&product->scratch, &matrix[3], engine, product->scratch_bytes);
    if (ops != NULL) dnnl_post_ops_destroy(ops);
    if (desc != NULL) dnnl_primitive_desc_destroy(desc);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++) forget_matrix_(&matrix[i]);
    product->key = *key;
    if (!made) product_destroy_(product);
    return made;
}

bool cpu_gemm_bf16(Backend *backend, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b, bool accumulate,
                   float *c, int64_t stride) {
    CpuScratch *mine = &cpu_self(backend)->scratch[cpu_thread()];
    CpuProducts *products = mine->products;
    if (products == NULL) {
        products = xcalloc(1, sizeof *products);
        if (dnnl_engine_create(&products->engine, dnnl_cpu, 0) == dnnl_success &&
            dnnl_stream_create(&products->stream, products->engine, dnnl_stream_default_flags) == dnnl_success) {
            mine->products = products;
        } else {
            cpu_products_destroy(products);
            return false;
        }
    }
    const ProductKey key = {m, n, k, a.stride, b.stride, stride, a.transposed, b.transposed, accumulate};
    const unsigned char *bytes = (const unsigned char *)&key;
    uint32_t at = 2166136261u;
    for (size_t i = 0; i < sizeof key; i++) at = (at ^ bytes[i]) * 16777619u;
    if (products->count > PRODUCTS / 2) {
        for (int i = 0; i < PRODUCTS; i++) product_destroy_(&products->entry[i]);
        products->count = 0;
    }
    while (products->entry[at % PRODUCTS].primitive != NULL &&
           memcmp(&products->entry[at % PRODUCTS].key, &key, sizeof key) != 0)
        at++;
    Product *product = &products->entry[at % PRODUCTS];
    if (product->primitive == NULL) {
        if (!product_create_(product, products->engine, &key)) return false;
        products->count++;
    }
    if (dnnl_memory_set_data_handle(product->a, (void *)a.data) != dnnl_success ||
        dnnl_memory_set_data_handle(product->b, (void *)b.data) != dnnl_success ||
        dnnl_memory_set_data_handle(product->c, c) != dnnl_success)
        return false;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, product->a},
                              {DNNL_ARG_WEIGHTS, product->b},
                              {DNNL_ARG_DST, product->c},
                              {DNNL_ARG_SCRATCHPAD, product->scratch}};
    return dnnl_primitive_execute(product->primitive, products->stream, 4, args) == dnnl_success &&
           dnnl_stream_wait(products->stream) == dnnl_success;
}

#else

bool cpu_bf16_by_library(void) { return false; }

void cpu_products_destroy(CpuProducts *products) { (void)products; }

#endif
