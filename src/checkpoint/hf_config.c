// Reads and writes the files that describe a model for transformers: config.json and the tokenizer's files. A
// config.json is read into a ModelConfig, so that one loop over the model's keys finds every difference. The model
// family's row of `families` lists the names of the keys in config.json, and the supported values.
#include "hf_config.h"

#include "checkpoint_files.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "base/json_out.h"
#include "config/config_schema.h"
#include "config/hf_model.h"
#include "data/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double get_(const ModelConfig *model, const char *name) {
    const ConfigKey *key = config_find(name);
    const void *field = hf_model_field(model, key);
    return key->type == KEY_NUMBER ? *(const double *)field : (double)*(const int64_t *)field;
}

// --- writing

// transformers takes max_position_embeddings for a YaRN model's original length, unless the scaling has that too. Then
// it computes the factor from both, so both are written only if that gives the factor.
static bool has_both_lengths_(const ModelConfig *m) {
    return m->rope_scaling == ROPE_YARN && m->rope_factor * (double)m->rope_original == (double)m->seq_len;
}

static void put_number_(JsonOut *out, const ModelConfig *m, const FamilyNumber *row) {
    const ConfigKey *key = config_find(row->key);
    bool original = strcmp(row->key, "model.seq_len") == 0 && m->rope_scaling == ROPE_YARN && !has_both_lengths_(m);
    if (row->again) return;
    if (key->type == KEY_BOOL) json_put_truth(out, row->word, *(const bool *)hf_model_field(m, key));
    else if (original) json_put_integer(out, row->word, m->rope_original);
    else json_put_number(out, row->word, get_(m, row->key) / (row->unit != NULL ? get_(m, row->unit) : 1.0));
}

void hf_config_write(const Config *config, int64_t end, FILE *file) {
    const ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    const FamilyForm *form = family_form(m);
    JsonOut out = {.file = file, .tall = 1};
    json_begin(&out, NULL, '{');
    json_begin(&out, "architectures", '[');
    json_put_text(&out, NULL, form->architecture);
    json_end(&out, ']');
    json_put_text(&out, "model_type", form->model_type);
    fputs(form->constants, json_put(&out, NULL));
    // transformers derives the rotations of DeepSeek-V3 from head_dim.
    if (family->rotary) json_put_integer(&out, "head_dim", form->latent ? m->rope_dim : m->head_dim);
    if (family->rotary && m->rope_scaling == ROPE_NONE) json_put_null(&out, "rope_scaling");
    if (family->rotary && m->rope_scaling != ROPE_NONE) {
        json_begin(&out, "rope_scaling", '{');
        json_put_text(&out, "rope_type", config_word("model.rope_scaling", m->rope_scaling));
        for (const FamilyNumber *row = hf_rope_numbers; row->key != NULL; row++) {
            double value = get_(m, row->key);
            bool real = config_find(row->key)->type == KEY_NUMBER;
            if (!(row->scalings >> m->rope_scaling & 1) || (row->absent == 0 && value == 0)) continue;
            // Writes a float with a decimal point, because transformers warns about integers for these keys.
            if (real && value == floor(value)) fprintf(json_put(&out, row->word), "%.1f", value);
            else json_put_number(&out, row->word, value);
        }
        if (has_both_lengths_(m)) json_put_integer(&out, "original_max_position_embeddings", m->rope_original);
        json_end(&out, '}');
    }
    if (!m->causal) json_put_truth(&out, "is_causal", false);
    json_put_truth(&out, "tie_word_embeddings", m->tie_embeddings == TIE_TRUE);
    for (const FamilyNumber *row = family->numbers; row->key != NULL; row++) put_number_(&out, m, row);
    for (const FamilyNumber *row = form->experts; row != NULL && row->key != NULL; row++) put_number_(&out, m, row);
    json_members(&out, "initializer_range %.9g use_cache? %d", config->train.init_std, true);
    // If the token is unknown, null is written: transformers' defaults would be wrong for most vocabularies.
    static const char *const ends[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < 2; i++)
        if (end >= 0) json_put_integer(&out, ends[i], end);
        else json_put_null(&out, ends[i]);
    json_put_text(&out, "torch_dtype", config->train.precision == PRECISION_BF16 ? "bfloat16" : "float32");
    json_end(&out, '}');
    fputc('\n', file);
}

// --- comparing

static void value_text_(char *text, size_t size, const ConfigKey *key, const void *field) {
    if (key->type == KEY_NUMBER) snprintf(text, size, "%.10g", *(const double *)field);
    else if (key->type == KEY_INT) snprintf(text, size, "%lld", (long long)*(const int64_t *)field);
    else if (key->type == KEY_BOOL) snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
    else snprintf(text, size, "%s", key->words[*(const int *)field]);
}

enum { DIFFERENCES = 700 };

