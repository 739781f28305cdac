// Writes one rank's part of a checkpoint. Its tensors and their places in files are fixed when the writer is created.
// Each save copies the tensors into one block of host memory; two lanes write this block into the files.
#include "checkpoint_write.h"
#include "base/alloc.h"
#include "base/threads.h"
#include "base/units.h"

#include "range_file.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// --- the list of this rank's tensors

// Adds the part of a tensor that this rank writes, if any. Tensor rank 0 writes replicated tensors, and a tied head is
// stored only as the embedding. A rank writes the piece for which it owns the optimizer states; tensor ranks own
// different pieces of an expert.
static void add_part_(Writer *writer, int64_t index, StateKind kind) {
    const StageTensors *tensors = &writer->stage->tensors;
    const Tensor *tensor = &tensors->tensors[index];
    TensorPiece piece = tensors_piece(tensors, index);
    bool muon = piece.v == NULL;
    const void *sources[STATE_KINDS] = {piece.weight, piece.master, muon ? NULL : piece.m, piece.v,
                                        muon ? piece.m : NULL};
    bool same = tensor->spec->split == SPLIT_NONE && tensor->spec->expert < 0; // the same on all tensor ranks
    bool replica = same && writer->stage->at.shape.tensor_rank > 0;
    if (replica || tensor->spec->tied_to >= 0 || piece.begin >= piece.end || sources[kind] == NULL) return;
    WritePart part = {tensor,
                      kind,
                      layout_file(&writer->layout, tensor->index, kind),
                      piece.begin,
                      piece.end,
                      kind == STATE_WEIGHT ? unit_element(tensors, &tensors->units[tensor->unit]) : 4,
                      sources[kind],
                      writer->image_bytes};
    writer->image_bytes += memory_round((part.end - part.begin) * part.element);
    if (tensor->spec->transposed && tensor->rows * part.element > writer->scratch_bytes)
        writer->scratch_bytes = tensor->rows * part.element;
    writer->parts[writer->part_count++] = part;
}

void writer_create(Writer *writer, const Stage *stage, World *world) {
    *writer = (Writer){.stage = stage, .world = world, .crc = crc64_make(), .scratch_bytes = RANGE_FILE_STAGING};
    layout_create(&writer->layout, &stage->table, &stage->config->train);
    writer->parts = xcalloc((size_t)stage->tensors.count * STATE_KINDS, sizeof *writer->parts);
    writer->shares = xcalloc((size_t)writer->layout.files, sizeof *writer->shares);
    for (int64_t i = 0; i < stage->tensors.count; i++) add_part_(writer, i, STATE_WEIGHT);
    for (int64_t i = 0; i < stage->tensors.count; i++)
        for (int kind = STATE_MASTER; kind < STATE_KINDS; kind++) add_part_(writer, i, (StateKind)kind);
    if (writer->image_bytes == 0) writer->image_bytes = MEMORY_ALIGN; // mmap refuses 0 bytes
}

void writer_free(Writer *writer) {
    if (writer->stage == NULL) return; // writer_create was never called
    layout_free(&writer->layout);
    free_all(writer->parts, writer->shares);
    Backend *be = writer->stage->be;
    if (writer->image != NULL && be->unpin != NULL) be->unpin(be, writer->image);
    if (writer->image != NULL) munmap(writer->image, (size_t)writer->image_bytes);
    for (int lane = 0; lane < WRITER_LANES; lane++) free_all(writer->scratch[lane], writer->staging[lane]);
}

int writer_allocate(Writer *writer, Error *err) {
    Backend *be = writer->stage->be;
    size_t bytes = (size_t)writer->image_bytes;
    if (writer->image != NULL) return 0;
    void *image = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED)
        return error_set(err, EXIT_FAILED,
                         "out of host memory for the %.2f GiB staging copy of a checkpoint; run fewer ranks per host",
                         (double)bytes / GIB);
    // Training waits for the copy: huge and pinned pages make it faster.
    madvise(image, bytes, MADV_HUGEPAGE);
    if (be->pin != NULL) be->pin(be, image, writer->image_bytes, NULL);
    writer->image = image;
    for (int lane = 0; lane < WRITER_LANES; lane++) {
        writer->scratch[lane] = xmalloc((size_t)writer->scratch_bytes);
        writer->staging[lane] = xaligned(RANGE_FILE_BLOCK, RANGE_FILE_STAGING);
    }
    return 0;
}

void writer_copy(Writer *writer) {
    Backend *be = writer->stage->be;
    for (int64_t i = 0; i < writer->part_count; i++) {
        const WritePart *part = &writer->parts[i];
        be->download(be, writer->image + part->image, part->source, (part->end - part->begin) * part->element);
    }
}

// --- bytes into one file

typedef struct OpenFile {
    Writer *writer;
    int lane;
    RangeFile *range;
    int64_t bytes; // bytes of the file
    WriteShare *share;
    const WritePart *part;
    Error *err;
} OpenFile;

