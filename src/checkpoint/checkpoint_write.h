// Writes one rank's part of a checkpoint: selects its elements, copies them to host memory, and writes them to files.
#pragma once

#include "checkpoint_files.h"
#include "checkpoint_layout.h"
#include "base/crc64.h"
#include "engine/stage.h"
#include "ranks/world.h"

#include <stdatomic.h>

// A range of elements of one tensor's state that this rank writes.
typedef struct WritePart {
    const Tensor *tensor;
    StateKind kind;
    int file;           // index of the file in the layout
    int64_t begin, end; // elements [begin, end) of this rank's tensor
    int64_t element;    // bytes per element
    const void *source; // device address of element `begin`
    int64_t image;      // offset in Writer.image, bytes
} WritePart;

// The bytes that this rank wrote into one file.
typedef struct WriteShare {
    uint64_t raw; // raw checksum of the file with these bytes in place and zeros elsewhere
    int64_t bytes;
} WriteShare;

// Number of writing threads; each writes one file at a time.
enum { WRITER_LANES = 2 };

typedef struct Writer {
    const Stage *stage;
    CheckpointLayout layout;
    Crc64 crc;
    WritePart *parts; // weights of all tensors, then their optimizer states
    int64_t part_count;
    char *image;
    int64_t image_bytes;
    void *scratch[WRITER_LANES]; // buffers for transposed matrices, at least one row of the file each
    int64_t scratch_bytes;
    void *staging[WRITER_LANES]; // RANGE_FILE_STAGING bytes each (range_file.h)
    WriteShare *shares;          // (layout.files)
    World *world;                // notified of progress after every write
    atomic_bool cancel;          // true: writer_write stops with an error
    // --- state of the write in progress
    const char *dir;
    int dir_fd;
    atomic_flag strange_taken;
    char strange[256]; // description of the first value found that is not finite; empty: all are finite
} Writer;

void writer_create(Writer *writer, const Stage *stage, World *world);
void writer_free(Writer *writer);

// Allocates the host memory on the first call; -1 with err. writer_copy then copies this rank's tensors into it.
int writer_allocate(Writer *writer, Error *err);
void writer_copy(Writer *writer);

// Error code for a value that is not finite while train.skip_bad_steps is 0. Such an error must end the run.
enum { WRITER_BROKEN = 64 };

// Writes the copy into the files of `dir`, flushes them to the disk, and fills `shares`. `dir` and its files must not
// be symbolic links. -1 with err: WRITER_BROKEN if a value is not finite. With train.skip_bad_steps above 0, such a
// value is only described in `strange`.
int writer_write(Writer *writer, const char *dir, Error *err);
