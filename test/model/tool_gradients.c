// Writes the losses, weights and gradients of one batch, for tests that compare them with another implementation:
//
//     tool_gradients CONFIG TOKENS OUT [WEIGHTS]
//
// All stages of the configuration run in one process on a CPU, without tensor and data parallelism. All forwards run
// before the first backward. Bundles are first filled with NaN, so that a backward that reads missing data is noticed.
// TOKENS: int32, global_batch sequences of seq_len + 1 tokens; sequence k belongs to microbatch k / micro_batch.
// WEIGHTS and OUT contain records: a line `NAME ROWS COLS`, then rows * cols float32. WEIGHTS sets tensors by name,
// without padding; others keep their initial values. OUT has `weight:NAME` and `gradient:NAME` of each tensor, padding
// included, `losses` (sequence, position), and `evaluated`, the losses of a forward without gradients.
#include "models.h"
#include "engine/stage.h"

#include <stdlib.h>
#include <string.h>

typedef struct Tool {
    Config config;
    Backend *be;
    Stage *stages;
    Schedule placed;
    int64_t microbatches, batch, seq; // batch: sequences of a microbatch
    void **bundles;                   // (stages, microbatches)
    void *activation[2];              // messages: stage s reads [s % 2] and writes the other
    void *gradient[2];
} Tool;

static Error error;

// Ends the program unless `done`.
static void must_(bool done, const char *what) {
    if (done) return;
    fprintf(stderr, "tool_gradients: %s failed: %s\n", what, error.text);
    exit(EXIT_FAILED);
}

static void *filled_(int64_t bytes, int byte) {
    void *memory = malloc((size_t)bytes + 1);
    must_(memory != NULL, "allocating memory");
    return memset(memory, byte, (size_t)bytes);
}

static FILE *opened_(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    must_(file != NULL, path);
    return file;
}

static void stages_create_(Tool *tool, const char *path) {
    Config *config = &tool->config;
    must_(config_load(config, path, NULL, 0, &error) == 0, path);
    must_(config->parallel.tensor == 1 && config->parallel.data == 1, "tensor and data have to be 1: making stages");
    tool->be = backend_cpu_create(config->train.precision, 0, &error);
    must_(tool->be != NULL, "opening the CPU");
    tool->microbatches = config_microbatches(config);
    tool->batch = config->schedule.micro_batch, tool->seq = config->model.seq_len;
    tool->placed = (Schedule){.chunks = 1, .stages = (int)config->parallel.pipeline};
    tool->stages = filled_(tool->placed.stages * (int64_t)sizeof *tool->stages, 0);
    tool->bundles = filled_(tool->placed.stages * tool->microbatches * (int64_t)sizeof *tool->bundles, 0);
    for (int s = 0; s < tool->placed.stages; s++) {
        Stage *stage = &tool->stages[s];
        must_(stage_create(stage, model_of(config), config, &tool->placed, tool->be, s, NULL, 0, &error) == 0, path);
        for (int64_t i = 0; i < tool->microbatches; i++) // NaN in fp32 and in bf16
            tool->bundles[s * tool->microbatches + i] = filled_(stage->at.bundle_bytes, 0xff);
    }
    for (int k = 0; k < 2; k++) {
        tool->activation[k] = filled_(tool->stages[0].at.message_bytes, 0);
        tool->gradient[k] = filled_(tool->stages[0].at.message_bytes, 0);
    }
}

// Reorders the sequences of the file into rows as the stages expect them: row = position * b + sequence.
static void tokens_read_(Tool *tool, const char *path) {
    int64_t b = tool->batch, s = tool->seq, count = b * (s + 1);
    int32_t *sequences = filled_(count * 4, 0);
    int32_t *tokens = tool->stages[0].tokens, *targets = tool->stages[tool->placed.stages - 1].targets;
    FILE *file = opened_(path, "rb");
    for (int64_t microbatch = 0; microbatch < tool->microbatches; microbatch++) {
        must_(fread(sequences, 4, (size_t)count, file) == (size_t)count, "reading global_batch * (seq_len + 1) tokens");
        for (int64_t row = 0; row < b * s; row++) {
            const int32_t *from = sequences + row % b * (s + 1) + row / b;
            tokens[microbatch * b * s + row] = from[0], targets[microbatch * b * s + row] = from[1];
        }
    }
    fclose(file);
    free(sequences);
}

