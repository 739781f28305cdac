// Reads and writes safetensors files. The header is checked completely before any tensor is offered. Written headers
// are padded to a multiple of 8 bytes.
#include "safetensors.h"
#include "base/alloc.h"

#include "base/files.h"
#include "base/number_formats.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    SafeType type;
    int64_t element;
} types[] = {
    {"F32", SAFE_F32, 4},    {"F16", SAFE_F16, 2},       {"BF16", SAFE_BF16, 2},     {"F64", SAFE_F64, 8},
    {"I64", SAFE_OTHER, 8},  {"U64", SAFE_OTHER, 8},     {"I32", SAFE_OTHER, 4},     {"U32", SAFE_OTHER, 4},
    {"I16", SAFE_OTHER, 2},  {"U16", SAFE_OTHER, 2},     {"I8", SAFE_OTHER, 1},      {"U8", SAFE_OTHER, 1},
    {"BOOL", SAFE_OTHER, 1}, {"F8_E5M2", SAFE_OTHER, 1}, {"F8_E4M3", SAFE_OTHER, 1},
};

enum { TYPES = sizeof types / sizeof types[0] };

// name: the tensor that does not fit, or NULL.
static int bad_(const SafeFile *file, const char *name, Error *err) {
    return error_set(err, EXIT_FAILED,
                     "%s: is not a safetensors file, or it is cut off or damaged%s%.200s; copy it again", file->path,
                     name != NULL ? ", at tensor " : "", name != NULL ? name : "");
}

// --- the header

// Reads an entry's type, shape and place. data: offset of the first tensor in the file. Returns whether they are
// consistent and the place lies within the file.
static bool read_tensor_(const SafeFile *file, SafeTensor *tensor, const JsonValue *entry, int64_t data) {
    const char *word = json_text(entry, "dtype", "");
    const JsonValue *shape = json_find(entry, "shape"), *offsets = json_find(entry, "data_offsets");
    int type = 0;
    while (type < TYPES && strcmp(types[type].name, word) != 0) type++;
    if (type == TYPES || shape == NULL || shape->type != JSON_ARRAY || shape->count > SAFETENSORS_MAX_DIMENSIONS ||
        offsets == NULL || offsets->type != JSON_ARRAY || offsets->count != 2)
        return false;
    tensor->type = types[type].type;
    tensor->element = types[type].element;
    double bytes = (double)tensor->element; // exact up to any possible file size; an integer could overflow
    for (const JsonValue *size = shape->first; size != NULL; size = size->next) {
        if (!size->whole || size->integer < 0) return false;
        tensor->shape[tensor->dimensions++] = size->integer;
        bytes *= (double)size->integer;
    }
    const JsonValue *begin = offsets->first, *end = begin->next;
    if (!begin->whole || !end->whole || begin->integer < 0 || end->integer < begin->integer ||
        end->integer > file->bytes - data)
        return false;
    tensor->offset = data + begin->integer;
    tensor->bytes = end->integer - begin->integer;
    return bytes == (double)tensor->bytes;
}

static int compare_offsets_(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// Reads the entries of all tensors. As the format demands, tensors must cover the file from the header to its end
// without gaps or overlaps, so that every byte is checked.
static int read_entries_(SafeFile *file, const JsonValue *root, int64_t data, Error *err) {
    if (root->type != JSON_OBJECT) return bad_(file, NULL, err);
    file->tensors = xcalloc((size_t)root->count + 1, sizeof *file->tensors);
    for (const JsonValue *entry = root->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, "__metadata__") == 0) continue;
        SafeTensor *tensor = &file->tensors[file->count++];
        tensor->name = xstrdup(entry->key);
        if (!read_tensor_(file, tensor, entry, data)) return bad_(file, entry->key, err);
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets_);
    for (int64_t i = 0; i < file->count; i++) {
        if (file->tensors[i].offset != data) return bad_(file, file->tensors[i].name, err);
        data += file->tensors[i].bytes;
    }
    return data < file->bytes ? bad_(file, NULL, err) : 0;
}

int safetensors_reopen(SafeFile *file, Error *err) {
    int64_t bytes = 0;
    file->fd = file_open(file->path, &bytes, err);
    if (file->fd < 0) return -1;
    if (file->tensors != NULL && bytes != file->bytes) return bad_(file, NULL, err);
    file->bytes = bytes;
    return 0;
}

