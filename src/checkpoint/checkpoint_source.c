// Opens a directory of safetensors files that this program or transformers wrote. Indexes their tensors by name. Reads
// rectangles of the tensors in the element order of a rank's tensor, in several threads, one piece each at a time.
#include "checkpoint_source.h"
#include "base/alloc.h"

#include "base/crc64.h"
#include "base/json.h"
#include "base/threads.h"
#include "base/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- opening

// Reads a file's header and closes the file: a model may have more files than a process may keep open.
static int add_file_(Source *source, const char *name, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_path_within(path, source->dir, name, err) != 0) return -1;
    source->files = xgrow(source->files, source->file_count, sizeof *source->files);
    SafeFile *file = &source->files[source->file_count++];
    int status = safetensors_open(file, path, err);
    safetensors_release(file);
    return status;
}

static int compare_names_(const void *a, const void *b) {
    const SourceTensor *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int index_tensors_(Source *source, Error *err) {
    int64_t count = 0;
    for (int64_t f = 0; f < source->file_count; f++) count += source->files[f].count;
    source->tensors = xcalloc((size_t)count + 1, sizeof *source->tensors);
    for (int64_t f = 0; f < source->file_count; f++)
        for (int64_t i = 0; i < source->files[f].count; i++)
            source->tensors[source->tensor_count++] = (SourceTensor){&source->files[f].tensors[i], f, false};
    qsort(source->tensors, (size_t)count, sizeof *source->tensors, compare_names_);
    for (int64_t i = 1; i < count; i++)
        if (compare_names_(&source->tensors[i - 1], &source->tensors[i]) == 0)
            return error_set(err, EXIT_FAILED, "%s: tensor %.200s is in two files; save the model again", source->dir,
                             source->tensors[i].tensor->name);
    return 0;
}

int source_open_manifest(Source *source, const char *dir, const Manifest *manifest, Error *err) {
    *source = (Source){.dir = dir};
    for (int64_t i = 0; i < manifest->count; i++)
        if (name_ends_with(manifest->file[i].name, ".safetensors") &&
            add_file_(source, manifest->file[i].name, err) != 0)
            return -1;
    return index_tensors_(source, err);
}

// Opens every file that the index names, once. The headers of the files, not the index, then locate the tensors.
static int read_index_(Source *source, const char *path, Error *err) {
    Json json;
    int status = json_read_file(&json, path, err);
    const JsonValue *map = json_find(json.root, "weight_map");
    bool sound = map != NULL && map->type == JSON_OBJECT;
    for (const JsonValue *entry = sound ? map->first : NULL; entry != NULL && status == 0; entry = entry->next) {
        sound = sound && entry->type == JSON_TEXT;
        bool added = !sound;
        for (int64_t f = source->file_count - 1; f >= 0 && !added; f--)
            added = strcmp(strrchr(source->files[f].path, '/') + 1, entry->text) == 0;
        if (!added) status = add_file_(source, entry->text, err);
    }
    if (status == 0 && !sound)
        status = error_set(err, EXIT_FAILED, "%s: has no weight_map that names the file of every tensor", path);
    json_free(&json);
    return status;
}

int source_open_model(Source *source, const char *dir, Error *err) {
    char index[CHECKPOINT_PATH], single[CHECKPOINT_PATH];
    *source = (Source){.dir = dir};
    if (access(dir, R_OK | X_OK) != 0)
        return error_set(err, EXIT_FAILED, "cannot read the directory %s: %s; give a folder with the model's files",
                         dir, strerror(errno));
    if (file_path_within(index, dir, CHECKPOINT_INDEX, err) != 0) return -1;
    if (file_path_within(single, dir, "model.safetensors", err) != 0) return -1;
    bool indexed = access(index, F_OK) == 0, alone = access(single, F_OK) == 0;
    if (indexed && alone)
        return error_set(err, EXIT_FAILED,
                         "%s: the folder also has " CHECKPOINT_INDEX
                         ", which may be another model; remove one of the two files",
                         single);
    if (!indexed && !alone)
        return error_set(err, EXIT_FAILED,
                         "%s: holds neither model.safetensors nor " CHECKPOINT_INDEX "; save a model there with "
                         "save_pretrained(..., safe_serialization=True), or name a folder checkpoint.dir/step_*",
                         dir);
    int status = indexed ? read_index_(source, index, err) : add_file_(source, "model.safetensors", err);
    return status != 0 ? -1 : index_tensors_(source, err);
}

void source_close(Source *source) {
    for (int64_t f = 0; f < source->file_count; f++) safetensors_close(&source->files[f]);
    free_all(source->files, source->tensors);
    memset(source, 0, sizeof *source);
}

int source_sample(const Source *source, uint64_t *sum, Error *err) {
    enum { PLACE = 4096, PLACES = 64 }; // bytes of a place; places in all files, at least four in each
    Crc64 crc = crc64_make();
    char bytes[PLACE];
    int64_t places = 4 + PLACES / max_i64(source->file_count, 1);
    int status = 0;
    *sum = 0;
    for (int64_t f = 0; status == 0 && f < source->file_count; f++) {
        SafeFile file = source->files[f];
        int64_t length = min_i64(PLACE, file.bytes), apart = (file.bytes - length) / (places - 1);
        *sum = crc64_add(&crc, *sum, &file.bytes, sizeof file.bytes);
        status = safetensors_reopen(&file, err);
        for (int64_t i = 0; status == 0 && i < places; i++) {
            status = file_read(file.fd, file.path, i * apart, bytes, length, err);
            *sum = crc64_add(&crc, *sum, bytes, (size_t)length);
        }
        safetensors_release(&file);
    }
    return status;
}

// --- finding

static SourceTensor *find_exactly_(Source *source, const char *name) {
    SafeTensor key = {.name = (char *)name};
    SourceTensor wanted = {.tensor = &key};
    if (source->tensor_count == 0) return NULL;
    SourceTensor *found =
        bsearch(&wanted, source->tensors, (size_t)source->tensor_count, sizeof *source->tensors, compare_names_);
    if (found != NULL) found->asked = true;
    return found;
}

SourceTensor *source_find(Source *source, const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    SourceTensor *found = find_exactly_(source, name);
    for (int i = 0; i < 2 && found == NULL; i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0) found = find_exactly_(source, name + length);
    }
    return found;
}

