// Reads and writes config.json. A file is read into a ModelConfig, so that one loop over the model's keys finds every
// difference. The family's row has the names of the keys there, and which values mean something that is not
// implemented.
#include "hf_config.h"

#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "base/alloc.h"
#include "base/json.h"
#include "config/config_schema.h"
#include "config/hf_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double get_(const ModelConfig *model, size_t offset, bool real) {
    const void *field = (const char *)model + offset;
    return real ? *(const double *)field : (double)*(const int64_t *)field;
}

// --- writing

static void write_rope_scaling_(const ModelConfig *m, FILE *file) {
    if (m->rope_scaling == ROPE_NONE) {
        fputs("  \"rope_scaling\": null,\n", file);
        return;
    }
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"", config_word("model.rope_scaling", m->rope_scaling));
    for (int i = 0; i < HF_ROPE_NUMBERS; i++) {
        const HfRopeNumber *row = &hf_rope_numbers[i];
        if (!row->kind[m->rope_scaling]) continue;
        double value = get_(m, row->offset, row->real);
        // Writes a float as one, because transformers warns about integers there.
        if (row->real && value == floor(value)) fprintf(file, ", \"%s\": %.1f", row->word, value);
        else fprintf(file, ", \"%s\": ", row->word), json_write_number(file, value);
    }
    fputs("},\n", file);
}

// If the token is unknown, null is written: transformers' defaults would be wrong for most vocabularies.
static void write_ends_(int64_t end, FILE *file) {
    const char *const words[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < 2; i++)
        if (end < 0) fprintf(file, "  \"%s\": null,\n", words[i]);
        else fprintf(file, "  \"%s\": %lld,\n", words[i], (long long)end);
}

void hf_config_write(const Config *config, int64_t end, FILE *file) {
    const ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    const FamilyForm *form = family->forms; // one has these keys: config_check refuses other combinations
    while (form[1].model_type != NULL && (form->qkv_bias != m->qkv_bias || form->qk_norm != m->qk_norm)) form++;
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n", form->architecture);
    fprintf(file, "  \"model_type\": \"%s\",\n%s", form->model_type, form->constants);
    if (family->rotary) {
        fprintf(file, "  \"head_dim\": %lld,\n", (long long)m->head_dim);
        write_rope_scaling_(m, file);
    }
    if (!m->causal) fputs("  \"is_causal\": false,\n", file);
    fprintf(file, "  \"tie_word_embeddings\": %s,\n", config_word("model.tie_embeddings", m->tie_embeddings));
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        bool length = row->offset == offsetof(ModelConfig, seq_len);
        double value =
            length && m->rope_scaling == ROPE_YARN ? (double)m->rope_original : get_(m, row->offset, row->real);
        fprintf(file, "  \"%s\": ", row->word);
        json_write_number(file, value);
        fputs(",\n", file);
    }
    fprintf(file, "  \"initializer_range\": %.9g,\n  \"use_cache\": true,\n", config->train.init_std);
    write_ends_(end, file);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", config->train.precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

// --- comparing

static void hf_value_text_(char *text, size_t size, const ConfigKey *key, const void *field) {
    if (key->type == KEY_NUMBER) snprintf(text, size, "%.10g", *(const double *)field);
    else if (key->type == KEY_INT) snprintf(text, size, "%lld", (long long)*(const int64_t *)field);
    else if (key->type == KEY_BOOL) snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
    else snprintf(text, size, "%s", key->words[*(const int *)field]);
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

// rotations: those of a rotary family, and the length if `exact`, have to agree too.
static void compare_models_(Differences *list, const ModelConfig *there, const ModelConfig *here, bool exact,
                            bool rotations) {
    static const char *const rotary[] = {"model.head_dim", "model.qkv_bias", "model.qk_norm", "model.rope_scaling"};
    const Family *family = &families[here->family];
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) {
        // Rotations work for any length, and YaRN's files give another one.
        bool length = row->offset == offsetof(ModelConfig, seq_len) && family->rotary;
        if (length && (!exact || !rotations || here->rope_scaling == ROPE_YARN)) continue;
        if (!rotations && row->offset == offsetof(ModelConfig, rope_theta)) continue;
        compare_key_(list, row->key, there, here);
    }
    compare_key_(list, "model.tie_embeddings", there, here);
    compare_key_(list, "model.causal", there, here);
    for (int i = 0; i < 3 + rotations && family->rotary; i++) compare_key_(list, rotary[i], there, here);
    if (!rotations) return;
    for (int i = 0; i < HF_ROPE_NUMBERS && there->rope_scaling == here->rope_scaling; i++)
        if (hf_rope_numbers[i].kind[here->rope_scaling]) compare_key_(list, hf_rope_numbers[i].key, there, here);
    if (here->rope_scaling == ROPE_YARN) compare_key_(list, "model.rope_original", there, here);
}

