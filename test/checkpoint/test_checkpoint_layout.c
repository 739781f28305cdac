// Places of elements in checkpoint files: every element of the model has one place, independent of the rank's shard.
#include "models.h"
#include "made_plan.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_write.h"
#include "unit.h"

#include <string.h>

// Counts how often each element of a tensor is placed in its file, and checks that the local value is the element's
// index in the tensor.
typedef struct Marks {
    const Tensor *tensor;
    const float *local; // the rank's values: row-major index in the unsharded tensor, -1 for padding
    int64_t begin, end;
    int *named;
    int64_t seen; // elements of the range seen so far
} Marks;

static int mark_(void *context, const Block *block) {
    Marks *marks = context;
    const TensorSpec *spec = marks->tensor->spec;
    FileBlock at = block_in_file(spec, block, 1);
    for (int64_t r = 0; r < at.rows; r++)
        for (int64_t c = 0; c < at.run; c++) {
            int64_t place = at.offset + r * at.stride + c;
            int64_t row = spec->transposed ? place % spec->rows : place / spec->cols;
            int64_t col = spec->transposed ? place / spec->rows : place % spec->cols;
            int64_t down = spec->transposed ? c : r, right = spec->transposed ? r : c;
            int64_t element = block->first + down * marks->tensor->cols + right;
            assert_true(element >= marks->begin && element < marks->end);
            assert_true(marks->local[element] == (float)(row * spec->cols + col));
            marks->named[place]++;
            marks->seen++;
        }
    return 0;
}

// Returns the number of elements of the range that are not padding.
static int64_t real_(const Marks *marks) {
    int64_t real = 0;
    for (int64_t i = marks->begin; i < marks->end; i++) real += marks->local[i] >= 0.0f;
    return real;
}

static float *number_(const Tensor *tensor, int rank, int ranks) {
    float *local = calloc((size_t)tensor->count + 1, sizeof *local);
    assert_non_null(local);
    for (int64_t i = 0; i < tensor->count; i++) {
        int64_t row = tensor_global_row(tensor, i / tensor->cols, rank, ranks);
        int64_t col = tensor_global_col(tensor, i % tensor->cols, rank, ranks);
        local[i] = row < 0 ? -1.0f : (float)(row * tensor->spec->cols + col);
    }
    return local;
}

static void check_rank_(const TensorSpec *spec, int rank, int ranks, int64_t piece, int *named) {
    int64_t rows = tensor_padded_rows(spec, ranks) / (spec->split == SPLIT_ROWS ? ranks : 1);
    int64_t cols = spec->split == SPLIT_COLS ? spec->cols / ranks : spec->cols;
    Tensor tensor = {.spec = spec, .rows = rows, .cols = cols, .count = rows * cols};
    float *local = number_(&tensor, rank, ranks);
    for (int64_t begin = 0; begin < tensor.count; begin += piece) {
        int64_t end = begin + piece < tensor.count ? begin + piece : tensor.count;
        Marks marks = {&tensor, local, begin, end, named, 0};
        assert_int_equal(tensor_blocks(&tensor, rank, ranks, begin, end, mark_, &marks), 0);
        assert_int_equal(marks.seen, real_(&marks));
    }
    free(local);
}

// Tensor ranks split a tensor, and data ranks own arbitrary pieces of it: every element is placed exactly once.
TEST(every_element_has_one_place) {
    const TensorSpec specs[] = {
        {.rows = 24, .cols = 8, .parts = 1, .split = SPLIT_NONE},
        {.rows = 24, .cols = 1, .parts = 1, .split = SPLIT_NONE},
        {.rows = 24, .cols = 1, .parts = 3, .split = SPLIT_ROWS},
        {.rows = 24, .cols = 5, .parts = 1, .split = SPLIT_ROWS},
        {.rows = 24, .cols = 5, .parts = 3, .split = SPLIT_ROWS},
        {.rows = 24, .cols = 5, .parts = 3, .split = SPLIT_ROWS, .transposed = true},
        {.rows = 5, .cols = 24, .parts = 1, .split = SPLIT_COLS},
        {.rows = 5, .cols = 24, .parts = 1, .split = SPLIT_COLS, .transposed = true},
        {.rows = 131, .cols = 3, .parts = 1, .split = SPLIT_ROWS, .vocabulary = true},
    };
    const int ranks[] = {1, 2, 4};
    const int64_t pieces[] = {1, 3, 7, 8, 40, 1000};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int t = 0; t < 3; t++)
            for (int k = 0; k < 6; k++) {
                int64_t count = specs[i].rows * specs[i].cols;
                int *named = calloc((size_t)count, sizeof *named);
                assert_non_null(named);
                int copies = specs[i].split == SPLIT_NONE ? 1 : ranks[t];
                for (int rank = 0; rank < copies; rank++) check_rank_(&specs[i], rank, ranks[t], pieces[k], named);
                for (int64_t e = 0; e < count; e++) assert_int_equal(named[e], 1);
                free(named);
            }
}

