// Checking the files of a checkpoint and reading its tensors, in the page cache: one thread alone against the threads
// that do it. Both sides alternate; the ratio is the median of the pairs.
//   bench_load DIR    a checkpoint, checkpoint.dir/step_*; without one the benchmark is skipped
#include "base/clock.h"
#include "base/files.h"
#include "checkpoint/checkpoint_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5 };

typedef struct Load {
    const char *dir;
    Crc64 crc;
    Manifest manifest;
    Source source;
    TensorSpec *spec;
    Tensor *tensor;
    ReadPiece *piece;
    int64_t pieces;
    float *to;
} Load;

static const Split WHOLE = {.tensor_ranks = 1, .data_ranks = 1};

static void check(int status, const Error *err) {
    if (status == 0) return;
    fprintf(stderr, "bench_load: %s\n", err->text);
    exit(1);
}

// Every tensor in pieces, for one rank that has all of them as the files do.
static void list_pieces(Load *load) {
    int64_t tensors = load->source.tensor_count, room = 0;
    load->spec = calloc((size_t)tensors, sizeof *load->spec);
    load->tensor = calloc((size_t)tensors, sizeof *load->tensor);
    for (int64_t t = 0; t < tensors; t++) {
        const SafeTensor *have = load->source.tensors[t].tensor;
        int64_t rows = have->shape[0], cols = have->dimensions > 1 ? have->shape[1] : 1, count = rows * cols;
        load->spec[t] = (TensorSpec){.rows = rows, .cols = cols, .parts = 1, .tied_to = -1};
        load->tensor[t] = (Tensor){.spec = &load->spec[t], .rows = rows, .cols = cols, .count = count};
        for (int64_t at = 0, end; at < count; at = end) {
            end = count - at < SOURCE_PIECE ? count : at + SOURCE_PIECE;
            if (load->pieces == room) {
                room = 2 * room + 64;
                load->piece = realloc(load->piece, (size_t)room * sizeof *load->piece);
            }
            load->piece[load->pieces++] =
                (ReadPiece){&load->source.tensors[t], &load->tensor[t], t, STATE_WEIGHT, at, end};
        }
    }
}

static void check_alone(Load *load) {
    enum { BYTES = 4 << 20 };
    char path[CHECKPOINT_PATH], *piece = malloc(BYTES);
    Error err = {0};
    for (int64_t i = 0; i < load->manifest.count; i++) {
        int64_t bytes = 0;
        uint64_t raw = 0;
        check(path_join(path, load->dir, load->manifest.file[i].name, &err), &err);
        int fd = file_open(path, &bytes, &err);
        check(fd < 0 ? -1 : 0, &err);
        for (int64_t at = 0; at < bytes; at += BYTES) {
            int64_t part = bytes - at < BYTES ? bytes - at : BYTES;
            check(file_read(fd, path, at, piece, part, &err), &err);
            raw = crc64_add(&load->crc, raw, piece, (size_t)part);
        }
        close(fd);
        if (crc64_finish(&load->crc, raw, bytes) != load->manifest.file[i].crc)
            check(error_set(&err, EXIT_FAILED, "%s: the checksum differs", path), &err);
    }
    free(piece);
}

static void check_by_threads(Load *load) {
    Error err = {0};
    check(manifest_check(&load->manifest, 0, 1, load->dir, NULL, &err), &err);
}

static int take(void *context, const ReadPiece *piece, const ReadValues *read, Error *err) {
    (void)err;
    memcpy(((Load *)context)->to, read->values, (size_t)(piece->end - piece->begin) * sizeof(float));
    return 0;
}

static void read_alone(Load *load) {
    SourceReader reader;
    Error err = {0};
    source_reader_open(&reader, &load->source);
    for (int64_t i = 0; i < load->pieces; i++) {
        const ReadPiece *piece = &load->piece[i];
        check(source_read(&reader, piece->found, piece->tensor, &WHOLE, piece->begin, piece->end, &err), &err);
        take(load, piece, &(ReadValues){reader.values, -1}, &err);
    }
    source_reader_close(&reader);
}

static void read_by_threads(Load *load) {
    Error err = {0};
    check(pieces_read(&load->source, &WHOLE, load->piece, load->pieces, take, load, &err), &err);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double seconds_of(Load *load, void (*work)(Load *)) {
    double start = clock_seconds();
    work(load);
    return clock_seconds() - start;
}

static void compare(Load *load, const char *name, void (*alone)(Load *), void (*threads)(Load *)) {
    double ratio[ROUNDS], best = 1e9;
    alone(load); // into the page cache
    for (int i = 0; i < ROUNDS; i++) {
        double one = seconds_of(load, alone), several = seconds_of(load, threads);
        ratio[i] = one / several;
        if (several < best) best = several;
    }
    qsort(ratio, ROUNDS, sizeof *ratio, by_size);
    printf("%s: one thread / several = %.2f (from %.2f to %.2f); several, at best: %.3f s\n", name, ratio[ROUNDS / 2],
           ratio[0], ratio[ROUNDS - 1], best);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("skipped: name a checkpoint, bench_load checkpoints/step_00000010\n");
        return 0;
    }
    Error err = {0};
    Load *load = calloc(1, sizeof *load);
    load->dir = argv[1];
    load->to = calloc(SOURCE_PIECE, sizeof *load->to);
    crc64_init(&load->crc);
    check(manifest_read(&load->manifest, load->dir, &err), &err);
    check(source_open_manifest(&load->source, load->dir, &load->manifest, &err), &err);
    list_pieces(load);
    compare(load, "checksums", check_alone, check_by_threads);
    compare(load, "tensors", read_alone, read_by_threads);
    source_close(&load->source);
    manifest_free(&load->manifest);
    free(load->spec), free(load->tensor), free(load->piece), free(load->to), free(load);
    return 0;
}
