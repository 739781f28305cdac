#include "checkpoint_model.h"

#include "checkpoint_files.h"
#include "base/json.h"
#include "base/version.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static const Family *family_of_(const Config *config) {
    return &families[config->model.family];
}

static double number_of_(const ModelConfig *model, const FamilyNumber *row) {
    const void *field = (const char *)model + row->offset;
    return row->real ? *(const double *)field : (double)*(const int64_t *)field;
}

// --- writing

// What begins and ends a text is the tokenizer's to say; the defaults of transformers would be wrong for most vocabularies.
void model_config_write(const Config *config, FILE *file) {
    const Family *family = family_of_(config);
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n", family->architecture);
    fprintf(file, "  \"model_type\": \"%s\",\n%s", family->model_type, family->constants);
    if (family->rotary)
        fprintf(file, "  \"head_dim\": %lld,\n", (long long)(config->model.hidden / config->model.heads));
    fprintf(file, "  \"tie_word_embeddings\": %s,\n",
            config_word("model.tie_embeddings", config->model.tie_embeddings));
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        fprintf(file, "  \"%s\": ", row->word);
        json_write_number(file, number_of_(&config->model, row));
        fputs(",\n", file);
    }
    fputs("  \"initializer_range\": 0.02,\n  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n  \"use_cache\": "
          "true,\n",
          file);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", config->train.precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

static int held_(const ZScore *window) {
    return window->seen < ZSCORE_WINDOW ? (int)window->seen : ZSCORE_WINDOW;
}

// 17 digits are read back as the same bits; values stand in their places of the window, so that they add up in the same order.
static void write_window_(const char *key, const ZScore *window, FILE *file) {
    fprintf(file, "  \"%s\": {\"seen\": %lld, \"values\": [", key, (long long)window->seen);
    for (int i = 0; i < held_(window); i++) fprintf(file, "%s%.17g", i > 0 ? ", " : "", window->values[i]);
    fputs("]},\n", file);
}

void training_state_write(const Config *config, const TrainingState *state, FILE *file) {
    fprintf(file, "{\n  \"format\": 1,\n  \"version\": \"%s\",\n  \"step\": %lld,\n  \"samples\": %lld,\n", VERSION,
            (long long)state->step, (long long)state->samples);
    fprintf(file,
            "  \"tokens\": %lld,\n  \"seed\": %lld,\n  \"skipped_updates\": %lld,\n  \"skipped_bad_steps\": %lld,\n",
            (long long)(state->samples * config->model.seq_len), (long long)state->seed,
            (long long)state->step_guard.skipped, (long long)state->step_guard.bad);
    write_window_("loss_window", &state->step_guard.loss, file);
    write_window_("norm_window", &state->step_guard.norm, file);
    fputs("  \"config\": ", file);
    config_write_json(config, file);
    fputs("\n}\n", file);
}

// --- reading

// Counts are added to and multiplied: what no training reaches must not overflow.
static bool in_reach_(int64_t count) {
    return count >= 0 && count <= 1000000000000;
}

// What is not there stays empty: checkpoints of earlier versions have none.
static int read_window_(ZScore *window, const JsonValue *found) {
    const JsonValue *values = json_find(found, "values");
    int count = 0;
    if (found == NULL) return 0;
    window->seen = json_integer(found, "seen", -1);
    if (!in_reach_(window->seen) || values == NULL || values->type != JSON_ARRAY || values->count != held_(window))
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
    return error_set(err, EXIT_FAILED, "%s: its skipped updates or its windows of losses and norms are no such thing",
                     path);
}

int training_state_read(TrainingState *state, const char *dir, Error *err) {
    char path[CHECKPOINT_PATH];
    Json json = {0};
    int status = checkpoint_file_path(path, dir, CHECKPOINT_TRAINING, err) != 0 ? -1 : json_read_file(&json, path, err);
    state->step = json_integer(json.root, "step", -1);
    state->samples = json_integer(json.root, "samples", -1);
    state->seed = json_integer(json.root, "seed", -1);
    bool sound = in_reach_(state->step) && in_reach_(state->samples) && state->seed >= 0;
    if (status == 0 && !sound)
        status = error_set(err, EXIT_FAILED, "%s: has no step, samples or seed, or one that no training reaches", path);
    if (status == 0) status = read_step_guard_(&state->step_guard, json.root, path, err);
    json_free(&json);
    return status;
}

// Newer files keep rope_theta in an object of its own. A file without the word has the family's default.
static double found_number_(const JsonValue *root, const FamilyNumber *row) {
    const JsonValue *value = json_find(root, row->word);
    if (value == NULL && strcmp(row->word, "rope_theta") == 0)
        value = json_find(json_find(root, "rope_parameters"), row->word);
    if (value != NULL && value->type == JSON_NUMBER) return value->number;
    return row->times == NULL ? row->absent : row->absent * (double)json_integer(root, row->times, -1);
}

