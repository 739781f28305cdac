// Several threads read pieces of tensors. The caller gets complete pieces in order, and the first error at its place.
#include "base/crc64.h"
#include "checkpoint/checkpoint_source.h"
#include "scratch_folder.h"
#include "unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 301, COLS = 40, ELEMENTS = ROWS * COLS, PIECE = 700, TENSORS = 3 };

static const char *const NAMES[TENSORS] = {"plain", "turned", "half"};
static const SafeType TYPES[TENSORS] = {SAFE_F32, SAFE_F32, SAFE_BF16};

// Returns the value of element i of tensor t, exact in bf16 too.
static float value_of(int t, int64_t i) { return (float)(i % 200 + t); }

// Writes model.safetensors. strange: index of the element of "plain" that is not a number; -1: all are numbers.
static void write_model(int64_t strange) {
    SafeHeader header;
    safetensors_header_begin(&header);
    for (int t = 0; t < TENSORS; t++)
        safetensors_header_add(&header, NAMES[t], TYPES[t], 2, t == 1 ? COLS : ROWS, t == 1 ? ROWS : COLS);
    safetensors_header_end(&header);
    FILE *file = fopen(test_path("model.safetensors"), "wb");
    assert_non_null(file);
    fwrite(header.text, 1, header.bytes, file);
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < ELEMENTS; i++) {
            float value = value_of(t, t == 1 ? i % ROWS * COLS + i / ROWS : i);
            if (t == 0 && i == strange) value = NAN;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            uint16_t upper = (uint16_t)(bits >> 16);
            fwrite(t == 2 ? (void *)&upper : (void *)&value, t == 2 ? 2 : 4, 1, file);
        }
    fclose(file);
    free(header.text);
}

typedef struct Model {
    Source source;
    TensorSpec spec[TENSORS];
    Tensor tensor[TENSORS];
    ReadPiece piece[TENSORS * (ELEMENTS / PIECE + 1)];
    int64_t pieces, seen;
    int64_t refuse; // index of the piece that the visitor refuses, or -1
    int64_t wrong;  // number of pieces out of order and of wrong values
} Model;

static Model *model_open(int64_t strange) {
    Model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    model->refuse = -1;
    write_model(strange);
    assert_succeeds(source_open_model(&model->source, test_folder, &unit_error));
    for (int t = 0; t < TENSORS; t++) {
        model->spec[t] = (TensorSpec){.rows = ROWS, .cols = COLS, .parts = 1, .transposed = t == 1, .tied_to = -1};
        model->tensor[t] = (Tensor){.spec = &model->spec[t], .rows = ROWS, .cols = COLS, .count = ELEMENTS};
        const SourceTensor *found = source_find(&model->source, NAMES[t]);
        assert_non_null(found);
        for (int64_t at = 0; at < ELEMENTS; at += PIECE)
            model->piece[model->pieces++] = (ReadPiece){
                found, &model->tensor[t], t, STATE_WEIGHT, at, at + PIECE < ELEMENTS ? at + PIECE : ELEMENTS};
    }
    return model;
}

// Only counts mistakes: a failed assertion would jump out of the function while other threads still read.
static int take(void *context, const ReadPiece *piece, const float *values, int64_t strange, Error *err) {
    Model *model = context;
    model->wrong += piece != &model->piece[model->seen];
    if (model->seen++ == model->refuse) return error_set(err, EXIT_FAILED, "refused");
    for (int64_t i = piece->begin; i < piece->end && strange < 0; i++)
        model->wrong += values[i - piece->begin] != value_of((int)piece->index, i);
    return 0;
}

static int read_all(Model *model, Error *err) {
    Split whole = {.tensor_ranks = 1, .data_ranks = 1};
    return pieces_read(&model->source, &whole, model->piece, model->pieces, take, model, err);
}

static void model_close(Model *model) {
    source_close(&model->source);
    free(model);
}
UNIT_END(Model, model_close)
#define AutoModel UNIT_ENDS(model_close) Model

TEST(pieces_come_whole_and_in_order) {
    AutoModel *model = model_open(-1);
    for (int again = 0; again < 20; again++) {
        model->seen = 0;
        assert_succeeds(read_all(model, &unit_error));
        assert_int_equal(model->seen, model->pieces);
        assert_int_equal(model->wrong, 0);
    }
    model->pieces = 0;
    assert_succeeds(read_all(model, &unit_error));
}

static int find_strange(void *context, const ReadPiece *piece, const float *values, int64_t strange, Error *err) {
    (void)values, (void)err;
    int64_t *found = context;
    if (strange >= 0) *found = piece->begin + strange;
    return 0;
}

TEST(a_value_that_is_not_finite_is_pointed_out) {
    AutoModel *model = model_open(3 * PIECE + 17);
    Split whole = {.tensor_ranks = 1, .data_ranks = 1};
    int64_t found = -1;
    assert_succeeds(
        pieces_read(&model->source, &whole, model->piece, model->pieces, find_strange, &found, &unit_error));
    assert_int_equal(found, 3 * PIECE + 17);
}

TEST(a_refused_piece_is_the_last) {
    AutoModel *model = model_open(-1);
    for (model->refuse = 0; model->refuse < model->pieces; model->refuse++) {
        Error err = {0};
        model->seen = 0;
        assert_int_equal(read_all(model, &err), -1);
        assert_string_equal(err.text, "refused");
        assert_int_equal(model->seen, model->refuse + 1);
    }
}

TEST(a_file_that_shrank_is_named_before_any_piece_is_taken) {
    AutoModel *model = model_open(-1);
    assert_int_equal(truncate(test_path("model.safetensors"), 5000), 0);
    assert_refused(read_all(model, &unit_error), EXIT_FAILED, "model.safetensors");
    assert_int_equal(model->seen, 0);
}

// Otherwise train.timeout_s would end a job that checks large files on a busy disk.
TEST(every_piece_of_a_file_that_is_checked_is_progress) {
    enum { BYTES = 40 << 20, PIECES = 10 };
    Crc64 crc = crc64_make();
    ManifestFile zeros = {"zeros", BYTES, crc64_finish(&crc, 0, BYTES)};
    Manifest manifest = {.file = &zeros, .count = 1};
    test_file_write("zeros", "", 0);
    assert_int_equal(truncate(test_path("zeros"), BYTES), 0);
    assert_succeeds(manifest_write(&manifest, test_folder, &unit_error));
    World *world = assert_made(world_join(NULL, NULL, &unit_error));
    StatusPage *page = status_page_create(false);
    RankStatus status;
    world_set_status_page(world, page);
    assert_succeeds(checkpoint_verify(test_folder, 0, 1, world, &unit_error));
    status_page_read(page, &status);
    assert_true(status.progress >= PIECES);
    world_leave(world, 0);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
