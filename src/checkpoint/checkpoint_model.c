// Writes and reads training.json. Numbers are written so that they read back as the same bits, because a resumed run
// has to decide as the first one would have.
#include "checkpoint_model.h"

#include "checkpoint_files.h"
#include "base/json.h"
#include "base/version.h"

#include <stdlib.h>
#include <string.h>

static int checkpoint_held_(const ZScore *window) {
    return window->seen < ZSCORE_WINDOW ? (int)window->seen : ZSCORE_WINDOW;
}

// 17 digits read back as the same bits; values keep their places in the window, so that they are added in the same
// order.
static void write_window_(const char *key, const ZScore *window, FILE *file) {
    fprintf(file, "  \"%s\": {\"seen\": %lld, \"values\": [", key, (long long)window->seen);
    for (int i = 0; i < checkpoint_held_(window); i++) fprintf(file, "%s%.17g", i > 0 ? ", " : "", window->values[i]);
    fputs("]},\n", file);
}

void training_state_write(const Config *config, const TrainingState *state, FILE *file) {
    fprintf(file, "{\n  \"format\": 1,\n  \"version\": \"%s\",\n  \"run\": \"%016llx\",\n  \"sequence\": %lld,\n",
            VERSION, (unsigned long long)state->run, (long long)state->sequence);
    fprintf(file, "  \"step\": %lld,\n  \"samples\": %lld,\n", (long long)state->step, (long long)state->samples);
    fprintf(file,
            "  \"tokens\": %lld,\n  \"seed\": %lld,\n  \"skipped_updates\": %lld,\n  \"skipped_bad_steps\": %lld,\n",
            (long long)(state->samples * config->model.seq_len), (long long)state->seed,
            (long long)state->step_guard.skipped, (long long)state->step_guard.bad);
    fprintf(file, "  \"data\": \"%016llx\",\n", (unsigned long long)state->data);
    write_window_("loss_window", &state->step_guard.loss, file);
    write_window_("norm_window", &state->step_guard.norm, file);
    fputs("  \"config\": ", file);
    config_write_json(config, file);
    fputs("\n}\n", file);
}

// --- reading

// Returns whether a count is plausible for a training run. Counts are added to and multiplied, so others are refused
// before they overflow.
static bool in_reach_(int64_t count) { return count >= 0 && count <= 1000000000000; }

// A missing window stays empty: checkpoints of earlier versions lack it.
static int read_window_(ZScore *window, const JsonValue *found) {
    const JsonValue *values = json_find(found, "values");
    int count = 0;
    if (found == NULL) return 0;
    window->seen = json_integer(found, "seen", -1);
    if (!in_reach_(window->seen) || values == NULL || values->type != JSON_ARRAY ||
        values->count != checkpoint_held_(window))
        return -1;
    for (const JsonValue *value = values->first; value != NULL; value = value->next) {
        if (value->type != JSON_NUMBER) return -1;
        window->values[count++] = value->number;
    }
    return 0;
}

static int read_step_guard_(StepGuard *step_guard, const JsonValue *root, const char *path, Error *err) {
    memset(step_guard, 0, sizeof *step_guard);
    step_guard->skipped = json_integer(root, "skipped_updates", 0);
    step_guard->bad = json_integer(root, "skipped_bad_steps", 0);
    if (in_reach_(step_guard->skipped) && in_reach_(step_guard->bad) &&
        read_window_(&step_guard->loss, json_find(root, "loss_window")) == 0 &&
        read_window_(&step_guard->norm, json_find(root, "norm_window")) == 0)
        return 0;
    return error_set(err, EXIT_FAILED,
                     "%s: it has an invalid count of skipped updates or an invalid window of losses or norms", path);
}

int training_state_read(TrainingState *state, const char *dir, Error *err) {
    char path[CHECKPOINT_PATH];
    Json json = {0};
    int status = file_path_within(path, dir, CHECKPOINT_TRAINING, err) != 0 ? -1 : json_read_file(&json, path, err);
    state->step = json_integer(json.root, "step", -1);
    state->samples = json_integer(json.root, "samples", -1);
    state->tokens = json_integer(json.root, "tokens", -1);
    state->seed = json_integer(json.root, "seed", -1);
    state->sequence = json_integer(json.root, "sequence", 0);
    state->data = strtoull(json_text(json.root, "data", "0"), NULL, 16);
    bool sound = run_id_read(&state->run, json.root) == 0 && in_reach_(state->step) && in_reach_(state->samples) &&
                 state->seed >= 0;
    if (status == 0 && !sound)
        status = error_set(err, EXIT_FAILED, "%s: has no step, samples or seed, or one that no training reaches", path);
    if (status == 0) status = read_step_guard_(&state->step_guard, json.root, path, err);
    json_free(&json);
    return status;
}
