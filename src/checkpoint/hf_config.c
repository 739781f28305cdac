// Reads and writes the files that describe a model for transformers: config.json and the tokenizer's files. A
// config.json is read into a ModelConfig, so that one loop over the model's keys finds every difference. The model
// family's row of `families` lists the names of the keys in config.json, and the supported values.
#include "hf_config.h"

#include "checkpoint_files.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "config/config_schema.h"
#include "config/hf_model.h"
#include "data/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double get_(const ModelConfig *model, size_t offset, bool real) {
    const void *field = (const char *)model + offset;
    return real ? *(const double *)field : (double)*(const int64_t *)field;
}

// --- writing

// transformers takes max_position_embeddings for a YaRN model's original length, unless the scaling has that too. Then
// it computes the factor from both, so both are written only if that gives the factor.
static bool has_both_lengths_(const ModelConfig *m) {
    return m->rope_scaling == ROPE_YARN && m->rope_factor * (double)m->rope_original == (double)m->seq_len;
}

static void write_number_(const ModelConfig *m, const FamilyNumber *row, FILE *file) {
    bool original = row->offset == offsetof(ModelConfig, seq_len) && m->rope_scaling == ROPE_YARN;
    if (row->again) return;
    fprintf(file, "  \"%s\": ", row->word);
    if (row->truth) fputs(*(const bool *)((const char *)m + row->offset) ? "true" : "false", file);
    else if (original && !has_both_lengths_(m)) json_write_number(file, (double)m->rope_original);
    else json_write_number(file, get_(m, row->offset, row->real) / (row->unit != 0 ? get_(m, row->unit, false) : 1.0));
    fputs(",\n", file);
}

void hf_config_write(const Config *config, int64_t end, FILE *file) {
    const ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    const FamilyForm *form = family_form(m);
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n", form->architecture);
    fprintf(file, "  \"model_type\": \"%s\",\n%s", form->model_type, form->constants);
    // transformers derives the rotations of DeepSeek-V3 from head_dim.
    if (family->rotary) fprintf(file, "  \"head_dim\": %lld,\n", (long long)(form->latent ? m->rope_dim : m->head_dim));
    if (family->rotary && m->rope_scaling == ROPE_NONE) fputs("  \"rope_scaling\": null,\n", file);
    if (family->rotary && m->rope_scaling != ROPE_NONE) {
        fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"", config_word("model.rope_scaling", m->rope_scaling));
        for (int i = 0; i < HF_ROPE_NUMBERS; i++) {
            const HfRopeNumber *row = &hf_rope_numbers[i];
            double value = get_(m, row->offset, row->real);
            if (!row->kind[m->rope_scaling] || (row->absent == 0 && value == 0)) continue;
            // Writes a float with a decimal point, because transformers warns about integers for these keys.
            if (row->real && value == floor(value)) fprintf(file, ", \"%s\": %.1f", row->word, value);
            else fprintf(file, ", \"%s\": ", row->word), json_write_number(file, value);
        }
        if (has_both_lengths_(m))
            fprintf(file, ", \"original_max_position_embeddings\": %lld", (long long)m->rope_original);
        fputs("},\n", file);
    }
    if (!m->causal) fputs("  \"is_causal\": false,\n", file);
    fprintf(file, "  \"tie_word_embeddings\": %s,\n", config_word("model.tie_embeddings", m->tie_embeddings));
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) write_number_(m, row, file);
    for (const FamilyNumber *row = form->experts; row != NULL && row->key != NULL; row++) write_number_(m, row, file);
    fprintf(file, "  \"initializer_range\": %.9g,\n  \"use_cache\": true,\n", config->train.init_std);
    // If the token is unknown, null is written: transformers' defaults would be wrong for most vocabularies.
    char token[32] = "null";
    if (end >= 0) snprintf(token, sizeof token, "%lld", (long long)end);
    fprintf(file, "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n", token, token);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", config->train.precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

// --- comparing

static void value_text_(char *text, size_t size, const ConfigKey *key, const void *field) {
    if (key->type == KEY_NUMBER) snprintf(text, size, "%.10g", *(const double *)field);
    else if (key->type == KEY_INT) snprintf(text, size, "%lld", (long long)*(const int64_t *)field);
    else if (key->type == KEY_BOOL) snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
    else snprintf(text, size, "%s", key->words[*(const int *)field]);
}

typedef struct Differences {
    char text[700];
    size_t used;
} Differences;

