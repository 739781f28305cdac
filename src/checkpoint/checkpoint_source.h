// Finds tensors by name in a directory of safetensors files, and reads a rank's part of a tensor.
#pragma once

#include "checkpoint_files.h"
#include "checkpoint_layout.h"

typedef struct SourceTensor {
    const SafeTensor *tensor;
    int64_t file;
    bool asked; // true: source_find has returned this tensor
} SourceTensor;

typedef struct Source {
    const char *dir; // owned by the caller
    SafeFile *files;
    int64_t file_count;
    SourceTensor *tensors; // sorted by name
    int64_t tensor_count;
} Source;

// Maximum number of elements per piece. Each reading thread needs 4 bytes of host memory per element, and up to 8
// bytes more if the file has another type or stores the matrix transposed.
enum { SOURCE_PIECE = 4 << 20 };

// Opens the files that a manifest lists. -1 with err; call source_close in every case.
int source_open_manifest(Source *source, const char *dir, const Manifest *manifest, Error *err);
// Opens the model in a directory: its index, or model.safetensors.
int source_open_model(Source *source, const char *dir, Error *err);
void source_close(Source *source);

// Sets *sum to a checksum of the files' lengths and of samples spread evenly over them. Training changes nearly every
// weight, so the samples of two models differ. -1 with err.
int source_sample(const Source *source, uint64_t *sum, Error *err);

// Returns a tensor, or NULL if no tensor has that name. Names in files may lack the prefix "transformer." or "model.".
SourceTensor *source_find(Source *source, const char *name);

// Checks that a tensor has a floating-point type and `spec`'s stored shape. -1 with err, naming shapes that differ.
int source_check(const Source *source, const SourceTensor *found, const TensorSpec *spec, Error *err);

// Elements [begin, end) of a rank's tensor, at most SOURCE_PIECE.
typedef struct ReadPiece {
    const SourceTensor *found;
    const Tensor *tensor;
    int64_t index; // index of the tensor in StageTensors.tensors
    StateKind kind;
    int64_t begin, end;
} ReadPiece;

// values: the elements of the piece as fp32; padding is zero. strange: index of the first value that is not finite, or
// -1.
typedef int (*PieceVisitor)(void *context, const ReadPiece *piece, const float *values, int64_t strange, Error *err);

// Calls `visit` with every piece's values, in order and in the caller's thread, while other threads read the next
// pieces. Stops at the first piece that cannot be read, or if a visit does not return 0, and returns -1 with err.
int pieces_read(const Source *source, const Split *split, const ReadPiece *pieces, int64_t count, PieceVisitor visit,
                void *context, Error *err);
