// Writes the losses, weights and gradients of one batch, for tests that compare them with another implementation:
//
//     tool_gradients CONFIG TOKENS OUT [WEIGHTS]
//
// All stages of the configuration run in one process, without tensor and data parallelism. All forwards run before the
// first backward. Bundles are first filled with NaN, so that a backward that reads missing data is noticed. TOKENS:
// int32, global_batch sequences of seq_len + 1 tokens; sequence k belongs to microbatch k / micro_batch. WEIGHTS and
// OUT contain records: a line `NAME ROWS COLS`, then rows * cols float32. WEIGHTS sets tensors by name, without
// padding; others keep their initial values. OUT has `weight:NAME` and `gradient:NAME` of each tensor, padding
// included, `losses` (sequence, position), and `evaluated`, the losses of a forward without gradients.
#include "models.h"
#include "engine/stage.h"
#include "model/quantized.h"

#include <stdlib.h>
#include <string.h>

typedef struct Tool {
    Config config;
    Backend *be;
    Stage *stages;
    int stage_count, stages_made;
    Schedule placed;
    int64_t microbatches;
    void **bundles;      // (stages, microbatches)
    void *activation[2]; // messages: stage s reads [s % 2] and writes the other
    void *gradient[2];
    float *device, *host; // space for the largest tensor, or for all losses
    int64_t capacity;     // floats
    Error *err;
} Tool;

static int fail_(Tool *tool, const char *what, const char *path) {
    return error_set(tool->err, EXIT_FAILED, "%s: %s", path, what);
}

// --- what is made and released once

static void *bytes_create_(Tool *tool, int64_t bytes, const char *what) {
    return tool->be->allocate(tool->be, MEMORY_OWN_SLOTS, bytes, what, tool->err);
}

static void bytes_free_(Tool *tool, void *memory, int64_t bytes) {
    if (memory != NULL) tool->be->release(tool->be, MEMORY_OWN_SLOTS, memory, bytes);
}

static int bundles_create_(Tool *tool) {
    for (int s = 0; s < tool->stage_count; s++) {
        int64_t bytes = tool->stages[s].at.bundle_bytes;
        void *nan = malloc((size_t)bytes);
        if (nan == NULL) return fail_(tool, "out of host memory", "bundle");
        memset(nan, 0xff, (size_t)bytes); // NaN in fp32 and in bf16
        for (int64_t i = 0; i < tool->microbatches; i++) {
            void *bundle = bytes_create_(tool, bytes, "bundle");
            tool->bundles[s * tool->microbatches + i] = bundle;
            if (bundle != NULL) tool->be->upload(tool->be, bundle, nan, bytes);
        }
        free(nan);
    }
    return tool->err->code == 0 ? 0 : -1;
}

static int buffers_create_(Tool *tool) {
    tool->capacity = tool->config.train.global_batch * tool->config.model.seq_len;
    for (int s = 0; s < tool->stage_count; s++)
        for (int64_t i = 0; i < tool->stages[s].tensors.count; i++)
            if (tool->stages[s].tensors.tensors[i].count > tool->capacity)
                tool->capacity = tool->stages[s].tensors.tensors[i].count;
    tool->host = malloc((size_t)tool->capacity * sizeof(float));
    tool->device = (float *)bytes_create_(tool, tool->capacity * 4, "tensor");
    tool->bundles = calloc((size_t)(tool->stage_count * tool->microbatches), sizeof(void *));
    if (tool->host == NULL || tool->bundles == NULL) return fail_(tool, "out of host memory", "tensor");
    for (int k = 0; k < 2; k++) {
        tool->activation[k] = bytes_create_(tool, tool->stages[0].at.message_bytes, "message");
        tool->gradient[k] = bytes_create_(tool, tool->stages[0].at.message_bytes, "message");
    }
    return bundles_create_(tool);
}

static int tool_create_(Tool *tool, const char *path) {
    Config *config = &tool->config;
    if (config_load(config, path, NULL, 0, tool->err) != 0) return -1;
    if (config->parallel.tensor != 1 || config->parallel.data != 1)
        return fail_(tool, "tensor and data have to be 1 here", path);
    tool->microbatches = config_microbatches(config);
    tool->stage_count = tool->placed.stages = (int)config->parallel.pipeline;
    if (tool->stage_count > config->model.layers) return fail_(tool, "has fewer layers than stages", path);
    tool->stages = calloc((size_t)tool->stage_count, sizeof *tool->stages);
    if (tool->stages == NULL) return fail_(tool, "out of host memory", path);
    tool->be = backend_cpu_create(config->train.precision, 0, tool->err);
    if (tool->be == NULL) return -1;
    const Model *model = model_of(config);
    while (tool->stages_made < tool->stage_count) {
        int s = tool->stages_made++;
        if (stage_create(&tool->stages[s], model, config, &tool->placed, tool->be, s, NULL, 0, tool->err) != 0)
            return -1;
    }
    return buffers_create_(tool);
}