// matrices: bytes less per parameter of the layers' matrices, which with Muon have one moment.
static void check_files_(const Model *model, const ModelConfig *size, int precision, int per_parameter, int matrices) {
    TrainConfig train = {.precision = precision, .optimizer = matrices > 0 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW};
    TensorTable table = model_table(model, size);
    CheckpointLayout layout;
    layout_create(&layout, &table, &train);
    assert_int_equal(layout.groups, size->layers + 2);
    int64_t bytes = 0;
    for (int64_t i = 0; i < table.count; i++)
        if (table_is_layer_matrix(&table, i)) bytes += matrices * table.specs[i].rows * table.specs[i].cols;
    for (int f = 0; f < layout.files; f++) bytes += layout.file[f].bytes - layout.file[f].header_bytes;
    assert_int_equal(bytes, table_parameters(&table, 0, table.count) * per_parameter);
    assert_int_equal(layout.model_bytes,
                     table_parameters(&table, 0, table.count) * (precision == PRECISION_BF16 ? 2 : 4));
    for (int64_t i = 0; i < table.count; i++) {
        assert_true((layout.offset[i * STATE_KINDS + STATE_WEIGHT] < 0) ==
                    (table.specs[i].tied_to >= 0 || table.specs[i].rows == 0));
        if (precision == PRECISION_FP32) assert_true(layout.offset[i * STATE_KINDS + STATE_MASTER] < 0);
    }
    layout_free(&layout);
    table_free(&table);
}

// 12 bytes per parameter in fp32 (weight, two moments), 14 in bf16 (2-byte weight, master, two moments). Padding and
// tied heads add nothing. Muon keeps one moment of the layers' matrices.
TEST(files_hold_every_parameter_once) {
    const struct {
        const Model *model;
        const char *path, *overrides;
    } rows[] = {{&llama_model, "configs/llama65b.yaml", ""},
                {&gpt_model, "configs/gpt3_96b.yaml", "model.vocab=50257"},
                {&llama_model, "configs/mistral_7b.yaml", "model.experts=8 model.experts_per_token=2"},
                {&gpt_model, "configs/gpt3_96b.yaml", "model.vocab=50257 model.tie_embeddings=false"}};
    for (int i = 0; i < 4; i++) {
        Config config = loaded(rows[i].path, rows[i].overrides);
        config.model.dense_layers = config.model.experts > 0 ? 3 : 0; // whose experts have no rows
        check_files_(rows[i].model, &config.model, PRECISION_FP32, 12, 0);
        check_files_(rows[i].model, &config.model, PRECISION_BF16, 14, 0);
        check_files_(rows[i].model, &config.model, PRECISION_BF16, 14, 4);
    }
}

// A rank copies as many bytes for a checkpoint as the plan counts, except for padding at the ends of tensors.
TEST(the_copy_is_what_the_plan_counts) {
    static Config config;
    const char *keys[] = {"checkpoint.dir=/nowhere", "checkpoint.every=1", "parallel.data=2", "parallel.pipeline=2"};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        Error err = {0};
        assert_int_equal(config_load(&config, "configs/gpt_tiny.yaml", keys, 4, &err), 0);
        config.train.precision = precision;
        Backend *be = backend_cpu_create(precision, 1, &err);
        assert_non_null(be);
        for (int rank = 0; rank < 4; rank++) {
            Stage stage;
            Writer writer;
            const Schedule placed = {.stages = 2, .chunks = 1};
            assert_int_equal(stage_create(&stage, &gpt_model, &config, &placed, be, rank / 2, NULL, rank % 2, &err), 0);
            writer_create(&writer, &stage, NULL);
            int64_t tied =
                rank / 2 == 0 ? 0 : stage.head[2].count; // the last stage's copy of the embedding; the first writes it
            StateBytes states = tensors_states(&stage.tensors);
            int64_t counted = checkpoint_copy_bytes(&config, &states);
            int64_t copied = writer.image_bytes + tied / 2 * (precision == PRECISION_BF16 ? 14 : 12);
            assert_true(copied <= counted + 4096 && copied > 0.99 * (double)counted);
            writer_free(&writer);
            stage_destroy(&stage);
        }
        be->destroy(be);
    }
}
