// Reads Hugging Face's config.json into a ModelConfig. The family's row names the keys and their supported values.
#include "hf_model.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROPE_NUMBER(field, word, real, linear, llama3, yarn, absent)                                                   \
    { "model." #field, word, offsetof(ModelConfig, field), real, {false, linear, llama3, yarn}, absent }

// transformers also has original_max_position_embeddings for yarn, but versions disagree on its meaning next to
// max_position_embeddings. It is read if present; only max_position_embeddings is written.
const HfRopeNumber hf_rope_numbers[HF_ROPE_NUMBERS] = {
    ROPE_NUMBER(rope_factor, "factor", true, true, true, true, -1),
    ROPE_NUMBER(rope_original, "original_max_position_embeddings", false, false, true, false, -1),
    ROPE_NUMBER(rope_low_freq, "low_freq_factor", true, false, true, false, -1),
    ROPE_NUMBER(rope_high_freq, "high_freq_factor", true, false, true, false, -1),
    ROPE_NUMBER(rope_beta_fast, "beta_fast", true, false, false, true, 32),
    ROPE_NUMBER(rope_beta_slow, "beta_slow", true, false, false, true, 1),
    ROPE_NUMBER(rope_attention, "attention_factor", true, false, false, true, 0),
};

// Stores a number in found->model. An int64_t field accepts only integers up to 2^53, which a double holds exactly.
static int hf_put_(HfModel *found, size_t offset, bool real, double value, const char *word, Error *err) {
    void *field = (char *)&found->model + offset;
    if (!real && !(fabs(value) <= 0x1p53 && value == floor(value)))
        return error_set(err, EXIT_USAGE, "%s: %s is %g, not a whole number of at most 2^53; is the file damaged?",
                         found->path, word, value);
    if (real) *(double *)field = value;
    else *(int64_t *)field = (int64_t)value;
    return 0;
}

static bool is_number_(const JsonValue *value) { return value != NULL && value->type == JSON_NUMBER; }

static bool is_true_(const JsonValue *root, const char *word) {
    const JsonValue *value = json_find(root, word);
    return value != NULL && value->type == JSON_BOOL && value->truth;
}

static int hf_refuse_(const HfModel *found, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s: %s, which is unsupported; use another model", found->path, what);
}

static bool meets_(const JsonValue *value, const char *allowed) {
    if (value->type == JSON_TEXT) return strcmp(value->text, allowed) == 0;
    if (value->type == JSON_BOOL) return strcmp(value->truth ? "true" : "false", allowed) == 0;
    return value->type == JSON_NUMBER && value->number == atof(allowed);
}

// Refuses a file with unsupported values; the error names all of them.
static int check_demands_(const HfModel *found, Error *err) {
    char unmet[400] = "";
    size_t used = 0;
    for (const FamilyDemand *demand = families[found->model.family].demands; demand->word != NULL; demand++) {
        const JsonValue *value = json_find(found->root, demand->word);
        bool met = value == NULL || value->type == JSON_NULL;
        for (int i = 0; i < 2 && demand->allowed[i] != NULL; i++) met = met || meets_(value, demand->allowed[i]);
        if (met || used >= sizeof unmet) continue;
        used += (size_t)snprintf(unmet + used, sizeof unmet - used, "%s%s", used > 0 ? "; " : "", demand->refusal);
    }
    return used > 0 ? hf_refuse_(found, err, unmet) : 0;
}

// A sliding window has no effect if no sequence is longer than the window.
int hf_model_check(const HfModel *found, int64_t seq_len, Error *err) {
    if (check_demands_(found, err) != 0) return -1;
    const JsonValue *use = json_find(found->root, "use_sliding_window");
    int64_t window = json_integer(found->root, "sliding_window", 0);
    if ((use != NULL && !is_true_(found->root, "use_sliding_window")) || window <= 0 || window >= seq_len) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: sliding_window is %lld, and sliding-window attention is unsupported; use model.seq_len "
                     "%lld or less",
                     found->path, (long long)window, (long long)window);
}