// Lists the keys that differ, as "model.hidden is 256 there and 128 here". Compares model.rope_* only with `rotations`,
// and the numbers of rope scaling only if both models have the same kind. For a rotary family, compares model.seq_len
// only with both `rotations` and `exact`.
static void compare_models_(Differences *list, const ModelConfig *there, const ModelConfig *here, bool exact,
                            bool rotations) {
    const ConfigKey *keys[HF_MOST_KEYS];
    int count = hf_model_keys(here, keys);
    for (int i = 0; i < count; i++) {
        const char *name = keys[i]->name;
        // Rotations work for any length. For YaRN, config.json has the length before the extension, not seq_len.
        bool length = strcmp(name, "model.seq_len") == 0 && families[here->family].rotary;
        if (length && (!exact || !rotations || here->rope_scaling == ROPE_YARN)) continue;
        bool rope = strncmp(name, "model.rope_", 11) == 0, scaled = rope && strcmp(name, "model.rope_theta") != 0;
        if (rope && !rotations) continue;
        if (scaled && strcmp(name, "model.rope_scaling") != 0 && there->rope_scaling != here->rope_scaling) continue;
        size_t at = keys[i]->offset - offsetof(Config, model);
        const void *a = (const char *)there + at, *b = (const char *)here + at;
        // Numbers may differ by rounding, since some files contain constants that were rounded to fp32.
        double wanted = keys[i]->type == KEY_NUMBER ? *(const double *)b : 0;
        bool same = keys[i]->type == KEY_NUMBER ? fabs(*(const double *)a - wanted) <= 1e-6 * fabs(wanted)
                                                : memcmp(a, b, keys[i]->size) == 0;
        if (same || list->used >= sizeof list->text) continue;
        char theirs[40], ours[40];
        value_text_(theirs, sizeof theirs, keys[i], a);
        value_text_(ours, sizeof ours, keys[i], b);
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                       "%s%s is %s there and %s here", list->used > 0 ? ", " : "", name, theirs, ours);
    }
}

int hf_config_check(const Config *config, Error *err) {
    const ConfigKey *keys[HF_MOST_KEYS], *lost = NULL;
    char *text;
    size_t length;
    Json json;
    Error wrong = {0};
    Differences list = {.used = 0};
    // 1. The first key that is not at its default and has no name in config.json. Skips kv_heads and head_dim, because
    //    a family without names for them allows only the defaults. Skips the keys of rope scaling, because those
    //    that config.json lacks have no effect.
    int count = hf_model_keys(&config->model, keys);
    for (const ConfigKey *key = config_keys; key < config_keys + config_key_count && lost == NULL; key++) {
        bool plain = strcmp(key->name, "model.rope_theta") == 0 || strcmp(key->name, "model.rope_share") == 0;
        bool scaled = strncmp(key->name, "model.rope_", 11) == 0 && !plain;
        bool silent = strncmp(key->name, "model.", 6) == 0 && !scaled;
        if (strcmp(key->name, "model.kv_heads") == 0 || strcmp(key->name, "model.head_dim") == 0) continue;
        for (int k = 0; k < count; k++) silent = silent && key != keys[k];
        if (silent && key->def != NULL && !config_at_default(config, key->name)) lost = key;
    }
    if (lost != NULL)
        return config_error(config, lost->name, err,
                            "a checkpoint's config.json cannot express this, so it would describe another model; "
                            "use %s, or leave checkpoint.dir empty",
                            lost->def);
    // 2. The file, read back.
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
                     "%s: a checkpoint's config.json cannot express this model: %s; change model.*, "
                     "or leave checkpoint.dir empty",
                     config->path, status != 0 ? wrong.text : list.text);
}

int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_path_within(path, dir, CHECKPOINT_CONFIG, err) != 0) return -1;
    if (access(path, F_OK) != 0) return 0;
    Json json;
    Differences list = {.used = 0};
    bool may = exact && families[config->model.family].rotary, accepts = config->checkpoint.changed == CHANGED_ACCEPT;
    int status = json_read_file(&json, path, err);
    HfModel found = {.root = json.root, .path = path};
    if (status == 0) status = hf_model_read(&found, config->model.family, err);
    if (status == 0) compare_models_(&list, &found.model, &config->model, exact, !(may && accepts));
    if (status == 0 && list.used > 0)
        status = error_set(
            err, EXIT_USAGE, "%s: model differs from %s: %s; make them equal%s", path, config->path, list.text,
            may && !accepts ? " (checkpoint.changed: accept allows another model.seq_len and model.rope_*)" : "");
    if (status == 0) status = hf_model_check(&found, config->model.seq_len, err);
    json_free(&json);
    return status;
}

// --- the tokenizer: tokenizer_config.json, and tokenizer.json or tokenizer.model, in memory

enum { BYTES_END_TOKEN = 256 };

#define BYTES_END_TEXT "<|endoftext|>"

