// Opens a directory of safetensors files, our own or transformers', indexes its tensors by name, and reads rectangles
// of them into a rank's order of elements.
#include "checkpoint_source.h"
#include "base/alloc.h"

#include "checkpoint_model.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- opening

// Keeps only the header: a model may have more files than a process may hold open.
static int add_file_(Source *source, const char *name, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_path_within(path, source->dir, name, err) != 0) return -1;
    SafeFile *file = &source->files[source->file_count++];
    int status = safetensors_open(file, path, err);
    safetensors_release(file);
    return status;
}

static int source_compare_names_(const void *a, const void *b) {
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
    qsort(source->tensors, (size_t)count, sizeof *source->tensors, source_compare_names_);
    for (int64_t i = 1; i < count; i++)
        if (source_compare_names_(&source->tensors[i - 1], &source->tensors[i]) == 0)
            return error_set(err, EXIT_FAILED, "%s: tensor %.200s is in two files", source->dir,
                             source->tensors[i].tensor->name);
    return 0;
}

static int source_begin_(Source *source, const char *dir, int64_t files, Error *err) {
    memset(source, 0, sizeof *source);
    if (strlen(dir) >= sizeof source->dir) return error_set(err, EXIT_FAILED, "%.200s...: the path is too long", dir);
    strcpy(source->dir, dir);
    source->files = xcalloc((size_t)files + 1, sizeof *source->files);
    return 0;
}

int source_open_manifest(Source *source, const char *dir, const Manifest *manifest, Error *err) {
    if (source_begin_(source, dir, manifest->count, err) != 0) return -1;
    for (int64_t i = 0; i < manifest->count; i++)
        if (name_ends_with(manifest->file[i].name, ".safetensors") &&
            add_file_(source, manifest->file[i].name, err) != 0)
            return -1;
    return index_tensors_(source, err);
}

static bool has_file_(const Source *source, const char *name) {
    for (int64_t f = source->file_count - 1; f >= 0; f--) {
        const char *slash = strrchr(source->files[f].path, '/');
        if (slash != NULL && strcmp(slash + 1, name) == 0) return true;
    }
    return false;
}

// Opens every file of the index once, and takes every tensor from the file that the index names.
static int open_index_(Source *source, const JsonValue *map, const char *path, Error *err) {
    if (map == NULL || map->type != JSON_OBJECT) return error_set(err, EXIT_FAILED, "%s: has no weight_map", path);
    source->files = xcalloc((size_t)map->count + 1, sizeof *source->files);
    for (const JsonValue *entry = map->first; entry != NULL; entry = entry->next) {
        if (entry->type != JSON_TEXT) return error_set(err, EXIT_FAILED, "%s: %.200s names no file", path, entry->key);
        if (!has_file_(source, entry->text) && add_file_(source, entry->text, err) != 0) return -1;
    }
    return 0;
}

static int read_index_(Source *source, const char *path, Error *err) {
    Json json;
    int status = json_read_file(&json, path, err);
    if (status == 0) {
        free(source->files);
        source->files = NULL;
        status = open_index_(source, json_find(json.root, "weight_map"), path, err);
    }
    json_free(&json);
    return status;
}

int source_open_model(Source *source, const char *dir, Error *err) {
    char index[CHECKPOINT_PATH], single[CHECKPOINT_PATH];
    if (source_begin_(source, dir, 1, err) != 0) return -1;
    if (access(dir, R_OK | X_OK) != 0)
        return error_set(err, EXIT_FAILED, "cannot read the directory %s: %s", dir, strerror(errno));
    if (file_path_within(index, dir, CHECKPOINT_INDEX, err) != 0) return -1;
    if (file_path_within(single, dir, "model.safetensors", err) != 0) return -1;
    int status;
    if (access(index, F_OK) == 0) status = read_index_(source, index, err);
    else if (access(single, F_OK) == 0) status = add_file_(source, "model.safetensors", err);
    else
        status =
            error_set(err, EXIT_FAILED,
                      "%s: holds neither model.safetensors nor " CHECKPOINT_INDEX "; transformers writes them with "
                      "save_pretrained(..., safe_serialization=True), this program into checkpoint.dir/step_*",
                      dir);
    return status != 0 ? -1 : index_tensors_(source, err);
}

void source_close(Source *source) {
    for (int64_t f = 0; source->files != NULL && f < source->file_count; f++) safetensors_close(&source->files[f]);
    free_all(source->files, source->tensors);
    memset(source, 0, sizeof *source);
}

// --- finding

static SourceTensor *find_exactly_(Source *source, const char *name) {
    SafeTensor key = {.name = (char *)name};
    SourceTensor wanted = {.tensor = &key};
    if (source->tensor_count == 0) return NULL;
    SourceTensor *found =
        bsearch(&wanted, source->tensors, (size_t)source->tensor_count, sizeof *source->tensors, source_compare_names_);
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
                         "%s: tensor %s is %s, this model's is %s; the sizes in model.* have to be the checkpoint's",
                         source->files[found->file].path, have->name, safetensors_shape(have, is, sizeof is),
                         safetensors_shape(&want, should, sizeof should));
    if (have->type != SAFE_OTHER) return 0;
    return error_set(err, EXIT_FAILED, "%s: tensor %s is not F32, F16, BF16 or F64", source->files[found->file].path,
                     have->name);
}

