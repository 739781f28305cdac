// hardware.products_file: JSON that ends with its checksum, so that a run never hands cuBLASLt an algorithm that was
// edited or cut off.
#include "products.h"
#include "base/alloc.h"
#include "base/crc64.h"
#include "base/json.h"
#include "base/json_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

char *products_text(const ProductChoices *products, const char *device, int64_t library) {
    char *text;
    size_t length;
    FILE *file = xmemstream(&text, &length);
    JsonOut out = {.file = file};
    json_begin(&out, NULL, '{');
    json_members(&out, "format %d device %s library %jd", 1, device, library);
    json_begin(&out, "products", '[');
    for (int64_t p = 0; p < products->count; p++) {
        const ProductKernels *product = &products->product[p];
        int64_t fastest = products_fastest(product);
        if (!isfinite(product->seconds[fastest])) continue; // none runs; the program then computes it in another way
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_begin(&out, "product", '[');
        for (int i = 0; i < PRODUCT_KEY; i++) json_put_integer(&out, NULL, product->key[i]);
        json_end(&out, ']');
        json_begin(&out, "algorithm", '[');
        for (int i = 0; i < PRODUCT_ALGORITHM; i++)
            fprintf(json_put(&out, NULL), "\"%016llx\"", (unsigned long long)product->algorithm[fastest][i]);
        json_end(&out, ']');
        json_members(&out, "suggestion %jd of_first %.4g", fastest, product->seconds[fastest] / product->seconds[0]);
        json_end(&out, '}');
    }
    json_line(&out);
    json_end(&out, ']');
    json_seal(file, &text, &length);
    xmemstream_close(file);
    return text;
}

static bool read_product_(ProductKernels *product, const JsonValue *entry) {
    const JsonValue *key = json_find(entry, "product"), *algorithm = json_find(entry, "algorithm");
    *product = (ProductKernels){.candidates = 1};
    if (key == NULL || algorithm == NULL || key->count != PRODUCT_KEY || algorithm->count != PRODUCT_ALGORITHM)
        return false;
    int i = 0;
    for (const JsonValue *value = key->first; value != NULL; value = value->next, i++) {
        if (!value->whole) return false;
        product->key[i] = value->integer;
    }
    i = 0;
    for (const JsonValue *value = algorithm->first; value != NULL; value = value->next, i++) {
        if (value->type != JSON_TEXT) return false;
        product->algorithm[0][i] = strtoull(value->text, NULL, 16);
    }
    return true;
}

int products_read(ProductChoices *products, const char *text, int64_t length, const char *path, const char *device,
                  int64_t library, char note[512], Error *err) {
    Json json = {0};
    ProductKernels product;
    note[0] = '\0';
    *products = (ProductChoices){0};
    bool read = json_sealed(text, length) && json_parse(&json, text, length, path, err) == 0 &&
                json_integer(json.root, "format", 0) == 1;
    const JsonValue *list = read ? json_find(json.root, "products") : NULL;
    const char *theirs = read ? json_text(json.root, "device", "") : "";
    int64_t version = read ? json_integer(json.root, "library", -1) : -1;
    if (list != NULL && (strcmp(theirs, device) != 0 || version != library))
        snprintf(note, 512,
                 "hardware.products_file %s is for %s with library version %lld, not %s with %lld: using the library's "
                 "first suggestions; run --tune again",
                 path, theirs, (long long)version, device, (long long)library);
    for (const JsonValue *entry = list != NULL && note[0] == '\0' ? list->first : NULL; read && entry != NULL;
         entry = entry->next) {
        read = read_product_(&product, entry);
        if (read) products_add(products, &product);
    }
    json_free(&json);
    if (list == NULL || !read) {
        products_free(products);
        return error_set(err, EXIT_USAGE,
                         "hardware.products_file: %s was not written by --tune, or was changed since; run --tune "
                         "again, or remove the key",
                         path);
    }
    Crc64 crc = crc64_make();
    if (note[0] == '\0') products->checksum = crc64_finish(&crc, crc64_add(&crc, 0, text, (size_t)length), length);
    return 0;
}