// Some files hold constants that went through fp32.
static bool equal_(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static bool is_set_(const JsonValue *root, const char *key) {
    const JsonValue *value = json_find(root, key);
    return value != NULL && value->type != JSON_NULL && !(value->type == JSON_BOOL && !value->truth);
}

static int found_tie_(const JsonValue *root, const Family *family) {
    const char *key = "tie_word_embeddings";
    bool tied = json_find(root, key) == NULL ? family->tied : is_set_(root, key);
    return tied ? TIE_TRUE : TIE_FALSE;
}

// Appends "model.hidden is 256 there and 128 here" for everything that differs; returns the length.
static int list_differences_(const Config *config, const JsonValue *root, bool exact, char *text, int size) {
    const Family *family = family_of_(config);
    int used = 0;
    text[0] = '\0';
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        bool loose = !exact && family->rotary && strcmp(row->key, "model.seq_len") == 0;
        double there = found_number_(root, row), here = number_of_(&config->model, row);
        if (loose || equal_(there, here) || used >= size) continue;
        const char *between = used > 0 ? ", " : "";
        if (there < 0.0)
            used += snprintf(text + used, (size_t)(size - used), "%s%s is not said there", between, row->key);
        else
            used += snprintf(text + used, (size_t)(size - used), "%s%s is %.10g there and %.10g here", between,
                             row->key, there, here);
    }
    int there = found_tie_(root, family), here = config->model.tie_embeddings;
    const char *key = "model.tie_embeddings";
    if (there != here && used < size)
        used += snprintf(text + used, (size_t)(size - used), "%s%s is %s there and %s here", used > 0 ? ", " : "", key,
                         config_word(key, there), config_word(key, here));
    return used;
}

// Whether the file says for the demand's word one of the allowed texts, or nothing.
static bool meets_(const JsonValue *root, const FamilyDemand *demand) {
    const JsonValue *value = json_find(root, demand->word);
    if (value == NULL) return true;
    for (int i = 0; i < 2 && demand->allowed[i] != NULL; i++) {
        const char *allowed = demand->allowed[i];
        bool number_zero = value->type == JSON_NUMBER && value->number == 0;
        bool set = is_set_(root, demand->word) && !number_zero;
        if (strcmp(allowed, "false") == 0 && !set) return true;
        if (strcmp(allowed, "true") == 0 && value->type == JSON_BOOL && value->truth) return true;
        if (strcmp(allowed, json_text(root, demand->word, "")) == 0) return true;
    }
    return false;
}

// The kind of rotation where it is not LLaMA's plain one, such as "llama3", "linear" or "yarn"; NULL where it is plain. Newer files name
// it within rope_parameters.
static const char *rope_kind_(const JsonValue *root) {
    const JsonValue *scaling = json_find(root, is_set_(root, "rope_scaling") ? "rope_scaling" : "rope_parameters");
    const char *kind = json_text(scaling, "rope_type", json_text(scaling, "type", "default"));
    return strcmp(kind, "default") == 0 ? NULL : kind;
}

// What the file's model computes that this program does not, in `text`; NULL where there is nothing.
static const char *variant_(const JsonValue *root, const Family *family, char *text, size_t size) {
    for (const FamilyDemand *demand = family->demands; demand->word != NULL; demand++)
        if (!meets_(root, demand)) return demand->refusal;
    const char *kind = family->rotary ? rope_kind_(root) : NULL;
    if (kind == NULL) return NULL;
    snprintf(text, size, "rope_scaling is \"%.40s\"", kind);
    return text;
}

static int compare_(const Config *config, const JsonValue *root, const char *path, bool exact, Error *err) {
    const Family *family = family_of_(config);
    const char *want = family->model_type, *have = json_text(root, "model_type", "");
    if (strcmp(want, have) != 0)
        return error_set(err, EXIT_USAGE, "%s: model_type is \"%.40s\", and %s trains \"%s\"", path, have, config->path,
                         want);
    char text[700];
    if (list_differences_(config, root, exact, text, sizeof text) > 0)
        return error_set(err, EXIT_USAGE, "%s: is of another model than %s: %s; make them equal", path, config->path,
                         text);
    const char *variant = variant_(root, family, text, sizeof text);
    if (variant == NULL) return 0;
    return error_set(err, EXIT_USAGE, "%s: %s, which this program does not compute; use another model", path, variant);
}

int model_config_compare(const Config *config, const char *dir, bool exact, Error *err) {
    char path[CHECKPOINT_PATH];
    if (checkpoint_file_path(path, dir, CHECKPOINT_CONFIG, err) != 0) return -1;
    if (access(path, F_OK) != 0) return 0;
    Json json;
    int status = json_read_file(&json, path, err);
    if (status == 0) status = compare_(config, json.root, path, exact, err);
    json_free(&json);
    return status;
}
