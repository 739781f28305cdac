// Reads and writes config.json. A file is read into a ModelConfig, so that one loop over the model's keys finds every
// difference. The family's row has the names of the keys there, and which values mean something that is not
// implemented.
#include "hf_config.h"

#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "base/json.h"
#include "config/config_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- scaled rotations

// A number of rope_scaling, the kinds of scaling that have it, and its value if a file lacks it (negative: required).
typedef struct RopeNumber {
    const char *key, *word;
    size_t offset; // in ModelConfig
    bool real;
    bool kind[ROPE_YARN + 1];
    double absent;
} RopeNumber;

#define ROPE_NUMBER(field, word, real, linear, llama3, yarn, absent)                                                   \
    { "model." #field, word, offsetof(ModelConfig, field), real, {false, linear, llama3, yarn}, absent }

// transformers also knows yarn's original_max_position_embeddings, but its versions disagree on what it means next to
// max_position_embeddings: it is read if present, and max_position_embeddings is written in its place.
static const RopeNumber rope_numbers[] = {
    ROPE_NUMBER(rope_factor, "factor", true, true, true, true, -1),
    ROPE_NUMBER(rope_original, "original_max_position_embeddings", false, false, true, false, -1),
    ROPE_NUMBER(rope_low_freq, "low_freq_factor", true, false, true, false, -1),
    ROPE_NUMBER(rope_high_freq, "high_freq_factor", true, false, true, false, -1),
    ROPE_NUMBER(rope_beta_fast, "beta_fast", true, false, false, true, 32),
    ROPE_NUMBER(rope_beta_slow, "beta_slow", true, false, false, true, 1),
    ROPE_NUMBER(rope_attention, "attention_factor", true, false, false, true, 0),
};

enum { ROPE_NUMBERS = sizeof rope_numbers / sizeof rope_numbers[0] };

static double get_(const ModelConfig *model, size_t offset, bool real) {
    const void *field = (const char *)model + offset;
    return real ? *(const double *)field : (double)*(const int64_t *)field;
}

static void hf_put_(ModelConfig *model, size_t offset, bool real, double value) {
    void *field = (char *)model + offset;
    if (real)
        *(double *)field = value;
    else
        *(int64_t *)field = (int64_t)value;
}

// --- writing

// Returns the first architecture with these keys. There is always one: config_check refuses other combinations.
static const FamilyForm *form_of_(const ModelConfig *m) {
    const FamilyForm *form = families[m->family].forms;
    while (form[1].model_type != NULL && (form->qkv_bias != m->qkv_bias || form->qk_norm != m->qk_norm)) form++;
    return form;
}

static void write_rope_scaling_(const ModelConfig *m, FILE *file) {
    if (m->rope_scaling == ROPE_NONE) {
        fputs("  \"rope_scaling\": null,\n", file);
        return;
    }
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"", config_word("model.rope_scaling", m->rope_scaling));
    for (int i = 0; i < ROPE_NUMBERS; i++) {
        const RopeNumber *row = &rope_numbers[i];
        if (!row->kind[m->rope_scaling]) continue;
        double value = get_(m, row->offset, row->real);
        // Writes a float as one, because transformers warns about integers there.
        if (row->real && value == floor(value))
            fprintf(file, ", \"%s\": %.1f", row->word, value);
        else
            fprintf(file, ", \"%s\": ", row->word), json_write_number(file, value);
    }
    fputs("},\n", file);
}

// If the token is unknown, null is written: transformers' defaults would be wrong for most vocabularies.
static void write_ends_(int64_t end, FILE *file) {
    const char *const words[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < 2; i++) {
        if (end < 0)
            fprintf(file, "  \"%s\": null,\n", words[i]);
        else
            fprintf(file, "  \"%s\": %lld,\n", words[i], (long long)end);
    }
}

void hf_config_write(const Config *config, int64_t end, FILE *file) {
    const ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    const FamilyForm *form = form_of_(m);
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n", form->architecture);
    fprintf(file, "  \"model_type\": \"%s\",\n%s", form->model_type, form->constants);
    if (family->rotary) {
        fprintf(file, "  \"head_dim\": %lld,\n", (long long)m->head_dim);
        write_rope_scaling_(m, file);
    }
    fprintf(file, "  \"tie_word_embeddings\": %s,\n", config_word("model.tie_embeddings", m->tie_embeddings));
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        bool length = row->offset == offsetof(ModelConfig, seq_len);
        double value =
            length && m->rope_scaling == ROPE_YARN ? (double)m->rope_original : get_(m, row->offset, row->real);
        fprintf(file, "  \"%s\": ", row->word);
        json_write_number(file, value);
        fputs(",\n", file);
    }
    fputs("  \"initializer_range\": 0.02,\n  \"use_cache\": true,\n", file);
    write_ends_(end, file);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", config->train.precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