static int hf_compare_(const HfModel *found, const Config *config, bool exact, Error *err) {
    Differences list = {.used = 0};
    bool may = exact && families[config->model.family].rotary, accepts = config->checkpoint.changed == CHANGED_ACCEPT;
    compare_models_(&list, &found->model, &config->model, exact, !(may && accepts));
    if (list.used > 0)
        return error_set(err, EXIT_USAGE, "%s: is of another model than %s: %s; make them equal%s", found->path,
                         config->path, list.text,
                         may && !accepts ? " (checkpoint.changed: accept allows another model.seq_len and model.rope_*)"
                                         : "");
    return hf_model_check(found, config->model.seq_len, err);
}

// Returns whether compare_models_ compares the key for this configuration, or the key has no effect in it.
static bool is_written_(const Config *config, const char *name) {
    static const char *const always[] = {"model.family",   "model.kv_heads", "model.tie_embeddings", "model.head_dim",
                                         "model.qkv_bias", "model.qk_norm",  "model.rope_scaling",   "model.causal"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(name, always[i]) == 0) return true;
    for (const FamilyNumber *row = families[config->model.family].numbers; row->key != NULL; row++)
        if (strcmp(name, row->key) == 0) return true;
    for (int i = 0; i < HF_ROPE_NUMBERS; i++)
        if (strcmp(name, hf_rope_numbers[i].key) == 0) return true;
    return false;
}

// Returns the first key that config.json has no word for and that has not its default, or NULL.
static const ConfigKey *unwritten_key_(const Config *config) {
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        bool silent = strncmp(key->name, "model.", 6) == 0 && !is_written_(config, key->name);
        if (silent && key->def != NULL && !config_at_default(config, key->name)) return key;
    }
    return NULL;
}

int hf_config_check(const Config *config, Error *err) {
    const ConfigKey *key = unwritten_key_(config);
    char *text;
    size_t length;
    Json json;
    Error wrong = {0};
    Differences list = {.used = 0};
    if (key != NULL)
        return config_error(config, key->name, err,
                            "a checkpoint's config.json has no word for this, so that it would describe another model; "
                            "use %s, or leave checkpoint.dir empty",
                            key->def);
    FILE *file = xmemstream(&text, &length);
    hf_config_write(config, -1, file);
    xmemstream_close(file);
    int status = json_parse(&json, text, (int64_t)length, CHECKPOINT_CONFIG, &wrong);
    HfModel found = {.root = json.root, .path = CHECKPOINT_CONFIG};
    if (status == 0) status = hf_model_read(&found, config->model.family, &wrong);
    if (status == 0) compare_models_(&list, &found.model, &config->model, true, true);
    if (status == 0) status = hf_model_check(&found, config->model.seq_len, &wrong);
    json_free(&json);
    free(text);
    if (status == 0 && list.used == 0) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: a checkpoint's config.json would describe another model: %s; change model.*, "
                     "or leave checkpoint.dir empty",
                     config->path, status != 0 ? wrong.text : list.text);
}

int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_path_within(path, dir, CHECKPOINT_CONFIG, err) != 0) return -1;
    if (access(path, F_OK) != 0) return 0;
    Json json;
    int status = json_read_file(&json, path, err);
    HfModel found = {.root = json.root, .path = path};
    if (status == 0) status = hf_model_read(&found, config->model.family, err);
    if (status == 0) status = hf_compare_(&found, config, exact, err);
    json_free(&json);
    return status;
}
