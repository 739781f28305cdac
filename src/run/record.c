// Records checksums while a run trains, gathers them on rank 0, and compares two records. Gradients are recorded after
// the norm has been computed, and weights after the update. At these times all ranks agree on the values.
#include "record.h"
#include "base/alloc.h"
#include "base/crc64.h"
#include "base/files.h"
#include "base/units.h"

#include "checkpoint/checkpoint_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void record_free(Record *record) {
    free(record->words);
    memset(record, 0, sizeof *record);
}

// --- comparing

static double number_(uint64_t word) {
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

// A step's words are: loss, norm, a checksum of each gradient, a checksum of each updated weight. They are compared in
// the order in which a step computes them, so that the first difference causes all later differences.
int record_compare(const Record *one, const Record *other, const TensorTable *table, char *text, size_t size) {
    int64_t width = record_width(one), entries = table->count;
    if (one->first != other->first || one->steps != other->steps || one->entries != other->entries) {
        snprintf(text, size, "%" PRId64 " steps from step %" PRId64 " were run and %" PRId64 " from step %" PRId64,
                 one->steps, one->first, other->steps, other->first);
        return 1;
    }
    for (int64_t i = 0; i < one->steps * width; i++) {
        // Loss, gradients from the last tensor to the first, norm, weights.
        int64_t k = i % width, word = k == 0 ? 0 : k <= entries ? 2 + entries - k : k == entries + 1 ? 1 : k;
        uint64_t a = one->words[i - k + word], b = other->words[i - k + word];
        if (a == b) continue;
        int used = snprintf(text, size, "step %" PRId64 ": the ", one->first + i / width);
        text += used, size -= (size_t)used;
        if (word < 2)
            snprintf(text, size, "%s is %.17g and %.17g", word == 0 ? "loss" : "norm", number_(a), number_(b));
        else
            snprintf(text, size, "%s %s has the checksums %016" PRIx64 " and %016" PRIx64,
                     word < 2 + entries ? "gradient of" : "updated weight", table->specs[(word - 2) % entries].name, a,
                     b);
        return 1;
    }
    return 0;
}

// --- files: a head of three words (first, steps, entries), then the table

int record_write(const Record *record, const char *path, Error *err) {
    int64_t head[3] = {record->first, record->steps, record->entries};
    int64_t bytes = record->steps * record_width(record) * (int64_t)sizeof *record->words;
    int file = open(path, O_WRONLY | O_CLOEXEC);
    bool written =
        file >= 0 && file_write_all(file, head, sizeof head) == 0 && file_write_all(file, record->words, bytes) == 0;
    if (file >= 0) close(file);
    return written ? 0 : error_set(err, EXIT_FAILED, "--verify: cannot write the run's record: %s", strerror(errno));
}

int record_read(Record *record, int file, Error *err) {
    int64_t head[3];
    memset(record, 0, sizeof *record);
    if (pread(file, head, sizeof head, 0) != (ssize_t)sizeof head)
        return error_set(err, EXIT_FAILED, "the run has written no record");
    record->first = head[0], record->steps = head[1], record->entries = head[2];
    size_t bytes = (size_t)(record->steps * record_width(record)) * sizeof *record->words;
    record->words = xmalloc(bytes + 1);
    if (pread(file, record->words, bytes, sizeof head) == (ssize_t)bytes) return 0;
    return error_set(err, EXIT_FAILED, "the run's record is truncated");
}

// --- recording

struct Recorder {
    Record record;
    int64_t capacity; // steps
    Backend *be;
    Crc64 crc;
    char piece[1 << 20]; // values on their way from the device; stays in a core's cache
    uint64_t *mine;      // (entries): checksums of this rank's parts
    uint64_t *all;       // (ranks, entries): checksums of all ranks; NULL except on rank 0
};

int64_t recorder_last_step(const Recorder *recorder) { return recorder->record.first + recorder->capacity - 1; }

int recorder_create(Run *run, int64_t steps, Error *err) {
    Recorder *recorder = run->recorder = xcalloc(1, sizeof *recorder);
    int64_t left = run->config->train.steps - run->from.step, entries = run->stage.table.count;
    if (left < 1)
        return error_on_all(err, EXIT_USAGE,
                            "--verify: nothing is left to train: the checkpoint is at step %" PRId64
                            " and train.steps (the total) is %" PRId64,
                            run->from.step, run->config->train.steps);
    recorder->capacity = steps < left ? steps : left;
    recorder->record = (Record){run->from.step + 1, 0, entries, NULL};
    recorder->be = run->be;
    recorder->crc = crc64_make();
    recorder->mine = xcalloc((size_t)entries, sizeof *recorder->mine);
    if (world_rank(run->world) > 0) return 0;
    int64_t words = recorder->capacity * record_width(&recorder->record);
    recorder->all = xcalloc((size_t)(world_size(run->world) * entries), sizeof *recorder->all);
    recorder->record.words = xcalloc((size_t)words, sizeof *recorder->record.words);
    return 0;
}

void recorder_destroy(Recorder *recorder) {
    if (recorder == NULL) return;
    record_free(&recorder->record);
    free_all(recorder->mine, recorder->all, recorder);
}

Record recorder_take(Recorder *recorder) {
    Record record = recorder->record;
    recorder->record.words = NULL;
    return record;
}

// A rank's part of one tensor: its values, and their checksum so far.
typedef struct TensorPart {
    Recorder *recorder;
    const Tensor *tensor;
    const float *values; // address of element `begin`
    int64_t begin;
    uint64_t raw;
} TensorPart;

// Adds the checksum of `count` values. They begin at element `from` of the rank's tensor, which is element `to` of the
// unsharded tensor.
static void add_run_(TensorPart *part, int64_t from, int64_t to, int64_t count) {
    Recorder *recorder = part->recorder;
    Backend *be = recorder->be;
    const TensorSpec *spec = part->tensor->spec;
    const char *values = (const char *)(part->values + (from - part->begin));
    int64_t bytes = count * 4, after = (spec->rows * spec->cols - to - count) * 4;
    uint64_t raw = 0;
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = min_i64(bytes - at, sizeof recorder->piece);
        be->download(be, recorder->piece, values + at, n);
        raw = crc64_add(&recorder->crc, raw, recorder->piece, (size_t)n);
    }
    part->raw ^= crc64_times(raw, crc64_shift(&recorder->crc, after));
}

