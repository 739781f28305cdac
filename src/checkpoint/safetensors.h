// The safetensors format (huggingface.co/docs/safetensors): eight bytes with the header's length, little-endian; the
// header, a JSON object {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}; the tensors' bytes.
//
// Sizes in a file are checked against its length before they are used. Lengths, offsets and shapes must agree with each
// other and cover the data exactly; otherwise the file is refused with an error that names it.
#pragma once

#include "base/log.h"

enum { SAFETENSORS_MAX_DIMENSIONS = 8 };

typedef enum SafeType {
    SAFE_F32,
    SAFE_F16,
    SAFE_BF16,
    SAFE_F64,
    SAFE_OTHER, // known size, never read as numbers: integers, booleans, 8-bit floats
} SafeType;

typedef struct SafeTensor {
    char *name;
    SafeType type;
    int64_t element; // bytes per element
    int dimensions;
    int64_t shape[SAFETENSORS_MAX_DIMENSIONS];
    int64_t offset, bytes; // offset from the file's beginning, and size; both in bytes
} SafeTensor;

typedef struct SafeFile {
    char *path;
    int fd;
    int64_t bytes;
    SafeTensor *tensors; // in the order of their offsets
    int64_t count;
} SafeFile;

// Opens a file for reading and checks its header. -1 with err (EXIT_FAILED); safetensors_close in both cases.
int safetensors_open(SafeFile *file, const char *path, Error *err);
void safetensors_close(SafeFile *file);

// Closes the descriptor and keeps the table. safetensors_reopen opens the file again, if its length is unchanged.
void safetensors_release(SafeFile *file);
int safetensors_reopen(SafeFile *file, Error *err);

// Converts `count` elements of `type` (not SAFE_OTHER) from a file to fp32.
void safetensors_to_float(float *to, const void *from, SafeType type, int64_t count);

// Writes the tensor's shape, such as "[2, 3]", and returns `text`.
const char *safetensors_shape(const SafeTensor *tensor, char *text, size_t size);

// A header under construction. Tensors are placed one after another.
typedef struct SafeHeader {
    FILE *file;
    char *text; // header with length word, complete after safetensors_header_end; the caller frees it
    size_t bytes;
    int64_t data; // bytes of tensors so far
} SafeHeader;

void safetensors_header_begin(SafeHeader *header);
// Adds a vector of `rows` elements (dimensions 1) or a matrix (dimensions 2). Returns its offset from the data's start.
int64_t safetensors_header_add(SafeHeader *header, const char *name, SafeType type, int dimensions, int64_t rows,
                               int64_t cols);
void safetensors_header_end(SafeHeader *header);