static void tool_destroy_(Tool *tool) {
    if (tool->be != NULL) {
        for (int s = 0; s < tool->stage_count && tool->bundles != NULL; s++)
            for (int64_t i = 0; i < tool->microbatches; i++)
                bytes_free_(tool, tool->bundles[s * tool->microbatches + i], tool->stages[s].at.bundle_bytes);
        for (int k = 0; k < 2; k++) {
            bytes_free_(tool, tool->activation[k], tool->stages[0].at.message_bytes);
            bytes_free_(tool, tool->gradient[k], tool->stages[0].at.message_bytes);
        }
        bytes_free_(tool, tool->device, tool->capacity * 4);
        for (int s = 0; s < tool->stages_made; s++) stage_destroy(&tool->stages[s]);
        tool->be->destroy(tool->be);
    }
    free(tool->bundles);
    free(tool->stages);
    free(tool->host);
}

// --- what goes in

// Reorders the sequences of the file into rows as the stages expect them: row = position * b + sequence.
static void microbatch_upload_(Tool *tool, int64_t microbatch, const int32_t *sequences, int32_t *rows) {
    Stage *first = &tool->stages[0], *last = &tool->stages[tool->stage_count - 1];
    int64_t b = first->at.shape.batch, s = first->at.shape.seq, offset = microbatch * b * s;
    for (int shift = 0; shift < 2; shift++) {
        for (int64_t j = 0; j < b; j++)
            for (int64_t i = 0; i < s; i++) rows[i * b + j] = sequences[j * (s + 1) + i + shift];
        tool->be->upload(tool->be, shift == 0 ? first->tokens + offset : last->targets + offset, rows, b * s * 4);
    }
}

static int tokens_read_(Tool *tool, const char *path) {
    int64_t b = tool->config.schedule.micro_batch, s = tool->config.model.seq_len, count = b * (s + 1);
    int32_t *sequences = malloc((size_t)count * 4), *rows = malloc((size_t)count * 4);
    FILE *file = fopen(path, "rb");
    int result = file != NULL && sequences != NULL && rows != NULL ? 0 : fail_(tool, "cannot be read", path);
    for (int64_t i = 0; i < tool->microbatches && result == 0; i++)
        if (fread(sequences, 4, (size_t)count, file) == (size_t)count) microbatch_upload_(tool, i, sequences, rows);
        else result = fail_(tool, "has fewer tokens than global_batch * (seq_len + 1)", path);
    if (file != NULL) fclose(file);
    free(sequences);
    free(rows);
    return result;
}

static int record_apply_(Tool *tool, const char *name, int64_t rows, int64_t cols) {
    int64_t count = rows * cols;
    tool->be->upload(tool->be, tool->device, tool->host, count * 4);
    int found = 0;
    for (int s = 0; s < tool->stage_count; s++)
        for (int64_t i = 0; i < tool->stages[s].tensors.count; i++) {
            const Tensor *tensor = &tool->stages[s].tensors.tensors[i];
            if (strcmp(tensor->spec->name, name) != 0) continue;
            if (tensor->spec->rows != rows || tensor->spec->cols != cols) return fail_(tool, "has another shape", name);
            tool->be->from_float(tool->be, tensor->weight, tool->device, count);
            found++;
        }
    return found > 0 ? 0 : fail_(tool, "is not a tensor of this model", name);
}

static int weights_read_(Tool *tool, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return fail_(tool, "cannot be read", path);
    char line[160], name[80];
    int result = 0;
    while (result == 0 && fgets(line, sizeof line, file) != NULL) {
        long long rows = 0, cols = 0;
        if (sscanf(line, "%79s %lld %lld", name, &rows, &cols) != 3 || rows < 1 || cols < 1 ||
            rows > tool->capacity / cols)
            result = fail_(tool, "has a record of no tensor here", path);
        else if (fread(tool->host, 4, (size_t)(rows * cols), file) != (size_t)(rows * cols))
            result = fail_(tool, "ends early", path);
        else result = record_apply_(tool, name, rows, cols);
    }
    fclose(file);
    return result;
}

// --- the batch