// Writes rows of at->run bytes that are consecutive in memory, at->stride apart in the file.
static int put_rows_(const OpenFile *file, const FileBlock *at, const char *data) {
    const Crc64 *crc = &file->writer->crc;
    bool together = at->run == at->stride;
    int64_t rows = together ? 1 : at->rows, run = together ? at->rows * at->run : at->run;
    uint64_t raw = 0, step = rows > 1 ? crc64_shift(crc, at->stride) : 0;
    for (int64_t r = 0; r < rows; r++) {
        uint64_t own = 0;
        for (int64_t done = 0, put; done < run; done += put, data += put) {
            if (atomic_load(&file->writer->cancel)) return error_set(file->err, EXIT_FAILED, "the run ended");
            put = range_file_put(file->range, at->offset + r * at->stride + done, data, run - done, file->err);
            if (put < 0) return -1;
            world_progress(file->writer->world);
            own = crc64_add(crc, own, data, (size_t)put);
        }
        // Appends the gap and the new row, together one stride, to the checksum.
        raw = (r == 0 ? 0 : crc64_times(raw, step)) ^ own;
    }
    int64_t after = file->bytes - (at->offset + (rows - 1) * at->stride + run);
    file->share->raw ^= crc64_times(raw, crc64_shift(crc, after));
    file->share->bytes += rows * run;
    return 0;
}

// Transposes `from` (rows, cols), with a row stride of `stride` elements, into `to` (cols, rows). Works in tiles, so
// that rows stay in the cache until all their elements are used.
enum { TILE = 32 };

static inline __attribute__((always_inline)) void transpose_(char *to, const char *from, int64_t rows, int64_t cols,
                                                             int64_t stride, size_t element) {
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++)
                memcpy(to + (c * rows + r) * (int64_t)element, from + (r * stride + c) * (int64_t)element, element);
}

// Checks a block for values that are not finite, and writes it. A step with a non-finite gradient is stopped before its
// update, but a value that no gradient reaches, as in an embedding row of an unused token, is found only by reading it.
static int put_block_(void *context, const Block *block) {
    const OpenFile *file = context;
    Writer *writer = file->writer;
    const WritePart *part = file->part;
    const TensorSpec *spec = part->tensor->spec;
    int64_t stride = part->tensor->cols, found = -1, row = 0;
    const char *data = writer->image + part->image + (block->first - part->begin) * part->element;
    for (; row < block->rows && found < 0; row++)
        found = find_not_finite(data + row * stride * part->element, block->cols, part->element);
    if (found >= 0) {
        char text[sizeof writer->strange];
        snprintf(text, sizeof text, "%s%s has a non-finite value in row %lld, column %lld", spec->name,
                 state_suffix[part->kind], (long long)(block->row + row - 1), (long long)(block->col + found));
        if (writer->stage->config->train.skip_bad_steps == 0) return error_set(file->err, WRITER_BROKEN, "%s", text);
        if (!atomic_flag_test_and_set(&writer->strange_taken)) strcpy(writer->strange, text);
    }
    FileBlock at = block_in_file(spec, block, part->element);
    at.offset += writer->layout.offset[part->tensor->index * STATE_KINDS + part->kind];
    if (!spec->transposed) return put_rows_(file, &at, data);
    // Each column becomes a row of the file; transpose as many at a time as the scratch memory holds.
    int64_t most = writer->scratch_bytes / at.run, rows = at.rows;
    void *scratch = writer->scratch[file->lane];
    for (int64_t done = 0; done < rows; done += most) {
        at.rows = rows - done < most ? rows - done : most;
        if (part->element == 4) transpose_(scratch, data + 4 * done, block->rows, at.rows, stride, 4);
        else transpose_(scratch, data + 2 * done, block->rows, at.rows, stride, 2);
        if (put_rows_(file, &at, scratch) != 0) return -1;
        at.offset += at.rows * at.stride;
    }
    return 0;
}

// --- all files

static int write_file_(void *context, int lane, int64_t index, Error *err) {
    Writer *writer = context;
    const LayoutFile *layout = &writer->layout.file[index];
    const StageTensors *tensors = &writer->stage->tensors;
    const Split *split = &tensors->split;
    char path[CHECKPOINT_PATH];
    RangeFile range;
    // A rank writes a file's header if its tensor and data rank are 0 and its stage has tensors of the file.
    bool header = false;
    for (int64_t i = 0; i < tensors->count && split->tensor_rank == 0 && split->data_rank == 0 && !header; i++)
        header = layout_group(&writer->layout, tensors->tensors[i].index) == index % writer->layout.groups;
    bool touches = header;
    for (int64_t i = 0; i < writer->part_count; i++) touches = touches || writer->parts[i].file == index;
    if (!touches) return 0;
    if (file_join(path, writer->dir, layout->name, err) != 0) return -1;
    if (range_file_open(&range, writer->dir_fd, layout->name, path, layout->bytes, writer->staging[lane], err) != 0)
        return -1;
    OpenFile file = {writer, lane, &range, layout->bytes, &writer->shares[index], NULL, err};
    FileBlock at = {0, 1, layout->header_bytes, layout->header_bytes};
    int status = header ? put_rows_(&file, &at, layout->header) : 0;
    for (int64_t i = 0; i < writer->part_count && status == 0; i++) {
        const WritePart *part = file.part = &writer->parts[i];
        if (part->file == index)
            status = tensor_blocks(part->tensor, split->tensor_rank, split->tensor_ranks, part->begin, part->end,
                                   put_block_, &file);
    }
    return range_file_close(&range, status == 0, err) == 0 ? status : -1;
}

// While one lane waits for the disk, the other computes checksums and transposes.
int writer_write(Writer *writer, const char *dir, Error *err) {
    memset(writer->shares, 0, (size_t)writer->layout.files * sizeof *writer->shares);
    writer->dir_fd = directory_open(dir, err);
    if (writer->dir_fd < 0) return -1;
    writer->dir = dir;
    writer->strange[0] = '\0';
    atomic_flag_clear(&writer->strange_taken);
    int status = threads_each(WRITER_LANES, writer->layout.files, write_file_, writer, err);
    close(writer->dir_fd);
    return status;
}
