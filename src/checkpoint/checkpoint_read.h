// Reading a rank's pieces of a checkpoint by several threads, each with its own range of a file, while the caller puts
// those that have come where they belong.
#pragma once

#include "checkpoint_source.h"

// Threads that read, one piece each at a time.
enum { READER_LANES = 4 };

// Elements [begin, end) of a rank's tensor, at most SOURCE_PIECE.
typedef struct ReadPiece {
    const SourceTensor *found;
    const Tensor *tensor;
    int64_t index; // index of the tensor
    StateKind kind;
    int64_t begin, end;
} ReadPiece;

typedef struct ReadValues {
    const float *values;
    int64_t strange; // the first that is not finite, or -1
} ReadValues;

typedef int (*PieceVisitor)(void *context, const ReadPiece *piece, const ReadValues *values, Error *err);

// Calls `visit` with every piece's values, in the order of the pieces and in the caller's thread. Stops at the first
// piece that cannot be read or whose visit does not return 0, and returns -1 with err.
int pieces_read(const Source *source, const Split *split, const ReadPiece *pieces, int64_t count, PieceVisitor visit,
                void *context, Error *err);