int source_check(const Source *source, const SourceTensor *found, const TensorSpec *spec, Error *err) {
    const SafeTensor *have = found->tensor;
    SafeTensor want = {.dimensions = spec_is_vector(spec) ? 1 : 2, .shape = {spec->rows, spec->cols}};
    if (spec->transposed) want.shape[0] = spec->cols, want.shape[1] = spec->rows;
    bool same = have->dimensions == want.dimensions;
    for (int i = 0; same && i < want.dimensions; i++) same = have->shape[i] == want.shape[i];
    char is[96], should[96];
    if (!same)
        return error_set(err, EXIT_USAGE,
                         "%s: tensor %s is %s, but this model's is %s; set model.* to the checkpoint's sizes",
                         source->files[found->file].path, have->name, safetensors_shape(have, is, sizeof is),
                         safetensors_shape(&want, should, sizeof should));
    if (have->type != SAFE_OTHER) return 0;
    return error_set(err, EXIT_FAILED, "%s: tensor %s is not F32, F16, BF16 or F64; save it as one of them",
                     source->files[found->file].path, have->name);
}

// --- reading a piece

// Number of reading threads; each reads one piece at a time.
enum { LANES = 4 };

// One reading thread: its piece, the file that contains the piece, and memory for the values.
typedef struct ReadingThread {
    const Source *source;
    const Split *split;
    const ReadPiece *piece;
    int64_t next; // index in the tensor: the piece's elements before it are read or zeroed
    SafeFile open;
    void *raw; // buffer for a block in the file's type and order, or NULL
    int64_t raw_bytes;
    float *values; // (SOURCE_PIECE)
    int64_t strange;
    pthread_t thread;
    bool runs; // true: the thread is running; false: not started (the caller then reads the piece) or joined
    Error err;
} ReadingThread;

static int read_raw_(ReadingThread *lane, const FileBlock *at, char *raw) {
    if (at->run == at->stride)
        return file_read(lane->open.fd, lane->open.path, at->offset, raw, at->rows * at->run, &lane->err);
    for (int64_t r = 0; r < at->rows; r++)
        if (file_read(lane->open.fd, lane->open.path, at->offset + r * at->stride, raw + r * at->run, at->run,
                      &lane->err) != 0)
            return -1;
    return 0;
}