static FILE *begin_(HfTokenizer *tokenizer, const char *name) {
    int i = tokenizer->count++;
    tokenizer->file[i].name = name;
    return xmemstream(&tokenizer->file[i].text, &tokenizer->file[i].length);
}

// Adds tokenizer_config.json. end: text of the end-of-text token, or NULL.
static void add_config_(HfTokenizer *tokenizer, const Config *config, const char *class, const char *end) {
    FILE *file = begin_(tokenizer, "tokenizer_config.json");
    fprintf(file, "{\n  \"tokenizer_class\": \"%s\",\n  \"model_max_length\": %lld,\n", class,
            (long long)config->model.seq_len);
    // The end-of-text token also precedes every document, so it is both bos and eos. It is not added to prompts.
    const char *const keys[] = {"bos_token", "eos_token"};
    for (int i = 0; i < 2 && end != NULL; i++) {
        fprintf(file, "  \"%s\": ", keys[i]);
        json_write_text(file, end);
        fputs(",\n", file);
    }
    fputs("  \"add_bos_token\": false,\n  \"add_eos_token\": false,\n  \"clean_up_tokenization_spaces\": false\n}\n",
          file);
    xmemstream_close(file);
}

// Reads the tokenizer's file into memory and adds tokenizer_config.json. -1 with err.
static int load_file_(HfTokenizer *tokenizer, const Config *config, const SideFile *side, Error *err) {
    enum { MOST = 256 << 20 }; // ten times the largest tokenizer.json in use
    bool pieces = strcmp(side->tokenizer, "sentencepiece") == 0;
    int64_t length = 0;
    char *text = file_read_whole(side->file, MOST, &length, err);
    if (text == NULL) return -1;
    tokenizer->file[0].name = pieces ? "tokenizer.model" : "tokenizer.json";
    tokenizer->file[0].text = text;
    tokenizer->file[0].length = (size_t)length;
    tokenizer->count = 1;
    tokenizer->end = side->eot;
    // The text of the end-of-text token, such as "<|end_of_text|>": of the added token that has its id.
    char end[80];
    const char *found = pieces ? "</s>" : NULL;
    Json json = {0};
    Error ignored = {0};
    if (!pieces && json_parse(&json, text, length, "tokenizer.json", &ignored) == 0) {
        const JsonValue *added = json_find(json.root, "added_tokens");
        for (const JsonValue *token = added == NULL ? NULL : added->first; token != NULL; token = token->next)
            if (json_integer(token, "id", -1) == side->eot) found = json_text(token, "content", NULL);
    }
    if (found != NULL) snprintf(end, sizeof end, "%s", found);
    json_free(&json);
    add_config_(tokenizer, config, pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast", found != NULL ? end : NULL);
    return 0;
}

int hf_tokenizer_load(HfTokenizer *tokenizer, const Config *config, Error *err) {
    SideFile side;
    memset(tokenizer, 0, sizeof *tokenizer);
    tokenizer->end = -1;
    int found = tokenizer_side(config, &side, err);
    if (found < 0) return -1;
    if (found > 0 && side.file[0] != '\0') return load_file_(tokenizer, config, &side, err);
    bool bytes = found > 0 ? strcmp(side.tokenizer, "bytes") == 0 : config->model.vocab == BYTES_END_TOKEN + 1;
    if (!bytes || config->model.vocab <= BYTES_END_TOKEN) return 0;
    FILE *file = begin_(tokenizer, "tokenizer.json");
    // Byte-level BPE without merges: one token per byte. In GPT-2's alphabet, printable bytes are unchanged, and the
    // characters of the others count up from U+0100.
    fputs(
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": 256, \"content\": "
        "\"" BYTES_END_TEXT "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
        "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false, \"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, \"model\": "
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], \"vocab\": {",
        file);
    for (int byte = 0, others = 0; byte < 256; byte++) {
        bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        int sign = prints ? byte : 256 + others++;
        char text[3] = {(char)sign};
        if (sign >= 128) text[0] = (char)(0xC0 | sign >> 6), text[1] = (char)(0x80 | (sign & 63));
        if (byte > 0) fputs(", ", file);
        json_write_text(file, text);
        fprintf(file, ": %d", byte);
    }
    fputs("}}}\n", file);
    xmemstream_close(file);
    add_config_(tokenizer, config, "PreTrainedTokenizerFast", BYTES_END_TEXT);
    tokenizer->end = BYTES_END_TOKEN;
    return 0;
}

void hf_tokenizer_free(HfTokenizer *tokenizer) {
    for (int i = 0; i < tokenizer->count; i++) free(tokenizer->file[i].text);
    memset(tokenizer, 0, sizeof *tokenizer);
    tokenizer->end = -1;
}