// --- reading

void source_reader_open(SourceReader *reader, const Source *source) {
    *reader = (SourceReader){.source = source, .file = -1};
    reader->values = xmalloc((size_t)SOURCE_PIECE * sizeof *reader->values);
}

void source_reader_close(SourceReader *reader) {
    if (reader->file >= 0) safetensors_release(&reader->open);
    free_all(reader->raw, reader->values);
}

typedef struct Reading {
    SourceReader *reader;
    const SourceTensor *found;
    const Tensor *tensor;
    int64_t begin, next; // elements of the tensor before `next` have been read, or are padding
    Error *err;
} Reading;

static int read_raw_(const Reading *reading, const FileBlock *at, char *raw) {
    const SafeFile *file = &reading->reader->open;
    if (at->run == at->stride) return safetensors_read(file, at->offset, raw, at->rows * at->run, reading->err);
    for (int64_t r = 0; r < at->rows; r++)
        if (safetensors_read(file, at->offset + r * at->stride, raw + r * at->run, at->run, reading->err) != 0)
            return -1;
    return 0;
}

static void *raw_of_(SourceReader *reader, int64_t bytes) {
    if (bytes > reader->raw_bytes) {
        free(reader->raw);
        reader->raw = xmalloc((size_t)bytes);
        reader->raw_bytes = bytes;
    }
    return reader->raw;
}

// Turns columns of the file into rows of the rank's tensor.
static void turn_(const Reading *reading, const Block *block, const char *raw, float *to) {
    const SafeTensor *from = reading->found->tensor;
    int64_t stride = reading->tensor->cols;
    float column[256];
    for (int64_t c = 0; c < block->cols; c++)
        for (int64_t r0 = 0; r0 < block->rows; r0 += 256) {
            int64_t n = block->rows - r0 < 256 ? block->rows - r0 : 256;
            safetensors_to_float(column, raw + (c * block->rows + r0) * from->element, from->type, n);
            for (int64_t r = 0; r < n; r++) to[(r0 + r) * stride + c] = column[r];
        }
}

// Zeroes the padding: the gaps between the blocks, which arrive in order.
static void clear_padding_(Reading *reading, int64_t end) {
    float *values = reading->reader->values;
    memset(values + (reading->next - reading->begin), 0, (size_t)(end - reading->next) * sizeof *values);
}

// Reads a block straight to its place if the file has it as it is wanted.
static int read_block_(void *context, const Block *block) {
    Reading *reading = context;
    const SafeTensor *from = reading->found->tensor;
    float *to = reading->reader->values + (block->first - reading->begin);
    bool turned = reading->tensor->spec->transposed;
    FileBlock at = block_in_file(reading->tensor->spec, block, from->element);
    at.offset += from->offset;
    clear_padding_(reading, block->first);
    reading->next = block->first + block->rows * block->cols;
    if (from->type == SAFE_F32 && !turned) return read_raw_(reading, &at, (char *)to);
    char *raw = raw_of_(reading->reader, at.rows * at.run);
    if (read_raw_(reading, &at, raw) != 0) return -1;
    if (turned) turn_(reading, block, raw, to);
    else safetensors_to_float(to, raw, from->type, block->rows * block->cols);
    return 0;
}

static int use_file_(SourceReader *reader, int64_t file, Error *err) {
    if (reader->file == file) return 0;
    if (reader->file >= 0) safetensors_release(&reader->open);
    reader->file = -1;
    reader->open = reader->source->files[file]; // its path and table are the source's
    if (safetensors_reopen(&reader->open, err) != 0) return -1;
    reader->file = file;
    return 0;
}

// Checks one block at a time, which the compiler vectorizes; only a block with such a value is searched.
static int64_t find_strange_(const float *values, int64_t count) {
    enum { BLOCK = 4096 };
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t end = count - first < BLOCK ? count : first + BLOCK;
        int strange = 0;
        for (int64_t i = first; i < end; i++) strange |= !isfinite(values[i]);
        for (int64_t i = first; strange && i < end; i++)
            if (!isfinite(values[i])) return i;
    }
    return -1;
}

int source_read(SourceReader *reader, const SourceTensor *found, const Tensor *tensor, const Split *split,
                int64_t begin, int64_t end, Error *err) {
    Reading reading = {reader, found, tensor, begin, begin, err};
    if (use_file_(reader, found->file, err) != 0) return -1;
    if (tensor_blocks(tensor, split->tensor_rank, split->tensor_ranks, begin, end, read_block_, &reading) != 0)
        return -1;
    clear_padding_(&reading, end);
    reader->strange = find_strange_(reader->values, end - begin);
    return 0;
}
