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

// Two versions of oneDNN's C interface are supported: 3, and the older 2, where descriptions are structs. In both, Desc
// is the type by which oneDNN returns a description that it keeps.
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t Desc;
#else
typedef const dnnl_memory_desc_t *Desc;
#endif

// Creates the memory of a matrix, whose address is set before each product.
static bool create_matrix_(dnnl_memory_t *memory, Desc *desc, dnnl_engine_t engine, const int64_t shape[3],
                           bool transposed, dnnl_data_type_t type) {
    dnnl_dims_t dims = {shape[0], shape[1]}, strides = {transposed ? 1 : shape[2], transposed ? shape[2] : 1};
    dnnl_memory_desc_t matrix;
#if DNNL_VERSION_MAJOR >= 3
    if (dnnl_memory_desc_create_with_strides(&matrix, 2, dims, type, strides) != dnnl_success) return false;
    bool made = dnnl_memory_create(memory, matrix, engine, DNNL_MEMORY_NONE) == dnnl_success;
    dnnl_memory_desc_destroy(matrix);
#else
    bool made = dnnl_memory_desc_init_by_strides(&matrix, 2, dims, type, strides) == dnnl_success &&
                dnnl_memory_create(memory, &matrix, engine, DNNL_MEMORY_NONE) == dnnl_success;
#endif
    return made && dnnl_memory_get_memory_desc(*memory, desc) == dnnl_success;
}

static bool describe_(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, const Desc matrix[3], bool accumulate) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    // This file supplies the scratch, so that no primitive shares the library's scratch with another thread.
    bool made = dnnl_primitive_attr_create(&attr) == dnnl_success &&
                dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
                dnnl_post_ops_create(&ops) == dnnl_success;
#if DNNL_VERSION_MAJOR >= 3
    if (accumulate) made = made && dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef) == dnnl_success;
    made = made && dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success &&
           dnnl_matmul_primitive_desc_create(desc, engine, matrix[0], matrix[1], NULL, matrix[2], attr) == dnnl_success;
#else
    dnnl_matmul_desc_t product;
    if (accumulate) made = made && dnnl_post_ops_append_sum(ops, 1.0f) == dnnl_success;
    made = made && dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success &&
           dnnl_matmul_desc_init(&product, matrix[0], matrix[1], NULL, matrix[2]) == dnnl_success &&
           dnnl_primitive_desc_create(desc, &product, attr, engine, NULL) == dnnl_success;
#endif
    if (ops != NULL) dnnl_post_ops_destroy(ops);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    return made;
}

static bool product_create_(Product *product, dnnl_engine_t engine, const ProductKey *key) {
    const int64_t a[] = {key->m, key->k, key->a_stride}, b[] = {key->k, key->n, key->b_stride};
    const int64_t c[] = {key->m, key->n, key->c_stride};
    dnnl_primitive_desc_t desc = NULL;
    Desc matrix[3];
    bool made = create_matrix_(&product->a, &matrix[0], engine, a, key->a_transposed, dnnl_bf16) &&
                create_matrix_(&product->b, &matrix[1], engine, b, key->b_transposed, dnnl_bf16) &&
                create_matrix_(&product->c, &matrix[2], engine, c, false, dnnl_f32) &&
                describe_(&desc, engine, matrix, key->accumulate);
    Desc scratch = made ? dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0) : NULL;
    size_t bytes = made ? dnnl_memory_desc_get_size(scratch) : 0;
    made = made && (bytes == 0 || posix_memalign(&product->scratch_bytes, 64, bytes) == 0) &&
           dnnl_memory_create(&product->scratch, scratch, engine, product->scratch_bytes) == dnnl_success &&
           dnnl_primitive_create(&product->primitive, desc) == dnnl_success;
    if (desc != NULL) dnnl_primitive_desc_destroy(desc);
    product->key = *key;
    if (!made) product_destroy_(product);
    return made;
}

bool cpu_gemm_bf16(Backend *be, int64_t m, int64_t n, int64_t k, CpuOperand a, CpuOperand b, bool accumulate, float *c,
                   int64_t stride) {
    CpuScratch *mine = &cpu_self(be)->scratch[cpu_thread()];
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