int safetensors_open(SafeFile *file, const char *path, Error *err) {
    *file = (SafeFile){.path = xstrdup(path), .fd = -1};
    if (safetensors_reopen(file, err) != 0) return -1;
    uint8_t word[8];
    if (file->bytes < 8) return bad_(file, NULL, err);
    if (file_read(file->fd, file->path, 0, word, sizeof word, err) != 0) return -1;
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | word[i];
    if (length > (uint64_t)(file->bytes - 8) || length > JSON_MAX_BYTES) return bad_(file, NULL, err);
    char *text = xmalloc((size_t)length + 1);
    Json json = {0};
    int status = file_read(file->fd, file->path, 8, text, (int64_t)length, err);
    if (status == 0) status = json_parse(&json, text, (int64_t)length, file->path, err);
    if (status == 0) status = read_entries_(file, json.root, 8 + (int64_t)length, err);
    json_free(&json);
    free(text);
    return status;
}

void safetensors_release(SafeFile *file) {
    if (file->path != NULL && file->fd >= 0) close(file->fd); // a zeroed file (no path) was never opened
    file->fd = -1;
}

void safetensors_close(SafeFile *file) {
    for (int64_t i = 0; i < file->count; i++) free(file->tensors[i].name);
    free(file->tensors);
    safetensors_release(file);
    free(file->path);
    memset(file, 0, sizeof *file);
}

const char *safetensors_shape(const SafeTensor *tensor, char *text, size_t size) {
    snprintf(text, size, "[");
    for (int i = 0; i < tensor->dimensions; i++)
        text_add(text, size, "%s%lld", i == 0 ? "" : ", ", (long long)tensor->shape[i]);
    text_add(text, size, "]");
    return text;
}

// --- numbers

void safetensors_to_float(float *to, const void *from, SafeType type, int64_t count) {
    if (type == SAFE_F32) memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; i < count && type == SAFE_F64; i++) {
        double wide;
        memcpy(&wide, (const char *)from + 8 * i, sizeof wide);
        to[i] = (float)wide;
    }
    for (int64_t i = 0; i < count && (type == SAFE_F16 || type == SAFE_BF16); i++) {
        uint16_t half;
        memcpy(&half, (const char *)from + 2 * i, sizeof half);
        // Shifted into a float, the bits are the value times 2^-112, unless it is infinite or NaN.
        uint32_t bits = (uint32_t)(half & 0x7FFF) << 13;
        float value = bits >= 0x0F800000 ? fp8_float(bits | 0x7F800000) : fp8_float(bits) * 0x1p112f;
        to[i] = type == SAFE_BF16 ? bf16_to_float(half) : half & 0x8000 ? -value : value;
    }
}

// --- writing

// Begins with an empty length word, filled in by safetensors_header_end. transformers requires "format" in metadata.
void safetensors_header_begin(SafeHeader *header) {
    memset(header, 0, sizeof *header);
    header->file = xmemstream(&header->text, &header->bytes);
    fwrite("\0\0\0\0\0\0\0\0", 1, 8, header->file);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", header->file);
}

int64_t safetensors_header_add(SafeHeader *header, const char *name, SafeType type, int dimensions, int64_t rows,
                               int64_t cols) {
    int64_t offset = header->data;
    int row = 0;
    while (types[row].type != type) row++;
    header->data += rows * (dimensions == 1 ? 1 : cols) * types[row].element;
    fputc(',', header->file);
    json_write_text(header->file, name);
    fprintf(header->file, ":{\"dtype\":\"%s\",\"shape\":[%lld", types[row].name, (long long)rows);
    if (dimensions == 2) fprintf(header->file, ",%lld", (long long)cols);
    fprintf(header->file, "],\"data_offsets\":[%lld,%lld]}", (long long)offset, (long long)header->data);
    return offset;
}

// Pads with spaces, so that the data begin at a multiple of eight bytes.
void safetensors_header_end(SafeHeader *header) {
    fputc('}', header->file);
    fflush(header->file);
    for (size_t fill = (8 - header->bytes % 8) % 8; fill > 0; fill--) fputc(' ', header->file);
    xmemstream_close(header->file);
    header->file = NULL;
    uint64_t length = header->bytes - 8;
    for (int i = 0; i < 8; i++) header->text[i] = (char)(length >> (8 * i) & 0xFF);
}