static int forward_(Tool *tool, int64_t microbatch, float scale) {
    for (int s = 0; s < tool->stage_count; s++) {
        Stage *stage = &tool->stages[s];
        if (stage_forward(stage, 0, microbatch, tool->bundles[s * tool->microbatches + microbatch],
                          tool->activation[s % 2], tool->activation[(s + 1) % 2], scale, tool->err) != 0)
            return -1;
    }
    return 0;
}

static int backward_(Tool *tool, int64_t microbatch) {
    for (int s = tool->stage_count - 1; s >= 0; s--) {
        Stage *stage = &tool->stages[s];
        if (stage_backward(stage, 0, microbatch, tool->bundles[s * tool->microbatches + microbatch],
                           tool->gradient[s % 2], tool->gradient[(s + 1) % 2], false, tool->err) != 0)
            return -1;
    }
    return 0;
}

static int batch_run_(Tool *tool) {
    double tokens = (double)(tool->config.train.global_batch * tool->config.model.seq_len);
    for (int64_t i = 0; i < tool->microbatches; i++)
        if (forward_(tool, i, (float)(1.0 / tokens)) != 0) return -1;
    for (int64_t i = 0; i < tool->microbatches; i++)
        if (backward_(tool, i) != 0) return -1;
    return tool->be->synchronize(tool->be, tool->err);
}

// --- what comes out

static void record_write_(FILE *file, const char *kind, const char *name, int64_t rows, int64_t cols,
                          const float *values) {
    fprintf(file, "%s%s %lld %lld\n", kind, name, (long long)rows, (long long)cols);
    fwrite(values, 4, (size_t)(rows * cols), file);
}

static void tensor_write_(Tool *tool, FILE *file, const Tensor *tensor) {
    Backend *be = tool->be;
    be->to_float(be, tool->device, tensor->weight, tensor->count);
    be->download(be, tool->host, tool->device, tensor->count * 4);
    record_write_(file, "weight:", tensor->spec->name, tensor->rows, tensor->cols, tool->host);
    be->download(be, tool->host, tensor->gradient, tensor->count * 4);
    record_write_(file, "gradient:", tensor->spec->name, tensor->rows, tensor->cols, tool->host);
}

static int losses_write_(Tool *tool, FILE *file, const char *name) {
    const Stage *last = &tool->stages[tool->stage_count - 1];
    int64_t b = last->at.shape.batch, s = last->at.shape.seq, count = tool->microbatches * b * s;
    float *losses = malloc((size_t)count * sizeof *losses);
    if (losses == NULL) return fail_(tool, "out of host memory", name);
    tool->be->download(tool->be, tool->host, last->losses, count * 4);
    for (int64_t row = 0; row < count; row++) {
        int64_t microbatch = row / (b * s), position = row % (b * s) / b, sequence = row % b;
        losses[(microbatch * b + sequence) * s + position] = tool->host[row];
    }
    record_write_(file, "", name, tool->microbatches * b, s, losses);
    free(losses);
    return 0;
}

static int results_write_(Tool *tool, const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) return fail_(tool, "cannot be written", path);
    int result = losses_write_(tool, file, "losses");
    for (int64_t i = 0; i < tool->microbatches && result == 0; i++) result = forward_(tool, i, 0.0f);
    if (result == 0) result = losses_write_(tool, file, "evaluated");
    for (int s = 0; s < tool->stage_count && result == 0; s++)
        for (int64_t i = 0; i < tool->stages[s].tensors.count; i++)
            if (tool->stages[s].tensors.tensors[i].count > 0)
                tensor_write_(tool, file, &tool->stages[s].tensors.tensors[i]);
    bool written = ferror(file) == 0;
    if (fclose(file) != 0 || !written) return fail_(tool, "could not be written whole", path);
    return result;
}

int main(int argc, char **argv) {
    const Log log = {"tool_gradients", -1, -1, LOG_NORMAL};
    Error err = {0};
    Tool tool = {.err = &err, .placed = {.chunks = 1}};
    if (argc != 4 && argc != 5) {
        log_line(&log, "usage: tool_gradients CONFIG TOKENS OUT [WEIGHTS]");
        return EXIT_USAGE;
    }
    char **files = argv + 1;
    const char *weights = files[3]; // NULL: the initial ones
    bool done = tool_create_(&tool, files[0]) == 0 && (weights == NULL || weights_read_(&tool, weights) == 0) &&
                tokens_read_(&tool, files[1]) == 0 && batch_run_(&tool) == 0 && results_write_(&tool, files[2]) == 0;
    tool_destroy_(&tool);
    if (!done) log_line(&log, "%s", err.text);
    return done ? EXIT_DONE : err.code;
}