// Lists the keys that differ, as "model.hidden is 256 there and 128 here". Compares model.rope_* only with `rotations`,
// and the numbers of rope scaling only if both models have the same kind. For a rotary family, compares model.seq_len
// only with both `rotations` and `exact`.
static void compare_models_(char list[DIFFERENCES], const ModelConfig *there, const ModelConfig *here, bool exact,
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
        const void *a = hf_model_field(there, keys[i]), *b = hf_model_field(here, keys[i]);
        // Numbers may differ by rounding, since some files contain constants that were rounded to fp32.
        double wanted = keys[i]->type == KEY_NUMBER ? *(const double *)b : 0;
        bool same = keys[i]->type == KEY_NUMBER ? fabs(*(const double *)a - wanted) <= 1e-6 * fabs(wanted)
                                                : memcmp(a, b, keys[i]->size) == 0;
        if (same) continue;
        char theirs[40], ours[40];
        value_text_(theirs, sizeof theirs, keys[i], a);
        value_text_(ours, sizeof ours, keys[i], b);
        text_add(list, DIFFERENCES, "%s%s is %s there and %s here", list[0] != '\0' ? ", " : "", name, theirs, ours);
    }
}

int hf_config_check(const Config *config, Error *err) {
    const ConfigKey *keys[HF_MOST_KEYS], *lost = NULL;
    char *text;
    size_t length;
    Json json;
    Error wrong = {0};
    char list[DIFFERENCES] = "";
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
    // 2. A width that config.json counts in units of another.
    const ModelConfig *m = &config->model;
    for (const FamilyNumber *row = family_form(m)->experts; row != NULL && row->key != NULL; row++)
        if (row->unit != NULL && fmod(get_(m, row->key), get_(m, row->unit)) != 0)
            return config_error(config, row->key, err,
                                "a checkpoint's config.json has only multiples of %s; use a multiple of %g, or leave "
                                "checkpoint.dir empty",
                                row->unit, get_(m, row->unit));
    // 3. The file, read back.
    FILE *file = xmemstream(&text, &length);
    hf_config_write(config, -1, file);
    xmemstream_close(file);
    int status = json_parse(&json, text, (int64_t)length, CHECKPOINT_CONFIG, &wrong);
    HfModel found = {.root = json.root, .path = CHECKPOINT_CONFIG};
    if (status == 0) status = hf_model_read(&found, config->model.family, &wrong);
    if (status == 0) compare_models_(list, &found.model, &config->model, true, true);
    if (status == 0) status = hf_model_check(&found, config->model.seq_len, &wrong);
    json_free(&json);
    free(text);
    if (status == 0 && list[0] == '\0') return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: a checkpoint's config.json cannot express this model: %s; change model.*, "
                     "or leave checkpoint.dir empty",
                     config->path, status != 0 ? wrong.text : list);
}

int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_path_within(path, dir, CHECKPOINT_CONFIG, err) != 0) return -1;
    if (access(path, F_OK) != 0) return 0;
    Json json;
    char list[DIFFERENCES] = "";
    bool may = exact && families[config->model.family].rotary, accepts = config->checkpoint.changed == CHANGED_ACCEPT;
    int status = json_read_file(&json, path, err);
    HfModel found = {.root = json.root, .path = path};
    if (status == 0) status = hf_model_read(&found, config->model.family, err);
    if (status == 0) compare_models_(list, &found.model, &config->model, exact, !(may && accepts));
    if (status == 0 && list[0] != '\0')
        status = error_set(
            err, EXIT_USAGE, "%s: model differs from %s: %s; make them equal%s", path, config->path, list,
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
    JsonOut out = {.file = file, .tall = 1};
    json_begin(&out, NULL, '{');
    json_members(&out, "tokenizer_class %s model_max_length %jd", class, config->model.seq_len);
    // The end-of-text token also precedes every document, so it is both bos and eos. It is not added to prompts.
    if (end != NULL) json_members(&out, "bos_token %s eos_token %s", end, end);
    json_members(&out, "add_bos_token? %d add_eos_token? %d clean_up_tokenization_spaces? %d", false, false, false);
    json_end(&out, '}');
    fputc('\n', file);
    xmemstream_close(file);
}

// Reads the tokenizer's file into memory and adds tokenizer_config.json. -1 with err.
static int load_file_(HfTokenizer *tokenizer, const Config *config, const SideFile *side, Error *err) {
    enum { MOST = 256 << 20 }; // ten times the largest tokenizer.json in use
    bool pieces = strcmp(side->tokenizer, "sentencepiece") == 0;
    int64_t length = 0;
    char *text = file_read_whole(side->file, MOST, &length, err);
    if (text == NULL) return -1;
    tokenizer->file[tokenizer->count++] = (HfFile){pieces ? "tokenizer.model" : "tokenizer.json", text, (size_t)length};
    tokenizer->end = side->eot;
    // The end-of-text token's text, such as "<|end_of_text|>", is in the entry of added_tokens with its id.
    const char *end = pieces ? "</s>" : NULL;
    Json json = {0};
    if (!pieces && json_parse(&json, text, length, "tokenizer.json", NULL) == 0) {
        const JsonValue *added = json_find(json.root, "added_tokens");
        for (const JsonValue *token = added == NULL ? NULL : added->first; token != NULL; token = token->next)
            if (json_integer(token, "id", -1) == side->eot) end = json_text(token, "content", NULL);
    }
    add_config_(tokenizer, config, pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast", end);
    json_free(&json);
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
    JsonOut vocabulary = {.file = file, .tall = 1, .depth = 2}; // the line goes on, with blanks as above
    for (int byte = 0, others = 0; byte < 256; byte++) {
        bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        int sign = prints ? byte : 256 + others++;
        char text[3] = {(char)sign};
        if (sign >= 128) text[0] = (char)(0xC0 | sign >> 6), text[1] = (char)(0x80 | (sign & 63));
        json_put_integer(&vocabulary, text, byte);
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