// --- reading

// A config.json and what is read from it.
typedef struct Found {
    const JsonValue *root;
    const char *path;
    ModelConfig model;
} Found;

static bool is_number_(const JsonValue *value) {
    return value != NULL && value->type == JSON_NUMBER;
}

static bool is_true_(const JsonValue *root, const char *word) {
    const JsonValue *value = json_find(root, word);
    return value != NULL && value->type == JSON_BOOL && value->truth;
}

static int hf_refuse_(const Found *found, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s: %s, which this program does not compute; use another model", found->path,
                     what);
}

static bool meets_(const JsonValue *value, const char *allowed) {
    if (value->type == JSON_TEXT) return strcmp(value->text, allowed) == 0;
    if (value->type == JSON_BOOL) return strcmp(value->truth ? "true" : "false", allowed) == 0;
    return value->type == JSON_NUMBER && value->number == atof(allowed);
}

static int check_demands_(const Found *found, const Family *family, Error *err) {
    for (const FamilyDemand *demand = family->demands; demand->word != NULL; demand++) {
        const JsonValue *value = json_find(found->root, demand->word);
        bool met = value == NULL || value->type == JSON_NULL;
        for (int i = 0; i < 2 && demand->allowed[i] != NULL; i++) met = met || meets_(value, demand->allowed[i]);
        if (!met) return hf_refuse_(found, err, demand->refusal);
    }
    return 0;
}

// A sliding window makes no difference if no sequence is longer.
static int check_window_(const Found *found, int64_t seq_len, Error *err) {
    const JsonValue *use = json_find(found->root, "use_sliding_window");
    int64_t window = json_integer(found->root, "sliding_window", 0);
    if ((use != NULL && !is_true_(found->root, "use_sliding_window")) || window <= 0 || window >= seq_len) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: sliding_window is %lld, and longer sequences are not computed so here; use model.seq_len "
                     "%lld or less",
                     found->path, (long long)window, (long long)window);
}

// Returns the architecture with this model_type, or NULL with err.
static const FamilyForm *find_form_(const Found *found, const Config *config, Error *err) {
    static const char *const experts[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_layer_freq"};
    const char *type = json_text(found->root, "model_type", "");
    const FamilyForm *form = families[config->model.family].forms;
    for (int i = 0; i < 4; i++) {
        if (!is_number_(json_find(found->root, experts[i]))) continue;
        error_set(err, EXIT_USAGE,
                  "%s: model_type \"%.40s\" is a mixture of experts (%s), which this program does not compute; use a "
                  "dense model",
                  found->path, type, experts[i]);
        return NULL;
    }
    char known[80] = "";
    for (; form->model_type != NULL; form++) {
        if (strcmp(form->model_type, type) == 0) return form;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s\"%s\"", used > 0 ? ", " : "", form->model_type);
    }
    error_set(err, EXIT_USAGE, "%s: model_type is \"%.40s\", and %s trains %s", found->path, type, config->path, known);
    return NULL;
}

// Newer files keep rope_theta in an object of its own. A file without it has the family's default.
static double found_number_(const JsonValue *root, const FamilyNumber *row) {
    const JsonValue *value = json_find(root, row->word);
    if (value == NULL && strcmp(row->word, "rope_theta") == 0)
        value = json_find(json_find(root, "rope_parameters"), row->word);
    if (is_number_(value)) return value->number;
    return row->times == NULL ? row->absent : row->absent * (double)json_integer(root, row->times, -1);
}

// Reads the object that describes scaled rotations: newer files call it rope_parameters, and have it for plain ones
// too.
static int read_rope_(Found *found, Error *err) {
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
    for (int i = 0; i < ROPE_NUMBERS; i++) {
        const RopeNumber *row = &rope_numbers[i];
        const JsonValue *value = json_find(scaling, row->word);
        if (!row->kind[m->rope_scaling]) continue;
        if (!is_number_(value) && row->absent < 0)
            return error_set(err, EXIT_USAGE, "%s: rope_scaling \"%s\" has no %s; add it", found->path, kind,
                             row->word);
        hf_put_(m, row->offset, row->real, is_number_(value) ? value->number : row->absent);
    }
    if (m->rope_scaling != ROPE_YARN) return 0;
    if (m->rope_attention == 0) m->rope_attention = 0.1 * log(m->rope_factor) + 1;
    m->rope_original = json_integer(scaling, "original_max_position_embeddings",
                                    json_integer(found->root, "max_position_embeddings", 0));
    return 0;
}