// Returns the architecture with this model_type, or NULL with err.
static const FamilyForm *find_form_(const HfModel *found, Error *err) {
    static const char *const experts[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_layer_freq"};
    const char *type = json_text(found->root, "model_type", "");
    const FamilyForm *form = families[found->model.family].forms;
    for (int i = 0; i < 4; i++) {
        if (!is_number_(json_find(found->root, experts[i]))) continue;
        return error_null(err, EXIT_USAGE,
                          "%s: model_type \"%.40s\" is a mixture of experts (%s), which is unsupported; use a dense "
                          "model",
                          found->path, type, experts[i]);
    }
    char known[80] = "";
    for (; form->model_type != NULL; form++) {
        if (strcmp(form->model_type, type) == 0) return form;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s\"%s\"", used > 0 ? ", " : "", form->model_type);
    }
    return error_null(err, EXIT_USAGE, "%s: model_type is \"%.40s\"; family %s computes %s", found->path, type,
                      family_words[found->model.family], known);
}

// Returns a number of the file, or its default. Newer files have rope_theta inside rope_parameters.
static double found_number_(const JsonValue *root, const FamilyNumber *row) {
    const JsonValue *value = json_find(root, row->word);
    if (value == NULL && strcmp(row->word, "rope_theta") == 0)
        value = json_find(json_find(root, "rope_parameters"), row->word);
    if (is_number_(value)) return value->number;
    return row->times == NULL ? row->absent : row->absent * (double)json_integer(root, row->times, -1);
}

// Reads the object rope_scaling. Newer files call it rope_parameters, and also have it without any scaling.
static int read_rope_(HfModel *found, Error *err) {
    ModelConfig *m = &found->model;
    const JsonValue *scaling = json_find(found->root, "rope_scaling");
    if (scaling == NULL || scaling->type != JSON_OBJECT) scaling = json_find(found->root, "rope_parameters");
    const char *kind = json_text(scaling, "rope_type", json_text(scaling, "type", "default"));
    if (strcmp(kind, "default") == 0) kind = "none";
    for (m->rope_scaling = ROPE_YARN; m->rope_scaling > ROPE_NONE; m->rope_scaling--)
        if (strcmp(kind, config_word("model.rope_scaling", m->rope_scaling)) == 0) break;
    const JsonValue *truncate = json_find(scaling, "truncate");
    char text[120];
    snprintf(text, sizeof text, "rope_scaling is \"%.40s\"", kind);
    if (m->rope_scaling == ROPE_NONE && strcmp(kind, "none") != 0) return hf_refuse_(found, err, text);
    if (is_number_(json_find(scaling, "mscale")) || (truncate != NULL && !is_true_(scaling, "truncate")))
        return hf_refuse_(found, err, "rope_scaling has mscale or truncate");
    for (int i = 0; i < HF_ROPE_NUMBERS; i++) {
        const HfRopeNumber *row = &hf_rope_numbers[i];
        const JsonValue *value = json_find(scaling, row->word);
        if (!row->kind[m->rope_scaling]) continue;
        if (!is_number_(value) && row->absent < 0)
            return error_set(err, EXIT_USAGE, "%s: rope_scaling \"%s\" has no %s; add it", found->path, kind,
                             row->word);
        double number = is_number_(value) ? value->number : row->absent;
        if (hf_put_(found, row->offset, row->real, number, row->word, err) != 0) return -1;
    }
    if (m->rope_scaling != ROPE_YARN) return 0;
    if (m->rope_attention == 0) m->rope_attention = 0.1 * log(m->rope_factor) + 1;
    m->rope_original = json_integer(scaling, "original_max_position_embeddings",
                                    json_integer(found->root, "max_position_embeddings", 0));
    return 0;
}