static void weights_read_(Tool *tool, const char *path) {
    FILE *file = opened_(path, "rb");
    char line[160], name[80];
    while (fgets(line, sizeof line, file) != NULL) {
        long long rows, cols, found = 0;
        must_(sscanf(line, "%79s %lld %lld", name, &rows, &cols) == 3 && rows > 0 && cols > 0, path);
        float *values = filled_(rows * cols * 4, 0);
        must_(fread(values, 4, (size_t)(rows * cols), file) == (size_t)(rows * cols), path);
        for (int s = 0; s < tool->placed.stages; s++)
            for (int64_t i = 0; i < tool->stages[s].tensors.count; i++) {
                const Tensor *tensor = &tool->stages[s].tensors.tensors[i];
                if (strcmp(tensor->spec->name, name) != 0) continue;
                must_(tensor->spec->rows == rows && tensor->spec->cols == cols, name);
                tool->be->from_float(tool->be, tensor->weight, values, rows * cols);
                found++;
            }
        must_(found > 0, name);
        free(values);
    }
    fclose(file);
}

static void forward_(Tool *tool, float scale) {
    for (int64_t i = 0; i < tool->microbatches; i++)
        for (int s = 0; s < tool->placed.stages; s++)
            must_(stage_forward(&tool->stages[s], 0, i, tool->bundles[s * tool->microbatches + i],
                                tool->activation[s % 2], tool->activation[(s + 1) % 2], scale, &error) == 0,
                  "a forward");
}

static void backward_(Tool *tool) {
    for (int64_t i = 0; i < tool->microbatches; i++)
        for (int s = tool->placed.stages - 1; s >= 0; s--)
            must_(stage_backward(&tool->stages[s], 0, i, tool->bundles[s * tool->microbatches + i],
                                 tool->gradient[s % 2], tool->gradient[(s + 1) % 2], false, &error) == 0,
                  "a backward");
}

static void record_write_(FILE *file, const char *kind, const char *name, int64_t rows, int64_t cols,
                          const float *values) {
    fprintf(file, "%s%s %lld %lld\n", kind, name, (long long)rows, (long long)cols);
    fwrite(values, 4, (size_t)(rows * cols), file);
}

static void losses_write_(const Tool *tool, FILE *file, const char *name) {
    int64_t b = tool->batch, s = tool->seq, count = tool->microbatches * b * s;
    float *losses = filled_(count * 4, 0);
    for (int64_t row = 0; row < count; row++) {
        int64_t sequence = row / (b * s) * b + row % b, position = row % (b * s) / b;
        losses[sequence * s + position] = tool->stages[tool->placed.stages - 1].losses[row];
    }
    record_write_(file, "", name, tool->microbatches * b, s, losses);
    free(losses);
}

static void tensors_write_(const Tool *tool, FILE *file) {
    for (int s = 0; s < tool->placed.stages; s++)
        for (int64_t i = 0; i < tool->stages[s].tensors.count; i++) {
            const Tensor *tensor = &tool->stages[s].tensors.tensors[i];
            if (tensor->count == 0) continue;
            float *values = filled_(tensor->count * 4, 0);
            tool->be->to_float(tool->be, values, tensor->weight, tensor->count);
            record_write_(file, "weight:", tensor->spec->name, tensor->rows, tensor->cols, values);
            record_write_(file, "gradient:", tensor->spec->name, tensor->rows, tensor->cols, tensor->gradient);
            free(values);
        }
}

// The memory of the stages stays until the program ends.
int main(int argc, char **argv) {
    must_(argc == 4 || argc == 5, "tool_gradients CONFIG TOKENS OUT [WEIGHTS]");
    Tool tool = {0};
    stages_create_(&tool, argv[1]);
    if (argc == 5) weights_read_(&tool, argv[4]);
    tokens_read_(&tool, argv[2]);
    FILE *out = opened_(argv[3], "wb");
    forward_(&tool, (float)(1.0 / (double)(tool.microbatches * tool.batch * config_targets(&tool.config))));
    backward_(&tool);
    losses_write_(&tool, out, "losses");
    forward_(&tool, 0.0f);
    losses_write_(&tool, out, "evaluated");
    tensors_write_(&tool, out);
    must_(ferror(out) == 0 && fclose(out) == 0, argv[3]);
}
