#include "checkpoint_model.h"

#include "checkpoint_files.h"
#include "base/json.h"
#include "base/version.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

// One number of a model, by our name and by Hugging Face's for each family (NULL: that family has none).
typedef struct ModelNumber {
    const char *key;
    const char *word[FAMILIES];
    size_t offset; // in ModelConfig
    bool real;     // double, else int64_t
} ModelNumber;

#define NUMBER(field, llama, gpt, real)                                                                                \
    { "model." #field, {llama, gpt}, offsetof(ModelConfig, field), real }

static const ModelNumber numbers[] = {
    NUMBER(vocab, "vocab_size", "vocab_size", false),
    NUMBER(hidden, "hidden_size", "n_embd", false),
    NUMBER(layers, "num_hidden_layers", "n_layer", false),
    NUMBER(heads, "num_attention_heads", "n_head", false),
    NUMBER(kv_heads, "num_key_value_heads", NULL, false),
    NUMBER(ffn, "intermediate_size", "n_inner", false),
    NUMBER(seq_len, "max_position_embeddings", "n_positions", false),
    NUMBER(norm_eps, "rms_norm_eps", "layer_norm_epsilon", true),
    NUMBER(rope_theta, "rope_theta", NULL, true),
};

enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static double number_of_(const ModelConfig *model, const ModelNumber *row) {
    const void *field = (const char *)model + row->offset;
    return row->real ? *(const double *)field : (double)*(const int64_t *)field;
}

// --- writing

static void write_family_(const Config *config, FILE *file) {
    bool llama = config->model.family == FAMILY_LLAMA;
    fprintf(file, "  \"architectures\": [\"%s\"],\n", llama ? "LlamaForCausalLM" : "GPT2LMHeadModel");
    fprintf(file, "  \"model_type\": \"%s\",\n", llama ? "llama" : "gpt2");
    if (llama) {
        fputs("  \"hidden_act\": \"silu\",\n  \"attention_bias\": false,\n  \"mlp_bias\": false,\n  \"rope_scaling\": "
              "null,\n",
              file);
        fprintf(file, "  \"head_dim\": %lld,\n", (long long)(config->model.hidden / config->model.heads));
    } else {
        // Trained without dropout, and so to be trained on.
        fputs("  \"activation_function\": \"gelu_new\",\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  "
              "\"resid_pdrop\": 0.0,\n",
              file);
    }
    fprintf(file, "  \"tie_word_embeddings\": %s,\n",
            config_word("model.tie_embeddings", config->model.tie_embeddings));
}

// What begins and ends a text is the tokenizer's to say; the defaults of transformers would be wrong for most vocabularies.
void model_config_write(const Config *config, FILE *file) {
    fputs("{\n", file);
    write_family_(config, file);
    for (int i = 0; i < NUMBERS; i++) {
        const char *word = numbers[i].word[config->model.family];
        if (word == NULL) continue;
        fprintf(file, "  \"%s\": ", word);
        json_write_number(file, number_of_(&config->model, &numbers[i]));
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

// What a value that is left out means: in old LLaMA configurations as many key and value heads as heads, in GPT-2's n_inner 4 n_embd.
static double default_of_(const JsonValue *root, const char *word) {
    if (strcmp(word, "num_key_value_heads") == 0) return (double)json_integer(root, "num_attention_heads", -1);
    if (strcmp(word, "n_inner") == 0) return 4.0 * (double)json_integer(root, "n_embd", -1);
    if (strcmp(word, "rope_theta") == 0) return 10000.0;
    if (strcmp(word, "rms_norm_eps") == 0) return 1e-6;
    if (strcmp(word, "layer_norm_epsilon") == 0) return 1e-5;
    return -1.0;
}

// Newer files keep rope_theta in an object of its own.
static double found_number_(const JsonValue *root, const char *word) {
    const JsonValue *value = json_find(root, word);
    if (value == NULL && strcmp(word, "rope_theta") == 0) value = json_find(json_find(root, "rope_parameters"), word);
    return value != NULL && value->type == JSON_NUMBER ? value->number : default_of_(root, word);
}

// Some files hold constants that went through fp32.
static bool equal_(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static bool is_set_(const JsonValue *root, const char *key) {
    const JsonValue *value = json_find(root, key);
    return value != NULL && value->type != JSON_NULL && !(value->type == JSON_BOOL && !value->truth);
}

// What transformers takes a file for that does not say it: GPT-2 ties, LLaMA does not.
static int found_tie_(const JsonValue *root, int family) {
    const char *key = "tie_word_embeddings";
    bool tied = json_find(root, key) == NULL ? family == FAMILY_GPT : is_set_(root, key);
    return tied ? TIE_TRUE : TIE_FALSE;
}

// Appends "model.hidden is 256 there and 128 here" for everything that differs; returns the length.
static int list_differences_(const Config *config, const JsonValue *root, bool exact, char *text, int size) {
    int used = 0;
    text[0] = '\0';
    for (int i = 0; i < NUMBERS; i++) {
        const char *word = numbers[i].word[config->model.family];
        if (word == NULL) continue;
        bool loose = !exact && config->model.family == FAMILY_LLAMA && strcmp(numbers[i].key, "model.seq_len") == 0;
        double there = found_number_(root, word), here = number_of_(&config->model, &numbers[i]);
        if (loose || equal_(there, here) || used >= size) continue;
        const char *between = used > 0 ? ", " : "";
        if (there < 0.0)
            used += snprintf(text + used, (size_t)(size - used), "%s%s is not said there", between, numbers[i].key);
        else
            used += snprintf(text + used, (size_t)(size - used), "%s%s is %.10g there and %.10g here", between,
                             numbers[i].key, there, here);
    }
    int there = found_tie_(root, config->model.family), here = config->model.tie_embeddings;
    const char *key = "model.tie_embeddings";
    if (there != here && used < size)
        used += snprintf(text + used, (size_t)(size - used), "%s%s is %s there and %s here", used > 0 ? ", " : "", key,
                         config_word(key, there), config_word(key, here));
    return used;
}

static bool text_is_(const JsonValue *root, const char *key, const char *first, const char *second) {
    const char *text = json_text(root, key, first);
    return strcmp(text, first) == 0 || strcmp(text, second) == 0;
}

// The kind of rotation where it is not LLaMA's plain one, such as "llama3", "linear" or "yarn"; NULL where it is plain. Newer files name
// it within rope_parameters.
static const char *rope_kind_(const JsonValue *root) {
    const JsonValue *scaling = json_find(root, is_set_(root, "rope_scaling") ? "rope_scaling" : "rope_parameters");
    const char *kind = json_text(scaling, "rope_type", json_text(scaling, "type", "default"));
    return strcmp(kind, "default") == 0 ? NULL : kind;
}

// Variants of the two architectures that compute something else than we do: what is so, in `text`. NULL where there is none.
static const char *variant_(const JsonValue *root, int family, char *text, size_t size) {
    if (family == FAMILY_LLAMA) {
        if (!text_is_(root, "hidden_act", "silu", "swish")) return "hidden_act is not silu";
        const char *kind = rope_kind_(root);
        if (kind == NULL) return NULL;
        snprintf(text, size, "rope_scaling is \"%.40s\"", kind);
        return text;
    }
    if (!text_is_(root, "activation_function", "gelu_new", "gelu_pytorch_tanh"))
        return "activation_function is not gelu_new";
    if (is_set_(root, "scale_attn_by_inverse_layer_idx")) return "scale_attn_by_inverse_layer_idx is set";
    const JsonValue *scale = json_find(root, "scale_attn_weights");
    return scale != NULL && scale->type == JSON_BOOL && !scale->truth ? "scale_attn_weights is off" : NULL;
}

static int compare_(const Config *config, const JsonValue *root, const char *path, bool exact, Error *err) {
    const char *want = config->model.family == FAMILY_LLAMA ? "llama" : "gpt2",
               *have = json_text(root, "model_type", "");
    if (strcmp(want, have) != 0)
        return error_set(err, EXIT_USAGE, "%s: model_type is \"%.40s\", and %s trains \"%s\"", path, have, config->path,
                         want);
    char text[700];
    if (list_differences_(config, root, exact, text, sizeof text) > 0)
        return error_set(err, EXIT_USAGE, "%s: is of another model than %s: %s; make them equal", path, config->path,
                         text);
    const char *variant = variant_(root, config->model.family, text, sizeof text);
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
