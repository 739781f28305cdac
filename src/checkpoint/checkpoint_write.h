// The part of a checkpoint that one rank writes: which elements, their copy in host memory, and writing them to files.
#pragma once

#include "checkpoint_files.h"
#include "checkpoint_layout.h"
#include "engine/stage.h"
#include "ranks/world.h"

#include <stdatomic.h>

// A run of elements of one tensor's state that this rank writes.
typedef struct WritePart {
    const Tensor *tensor;
    StateKind kind;
    int file;           // index of the file in the layout
    int64_t begin, end; // elements of this rank's tensor
    int64_t element;    // bytes
    const void *source; // on the device, of element `begin`
    int64_t image;      // bytes, into the copy
} WritePart;

// The bytes that this rank wrote into one file.
typedef struct WriteShare {
    uint64_t raw; // checksum of these bytes at their place among zeros
    int64_t bytes;
} WriteShare;

// Threads that write, one file each at a time.
enum { WRITER_LANES = 2 };

typedef struct Writer {
    const Stage *stage;
    CheckpointLayout layout;
    Crc64 crc;
    WritePart *parts; // in the order of their files
    int64_t part_count;
    char *image;
    int64_t image_bytes;
    void *scratch[WRITER_LANES]; // for rows of matrices that are transposed in files; at least one
    int64_t scratch_bytes;
    void *staging[WRITER_LANES]; // range_file.h
    WriteShare *shares;          // (layout.files)
    World *world;                // informed when bytes were written
    atomic_bool cancel;          // ends writer_write early
    // --- of the write in progress
    const char *dir;
    int dir_fd;
    atomic_flag strange_taken;
    char strange[256]; // the first value found that is not finite, as words; may be empty
} Writer;

void writer_create(Writer *writer, const Stage *stage, World *world);
void writer_free(Writer *writer);

// Copies this rank's tensors into host memory, which the first call allocates.
int writer_allocate(Writer *writer, Error *err);
void writer_copy(Writer *writer);

// The code of an error that must end the run: the state is not worth saving.
enum { WRITER_BROKEN = 64 };

// Writes the copy into the files of `dir`, which is created if necessary, down to the disk, and fills `shares`.
// Symbolic links are not followed: neither `dir` nor a file in it may be one. A value that is not finite fails with
// WRITER_BROKEN, or is described in `strange` if train.skip_bad_steps allows a run to continue with such values.
int writer_write(Writer *writer, const char *dir, Error *err);
