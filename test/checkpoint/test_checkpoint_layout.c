// Sizes of checkpoint files, and of the copy that they are written from. That every element has its place, whichever
// rank writes it, is seen in the files (test_checkpoint.py).
#include "models.h"
#include "made_plan.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_write.h"
#include "unit.h"

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
                {&gpt_model, "configs/gpt3_96b.yaml", "model.vocab=50257 model.tie_embeddings=false"},
                {&gpt_model, "configs/gpt3_96b.yaml", "model.ffn=1 parallel.tensor=1"}};
    for (int i = 0; i < 5; i++) {
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
        assert_succeeds(config_load(&config, "configs/gpt_tiny.yaml", keys, 4, &unit_error));
        config.train.precision = precision;
        Backend *be = assert_made(backend_cpu_create(precision, 1, &unit_error));
        for (int rank = 0; rank < 4; rank++) {
            Stage stage;
            Writer writer;
            const Schedule placed = {.stages = 2, .chunks = 1};
            assert_succeeds(
                stage_create(&stage, &gpt_model, &config, &placed, be, rank / 2, NULL, rank % 2, &unit_error));
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
