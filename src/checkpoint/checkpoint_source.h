// The tensors of a directory of safetensors files, by name, and reading a rank's part of one.
#pragma once

#include "checkpoint_files.h"
#include "checkpoint_layout.h"

typedef struct SourceTensor {
    const SafeTensor *tensor;
    int64_t file;
    bool asked; // some caller looked for it
} SourceTensor;

typedef struct Source {
    char dir[CHECKPOINT_PATH];
    SafeFile *files;
    int64_t file_count;
    SourceTensor *tensors; // sorted by name
    int64_t tensor_count;
} Source;

// Elements read at a time. A reader takes 4 times as many bytes of host memory, and up to 8 times more if the file has
// another type or its matrices transposed.
enum { SOURCE_PIECE = 4 << 20 };

// The state of one reading thread: an open file, and memory for one piece.
typedef struct SourceReader {
    const Source *source;
    int64_t file; // that is open, or -1
    SafeFile open;
    void *raw; // a block in the file's order
    int64_t raw_bytes;
    float *values;   // (SOURCE_PIECE)
    int64_t strange; // the first of them that is not finite, or -1
} SourceReader;

// Opens the files that a manifest lists. -1 with err; source_close in every case.
int source_open_manifest(Source *source, const char *dir, const Manifest *manifest, Error *err);
// Opens the model in a directory: its index, or model.safetensors.
int source_open_model(Source *source, const char *dir, Error *err);
void source_close(Source *source);

// Returns NULL if no tensor has that name. Names may lack the model's prefix ("transformer.", "model.").
SourceTensor *source_find(Source *source, const char *name);

// Checks that a tensor has the shape under which the spec is stored, and a numeric type. -1 with err that names both
// shapes.
int source_check(const Source *source, const SourceTensor *found, const TensorSpec *spec, Error *err);

void source_reader_open(SourceReader *reader, const Source *source);
void source_reader_close(SourceReader *reader);

// Reads elements [begin, end) of a rank's tensor as fp32 into reader->values (at most SOURCE_PIECE), and
// looks for values that are not finite; padding is zero.
int source_read(SourceReader *reader, const SourceTensor *found, const Tensor *tensor, const Split *split,
                int64_t begin, int64_t end, Error *err);