// Returns the family that implements the file's model_type, or -1.
static int family_of_(const JsonValue *root) {
    const char *type = json_text(root, "model_type", "");
    for (int family = 0; family_words[family] != NULL; family++)
        for (const FamilyForm *form = families[family].forms; form->model_type != NULL; form++)
            if (strcmp(form->model_type, type) == 0) return family;
    return -1;
}

int hf_model_read(HfModel *found, int family_of_run, Error *err) {
    ModelConfig *m = &found->model;
    *m = (ModelConfig){.family = family_of_run};
    const Family *family = &families[family_of_run];
    const FamilyForm *form = find_form_(found, err);
    if (form == NULL) return -1;
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        double value = found_number_(found->root, row);
        if (value < 0)
            return error_set(err, EXIT_USAGE, "%s: %s (%s) is missing; is the file complete?", found->path, row->word,
                             row->key);
        if (hf_put_(found, row->offset, row->real, value, row->word, err) != 0) return -1;
    }
    m->qkv_bias = form->qkv_bias;
    m->qk_norm = form->qk_norm;
    m->head_dim = json_integer(found->root, "head_dim", form->head_dim);
    if (m->head_dim <= 0 && m->heads > 0) m->head_dim = m->hidden / m->heads;
    const JsonValue *tied = json_find(found->root, "tie_word_embeddings");
    bool said = tied != NULL && tied->type == JSON_BOOL;
    m->tie_embeddings = (said ? tied->truth : family->tied) ? TIE_TRUE : TIE_FALSE;
    m->causal = json_find(found->root, "is_causal") == NULL || is_true_(found->root, "is_causal");
    return family->rotary ? read_rope_(found, err) : 0;
}

int hf_model_keys(const ModelConfig *model, const ConfigKey *keys[HF_MOST_KEYS]) {
    static const char *const others[] = {"model.tie_embeddings", "model.causal",  "model.head_dim",
                                         "model.qkv_bias",       "model.qk_norm", "model.rope_scaling"};
    const Family *family = &families[model->family];
    int count = 0;
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) keys[count++] = config_find(row->key);
    for (int i = 0; i < (family->rotary ? 6 : 2); i++) keys[count++] = config_find(others[i]);
    for (int i = 0; i < HF_ROPE_NUMBERS && family->rotary; i++)
        if (hf_rope_numbers[i].kind[model->rope_scaling]) keys[count++] = config_find(hf_rope_numbers[i].key);
    if (model->rope_scaling == ROPE_YARN) keys[count++] = config_find("model.rope_original");
    return count;
}

// --- config.json as a configuration

static void write_model_(FILE *file, const ModelConfig *model) {
    const ConfigKey *keys[HF_MOST_KEYS];
    int count = hf_model_keys(model, keys);
    fprintf(file, "model: {family: %s", family_words[model->family]);
    for (int i = 0; i < count; i++) {
        fprintf(file, ", %s: ", config_short_name(keys[i]));
        config_write_field(NULL, keys[i], (const char *)model + keys[i]->offset - offsetof(Config, model), file);
    }
    fputs("}\n", file);
}

char *hf_model_yaml(const char *text, size_t length, const char *path, Error *err) {
    size_t size = 0;
    char *yaml = NULL;
    Json json;
    Error ignored = {0};
    if (length == 0 || text[strspn(text, " \t\r\n")] != '{' || memmem(text, length, "\"model_type\"", 12) == NULL)
        return NULL;
    HfModel found = {.path = path};
    found.root = json_parse(&json, text, (int64_t)length, path, &ignored) == 0 ? json.root : NULL;
    if (json_find(found.root, "model_type") != NULL) {
        int family = family_of_(found.root);
        // A sliding window is not checked, because an override may still set model.seq_len to another length.
        if (family < 0) {
            found.model.family = family_find("llama");
            find_form_(&found, err); // sets the error
        } else if (hf_model_read(&found, family, err) == 0 && check_demands_(&found, err) == 0) {
            FILE *file = xmemstream(&yaml, &size);
            write_model_(file, &found.model);
            xmemstream_close(file);
        }
    }
    json_free(&json);
    return yaml;
}
