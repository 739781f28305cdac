// Kernels of matrix products, looked up by the product's key.
#include "products.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

ProductKernels *products_find(const ProductChoices *products, const int64_t key[PRODUCT_KEY]) {
    for (int64_t i = 0; i < products->count; i++)
        if (memcmp(products->product[i].key, key, sizeof products->product[i].key) == 0) return &products->product[i];
    return NULL;
}

void products_add(ProductChoices *products, const ProductKernels *product) {
    ProductKernels *known = products_find(products, product->key);
    if (known == NULL) {
        products->product = xrealloc(products->product, (size_t)(products->count + 1) * sizeof *product);
        products->product[products->count++] = *product;
    } else if (known->candidates == product->candidates &&
               memcmp(known->algorithm, product->algorithm, sizeof known->algorithm) == 0) {
        for (int64_t i = 0; i < known->candidates; i++) known->seconds[i] += product->seconds[i];
    }
}

int64_t products_fastest(const ProductKernels *product) {
    int64_t fastest = 0;
    for (int64_t i = 1; i < product->candidates; i++)
        if (product->seconds[i] < product->seconds[fastest]) fastest = i;
    return product->seconds[fastest] < 0.99 * product->seconds[0] ? fastest : 0;
}

void products_free(ProductChoices *products) {
    free(products->product);
    *products = (ProductChoices){0};
}