static int add_block_(void *context, const Block *block) {
    TensorPart *part = (TensorPart *)context;
    int64_t width = part->tensor->spec->cols, stride = part->tensor->cols;
    if (block->cols == width && stride == width) { // full rows: one run
        add_run_(part, block->first, block->row * width, block->rows * width);
        return 0;
    }
    for (int64_t r = 0; r < block->rows; r++)
        add_run_(part, block->first + r * stride, (block->row + r) * width + block->col, block->cols);
    return 0;
}

// Writes the checksums of all tensors' gradients, or else weights, to `to` (entries) on rank 0. Collective.
static int tensors_(Run *run, bool gradients, uint64_t *to, Error *err) {
    const StageTensors *tensors = &run->stage.tensors;
    Recorder *recorder = run->recorder;
    memset(recorder->mine, 0, (size_t)run->stage.table.count * sizeof *recorder->mine);
    for (int64_t i = 0; i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        TensorPiece piece = tensors_piece(tensors, i);
        if (tensor->alias || piece.begin >= piece.end || !optimizer_counts(&run->stage, tensor)) continue;
        const float *weights = piece.master != NULL ? piece.master : (const float *)piece.weight;
        TensorPart part = {recorder, tensor, gradients ? piece.gradient : weights, piece.begin, 0};
        tensor_blocks(tensor, tensors->split.tensor_rank, tensors->split.tensor_ranks, piece.begin, piece.end,
                      add_block_, &part);
        recorder->mine[tensor->index] = part.raw;
    }
    const TensorTable *table = &run->stage.table;
    if (world_gather(run->world, recorder->all, recorder->mine, table->count * (int64_t)sizeof *to, err) != 0)
        return -1;
    if (world_rank(run->world) > 0) return 0;
    memset(to, 0, (size_t)table->count * sizeof *to);
    for (int64_t i = 0; i < world_size(run->world) * table->count; i++) to[i % table->count] ^= recorder->all[i];
    for (int64_t i = 0; i < table->count; i++) {
        const TensorSpec *spec = &table->specs[i];
        if (spec->tied_to < 0) to[i] = crc64_finish(&recorder->crc, to[i], spec->rows * spec->cols * 4);
    }
    return 0;
}

// Returns the record's row of the step in progress; NULL except on rank 0.
static uint64_t *row_(const Recorder *recorder) {
    const Record *record = &recorder->record;
    return record->words == NULL ? NULL : record->words + record->steps * record_width(record);
}

int recorder_gradients(Run *run, double loss, double norm, Error *err) {
    uint64_t *row = row_(run->recorder);
    if (row != NULL) {
        memcpy(&row[0], &loss, sizeof loss);
        memcpy(&row[1], &norm, sizeof norm);
    }
    return tensors_(run, true, row == NULL ? NULL : row + 2, err);
}

int recorder_weights(Run *run, Error *err) {
    uint64_t *row = row_(run->recorder);
    if (tensors_(run, false, row == NULL ? NULL : row + 2 + run->stage.table.count, err) != 0) return -1;
    run->recorder->record.steps++;
    return 0;
}