static int read_model_(Found *found, const Config *config, Error *err) {
    ModelConfig *m = &found->model;
    const Family *family = &families[config->model.family];
    const FamilyForm *form = find_form_(found, config, err);
    if (form == NULL) return -1;
    memset(m, 0, sizeof *m);
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        double value = found_number_(found->root, row);
        if (value < 0)
            return error_set(err, EXIT_USAGE, "%s: has no %s (%s); is it whole?", found->path, row->word, row->key);
        hf_put_(m, row->offset, row->real, value);
    }
    m->qkv_bias = form->qkv_bias;
    m->qk_norm = form->qk_norm;
    m->head_dim = json_integer(found->root, "head_dim", form->head_dim);
    if (m->head_dim <= 0 && m->heads > 0) m->head_dim = m->hidden / m->heads;
    const JsonValue *tied = json_find(found->root, "tie_word_embeddings");
    bool said = tied != NULL && tied->type == JSON_BOOL;
    m->tie_embeddings = (said ? tied->truth : family->tied) ? TIE_TRUE : TIE_FALSE;
    return family->rotary ? read_rope_(found, err) : 0;
}

// --- comparing

static void hf_value_text_(char *text, size_t size, const ConfigKey *key, const void *field) {
    if (key->type == KEY_NUMBER)
        snprintf(text, size, "%.10g", *(const double *)field);
    else if (key->type == KEY_INT)
        snprintf(text, size, "%lld", (long long)*(const int64_t *)field);
    else if (key->type == KEY_BOOL)
        snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
    else
        snprintf(text, size, "%s", key->words[*(const int *)field]);
}

// Compares two values; constants may be rounded, since some files contain those that went through fp32.
static bool same_value_(const ConfigKey *key, const void *there, const void *here) {
    if (key->type != KEY_NUMBER) return memcmp(there, here, key->size) == 0;
    double a = *(const double *)there, b = *(const double *)here;
    return fabs(a - b) <= 1e-6 * fabs(b);
}

typedef struct Differences {
    char text[700];
    size_t used;
} Differences;

// Appends "model.hidden is 256 there and 128 here" if they differ.
static void compare_key_(Differences *list, const char *name, const ModelConfig *there, const ModelConfig *here) {
    const ConfigKey *key = config_find(name);
    size_t at = key->offset - offsetof(Config, model);
    const char *a = (const char *)there + at, *b = (const char *)here + at;
    char theirs[40], ours[40];
    if (same_value_(key, a, b) || list->used >= sizeof list->text) return;
    hf_value_text_(theirs, sizeof theirs, key, a);
    hf_value_text_(ours, sizeof ours, key, b);
    list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                   "%s%s is %s there and %s here", list->used > 0 ? ", " : "", name, theirs, ours);
}

static void compare_models_(Differences *list, const ModelConfig *there, const ModelConfig *here, bool exact) {
    static const char *const rotary[] = {"model.head_dim", "model.qkv_bias", "model.qk_norm", "model.rope_scaling"};
    const Family *family = &families[here->family];
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        // Rotations work for any length, and YaRN's files give another one.
        bool length = row->offset == offsetof(ModelConfig, seq_len) && family->rotary;
        if (length && (!exact || here->rope_scaling == ROPE_YARN)) continue;
        compare_key_(list, row->key, there, here);
    }
    compare_key_(list, "model.tie_embeddings", there, here);
    for (int i = 0; i < 4 && family->rotary; i++) compare_key_(list, rotary[i], there, here);
    for (int i = 0; i < ROPE_NUMBERS && there->rope_scaling == here->rope_scaling; i++)
        if (rope_numbers[i].kind[here->rope_scaling]) compare_key_(list, rope_numbers[i].key, there, here);
    if (here->rope_scaling == ROPE_YARN) compare_key_(list, "model.rope_original", there, here);
}

static int hf_compare_(Found *found, const Config *config, bool exact, Error *err) {
    Differences list = {.used = 0};
    if (read_model_(found, config, err) != 0) return -1;
    compare_models_(&list, &found->model, &config->model, exact);
    if (list.used > 0)
        return error_set(err, EXIT_USAGE, "%s: is of another model than %s: %s; make them equal", found->path,
                         config->path, list.text);
    if (check_demands_(found, &families[config->model.family], err) != 0) return -1;
    return check_window_(found, config->model.seq_len, err);
}

int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err) {
    char path[CHECKPOINT_PATH];
    if (checkpoint_file_path(path, dir, CHECKPOINT_CONFIG, err) != 0) return -1;
    if (access(path, F_OK) != 0) return 0;
    Json json;
    int status = json_read_file(&json, path, err);
    Found found = {.root = json.root, .path = path};
    if (status == 0) status = hf_compare_(&found, config, exact, err);
    json_free(&json);
    return status;
}