// Zeroes the elements from lane->next to `end`. Blocks arrive in order, so a gap between two blocks is padding.
static void clear_padding_(const ReadingThread *lane, int64_t end) {
    memset(lane->values + (lane->next - lane->piece->begin), 0, (size_t)(end - lane->next) * sizeof *lane->values);
}

// Reads a block as fp32. If the file stores it in fp32 and not transposed, reads it directly into the values.
static int read_block_(void *context, const Block *block) {
    ReadingThread *lane = context;
    const SafeTensor *from = lane->piece->found->tensor;
    const TensorSpec *spec = lane->piece->tensor->spec;
    float *to = lane->values + (block->first - lane->piece->begin);
    FileBlock at = block_in_file(spec, block, from->element);
    at.offset += from->offset;
    clear_padding_(lane, block->first);
    lane->next = block->first + block->rows * block->cols;
    if (from->type == SAFE_F32 && !spec->transposed) return read_raw_(lane, &at, (char *)to);
    if (at.rows * at.run > lane->raw_bytes) {
        free(lane->raw);
        lane->raw_bytes = at.rows * at.run;
        lane->raw = xmalloc((size_t)lane->raw_bytes);
    }
    if (read_raw_(lane, &at, lane->raw) != 0) return -1;
    const char *raw = lane->raw;
    if (!spec->transposed) return safetensors_to_float(to, raw, from->type, block->rows * block->cols), 0;
    float column[256];
    for (int64_t c = 0; c < block->cols; c++)
        for (int64_t r0 = 0; r0 < block->rows; r0 += 256) {
            int64_t n = block->rows - r0 < 256 ? block->rows - r0 : 256;
            safetensors_to_float(column, raw + (c * block->rows + r0) * from->element, from->type, n);
            for (int64_t r = 0; r < n; r++) to[(r0 + r) * lane->piece->tensor->cols + c] = column[r];
        }
    return 0;
}

static void *read_piece_(void *argument) {
    ReadingThread *lane = argument;
    const ReadPiece *piece = lane->piece;
    const Split *split = lane->split;
    lane->next = piece->begin;
    lane->open = lane->source->files[piece->found->file]; // shares the path and the tensor table of the source
    if (safetensors_reopen(&lane->open, &lane->err) == 0 &&
        tensor_blocks(piece->tensor, split->tensor_rank, split->tensor_ranks, piece->begin, piece->end, read_block_,
                      lane) == 0) {
        clear_padding_(lane, piece->end);
        lane->strange = find_not_finite(lane->values, piece->end - piece->begin, sizeof *lane->values);
    }
    safetensors_release(&lane->open);
    return NULL;
}

// --- reading all

// The caller's thread visits the pieces in order. So the results and the first error do not depend on the threads'
// speed, and only one thread uses the device. A lane gets its next piece once its previous piece was visited.
int pieces_read(const Source *source, const Split *split, const ReadPiece *pieces, int64_t count, PieceVisitor visit,
                void *context, Error *err) {
    ReadingThread lanes[LANES];
    int64_t started = 0;
    int status = 0;
    for (int l = 0; l < LANES; l++) {
        lanes[l] = (ReadingThread){.source = source, .split = split};
        lanes[l].values = xmalloc((size_t)SOURCE_PIECE * sizeof *lanes[l].values);
    }
    for (int64_t i = 0; status == 0 && i < count; i++) {
        ReadingThread *lane = &lanes[i % LANES];
        for (; started < count && started < i + LANES; started++) {
            ReadingThread *next = &lanes[started % LANES];
            next->piece = &pieces[started];
            next->runs = thread_start(&next->thread, read_piece_, next);
        }
        if (lane->runs) pthread_join(lane->thread, NULL);
        else read_piece_(lane);
        lane->runs = false;
        if (lane->err.code != 0) *err = lane->err;
        status = lane->err.code != 0 || visit(context, &pieces[i], lane->values, lane->strange, err) != 0 ? -1 : 0;
    }
    for (int l = 0; l < LANES; l++) {
        if (lanes[l].runs) pthread_join(lanes[l].thread, NULL);
        free_all(lanes[l].raw, lanes[l].values);
    }
    return status;
}
