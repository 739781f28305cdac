// Kernels of matrix products that were chosen by time. --tune measures cuBLASLt's suggestions for every product of a
// configuration and writes the fastest to hardware.products_file; runs with that file use them, and never write it.
// Kernels sum in different orders, so a run's bits depend on the file: the same file gives the same bits.
#pragma once

#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

enum { PRODUCT_KEY = 24, PRODUCT_ALGORITHM = 8, PRODUCT_CANDIDATES = 16 };

// A product: m, n, k and everything else that its kernel depends on (matmul.cpp: leading dimensions, types, alignment,
// epilogue, multiprocessors), and the library's suggestions in the library's order.
typedef struct ProductKernels {
    int64_t key[PRODUCT_KEY];
    int64_t candidates;
    uint64_t algorithm[PRODUCT_CANDIDATES][PRODUCT_ALGORITHM]; // bytes of cublasLtMatmulAlgo_t
    double seconds[PRODUCT_CANDIDATES];                        // INFINITY: it could not run
} ProductKernels;

typedef struct ProductChoices {
    bool measures;     // --tune: the backend measures and adds products; else each `product` has one candidate
    uint64_t checksum; // checksum of the file's text; 0: no file, or a file for another device or library
    int64_t count;
    ProductKernels *product; // [count]
} ProductChoices;

ProductKernels *products_find(const ProductChoices *products, const int64_t key[PRODUCT_KEY]);
// Adds a copy of a product. If its key is known, adds its seconds, unless the suggestions differ.
void products_add(ProductChoices *products, const ProductKernels *product);
// Returns the fastest candidate. The library's first suggestion keeps its place unless another is 1 % faster.
int64_t products_fastest(const ProductKernels *product);

// --- products_file.c
// Returns the text of a file with the fastest candidates. The caller frees it.
// library: version of cuBLASLt; 0: the device has one kernel for each product.
char *products_text(const ProductChoices *products, const char *device, int64_t library);
// Reads the text of a products file. If it is for another device or library, leaves `products` empty and describes that
// in `note`, else sets note to "". -1 with err (EXIT_USAGE) if the text is damaged. path: for messages.
int products_read(ProductChoices *products, const char *text, int64_t length, const char *path, const char *device,
                  int64_t library, char note[512], Error *err);
void products_free(ProductChoices *products);

__END_DECLS
