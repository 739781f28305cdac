// Reads Hugging Face's config.json into a ModelConfig. The family's row names the keys and their supported values.
#include "hf_model.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(field, word, absent_, scalings_)                                                                        \
    { "model." #field, word, .absent = absent_, .scalings = scalings_ }

enum { LINEAR = 1 << ROPE_LINEAR, LLAMA3 = 1 << ROPE_LLAMA3, YARN = 1 << ROPE_YARN };

// yarn's original length is written next to max_position_embeddings only where both agree with the factor
// (hf_config.c): some versions of transformers take max_position_embeddings for the original length.
const FamilyNumber hf_rope_numbers[] = {
    NUMBER(rope_factor, "factor", -1, LINEAR | LLAMA3 | YARN),
    NUMBER(rope_original, "original_max_position_embeddings", -1, LLAMA3),
    NUMBER(rope_low_freq, "low_freq_factor", -1, LLAMA3),
    NUMBER(rope_high_freq, "high_freq_factor", -1, LLAMA3),
    NUMBER(rope_beta_fast, "beta_fast", 32, YARN),
    NUMBER(rope_beta_slow, "beta_slow", 1, YARN),
    NUMBER(rope_attention, "attention_factor", 0, YARN),
    NUMBER(rope_mscale, "mscale_all_dim", 0, YARN),
    {.key = NULL},
};

void *hf_model_field(const ModelConfig *model, const ConfigKey *key) {
    return (char *)model + (key->offset - offsetof(Config, model));
}

// Stores a number in the field of a key. A count is at most 2^53, up to which a double holds every integer exactly.
static int put_(HfModel *found, const ConfigKey *key, double value, const char *word, Error *err) {
    void *field = hf_model_field(&found->model, key);
    if (!isfinite(value))
        return error_set(err, EXIT_USAGE, "%s: %s is %s; write the number", found->path, word,
                         isnan(value) ? "NaN" : "Infinity");
    if (key->type == KEY_INT && !(fabs(value) <= 0x1p53 && value == floor(value)))
        return error_set(err, EXIT_USAGE, "%s: %s is %g, not a whole number of at most 2^53; is the file damaged?",
                         found->path, word, value);
    if (key->type == KEY_NUMBER) *(double *)field = value;
    else config_set_whole(key->size, field, (int64_t)value);
    return 0;
}

static bool is_number_(const JsonValue *value) { return value != NULL && value->type == JSON_NUMBER; }

// Refuses a value of another type, which would be taken for a missing one.
static int expect_(const HfModel *found, const JsonValue *value, JsonType type, const char *word, Error *err) {
    if (value == NULL || value->type == JSON_NULL) return 0;
    if (value->type == type && !(type == JSON_NUMBER && value->number < 0)) return 0;
    return error_set(err, EXIT_USAGE, "%s: %s is not %s; correct the file, or download it again", found->path, word,
                     type == JSON_BOOL ? "true or false" : "a number of 0 or more");
}

// Files of transformers 5 have rope_theta and partial_rotary_factor in an object.
static const JsonValue *find_rope_(const JsonValue *root, const char *word) {
    return json_find(json_find(root, "rope_parameters"), word);
}

static int refuse_(const HfModel *found, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s: %s, which is unsupported; use another model, or for plans a copy without it",
                     found->path, what);
}

// Refuses a file with unsupported values; the error names all of them.
static int check_demands_(const HfModel *found, Error *err) {
    char unmet[600] = "";
    const FamilyNumber *numbers = family_form(&found->model)->experts;
    bool latent = found->model.kv_lora > 0;
    for (const FamilyDemand *demand = families[found->model.family].demands; demand->word != NULL; demand++) {
        // A number of this architecture may have any value. DeepSeek's weights are released in 8 bits, whose types are
        // refused where they are loaded.
        bool read = latent && strcmp(demand->word, "quantization_config") == 0;
        for (const FamilyNumber *row = numbers; row != NULL && row->key != NULL; row++)
            read = read || strcmp(row->word, demand->word) == 0;
        const JsonValue *value = json_find(found->root, demand->word);
        if (value == NULL) value = find_rope_(found->root, demand->word);
        bool met = read || value == NULL || value->type == JSON_NULL;
        for (int i = 0; i < 2 && demand->allowed[i] != NULL && !met; i++) {
            const char *allowed = demand->allowed[i];
            met = value->type == JSON_TEXT    ? strcmp(value->text, allowed) == 0
                  : value->type == JSON_ARRAY ? value->first == NULL && strcmp("[]", allowed) == 0
                  : value->type == JSON_BOOL  ? strcmp(value->truth ? "true" : "false", allowed) == 0
                                              : value->type == JSON_NUMBER && value->number == atof(allowed);
        }
        if (!met) text_add(unmet, sizeof unmet, "%s%s", unmet[0] != '\0' ? "; " : "", demand->refusal);
    }
    return unmet[0] != '\0' ? refuse_(found, err, unmet) : 0;
}

// Returns the sliding window of the file, or 0.
static int64_t window_of_(const JsonValue *root) {
    const JsonValue *use = json_find(root, "use_sliding_window");
    int64_t window = json_integer(root, "sliding_window", 0);
    return (use != NULL && !json_true(root, "use_sliding_window")) || window < 0 ? 0 : window;
}

// A sliding window has no effect if no sequence is longer than the window.
int hf_model_check(const HfModel *found, int64_t seq_len, Error *err) {
    if (check_demands_(found, err) != 0) return -1;
    int64_t window = window_of_(found->root);
    if (window == 0 || window >= seq_len) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: sliding_window is %lld, and sliding-window attention is unsupported; use model.seq_len "
                     "%lld or less",
                     found->path, (long long)window, (long long)window);
}

// Model types of transformers that no family computes, and the family whose layer has the most similar sizes and times.
static const struct {
    const char *types, *family, *differs;
} nearest[] = {
    {" gemma gemma2 gemma3 gemma3_text gemma3n ", "llama", "norms, scaled embeddings and GELU gates"},
    {" phi3 phi4 ", "llama", "rotary scaling"},
    {" olmo olmo2 olmo3 smollm3 exaone exaone4 granite internlm internlm2 internlm3 baichuan aquila minicpm yi xverse "
     "apertus nemotron arcee seed_oss ernie4_5 hunyuan_v1_dense cohere cohere2 stablelm glm glm4 chatglm ministral3 ",
     "llama", "norms, activation or rotations"},
    {" falcon gpt_neox gpt_neo gptj gpt_bigcode starcoder2 bloom opt mpt phi codegen xglm stablelm_epoch persimmon ",
     "gpt", "positions or its order of attention and feed-forward"},
    {" deepseek_v2 minicpm3 ", "llama", "latent attention or router"},
    {" gpt_oss ", "llama", "attention sinks and windows"},
    {" qwen2_moe qwen3_next ernie4_5_moe minimax llama4 dbrx olmoe granitemoe jetmoe grok phimoe ", "llama",
     "shared experts, norms or router"},
};

// Returns the architecture with this model_type, or NULL with err.
static const FamilyForm *find_form_(const HfModel *found, Error *err) {
    static const char *const experts[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_layer_freq"};
    const char *type = json_text(found->root, "model_type", "");
    for (const FamilyForm *form = families[found->model.family].forms; form->model_type != NULL; form++) {
        if (strcmp(form->model_type, type) != 0) continue;
        for (int i = 0; i < 4 && form->experts == NULL; i++)
            if (is_number_(json_find(found->root, experts[i])))
                return error_null(err, EXIT_USAGE,
                                  "%s: model_type \"%.40s\" has no experts, but the file has %s; use model_type "
                                  "\"mixtral\" or \"qwen3_moe\", or remove the line",
                                  found->path, type, experts[i]);
        return form;
    }
    char known[240] = "", word[64];
    for (int family = 0; family_words[family] != NULL; family++) {
        text_add(known, sizeof known, "%sfamily %s supports", family > 0 ? ", " : "", family_words[family]);
        for (const FamilyForm *form = families[family].forms; form->model_type != NULL; form++)
            text_add(known, sizeof known, " \"%s\"", form->model_type);
    }
    snprintf(word, sizeof word, " %.60s ", type);
    for (size_t i = 0; i < sizeof nearest / sizeof *nearest; i++)
        if (strstr(nearest[i].types, word) != NULL)
            return error_null(err, EXIT_USAGE,
                              "%s: model_type is \"%.40s\"; %s; nearest is family %s, without its %s: write the sizes "
                              "under model: {family: %s, ...}",
                              found->path, type, known, nearest[i].family, nearest[i].differs, nearest[i].family);
    return error_null(err, EXIT_USAGE,
                      "%s: model_type is \"%.40s\"; %s; write the sizes of the nearest under model: {family: ...}",
                      found->path, type, known);
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
    if (m->rope_scaling == ROPE_NONE && strcmp(kind, "none") != 0) return refuse_(found, err, text);
    bool latent = m->kv_lora > 0, scaled = is_number_(json_find(scaling, "mscale"));
    if ((scaled && !latent) || (truncate != NULL && !json_true(scaling, "truncate")))
        return refuse_(found, err, "rope_scaling has mscale or truncate");
    for (const FamilyNumber *row = hf_rope_numbers; row->key != NULL; row++) {
        const JsonValue *value = json_find(scaling, row->word);
        if (!(row->scalings >> m->rope_scaling & 1)) continue;
        if (expect_(found, value, JSON_NUMBER, row->word, err) != 0) return -1;
        if (!is_number_(value) && row->absent < 0)
            return error_set(err, EXIT_USAGE, "%s: rope_scaling \"%s\" has no %s; add it", found->path, kind,
                             row->word);
        double number = is_number_(value) ? value->number : row->absent;
        if (put_(found, config_find(row->key), number, row->word, err) != 0) return -1;
    }
    if (m->rope_scaling != ROPE_YARN) return 0;
    double grown = 0.1 * log(m->rope_factor);
    if (m->rope_attention == 0 && scaled && m->rope_mscale > 0)
        m->rope_attention = (grown * json_find(scaling, "mscale")->number + 1) / (grown * m->rope_mscale + 1);
    if (m->rope_attention == 0) m->rope_attention = grown + 1;
    m->rope_original = json_integer(scaling, "original_max_position_embeddings",
                                    json_integer(found->root, "max_position_embeddings", 0));
    return 0;
}

static int read_numbers_(HfModel *found, const FamilyNumber *row, Error *err) {
    for (; row != NULL && row->key != NULL; row++) {
        const ConfigKey *key = config_find(row->key);
        const JsonValue *said = json_find(found->root, row->word);
        bool truth = key->type == KEY_BOOL, null = said != NULL && said->type == JSON_NULL;
        // transformers 5 writes this word for all of its names.
        if (said == NULL && strcmp(row->key, "model.experts") == 0) said = json_find(found->root, "num_local_experts");
        if (said == NULL || said->type == JSON_NULL) said = find_rope_(found->root, row->word);
        if (expect_(found, said, truth ? JSON_BOOL : JSON_NUMBER, row->word, err) != 0) return -1;
        double times = row->times == NULL ? 1 : (double)json_integer(found->root, row->times, -1);
        bool given = said != NULL && said->type == (truth ? JSON_BOOL : JSON_NUMBER);
        double value = !given ? row->absent * times : truth ? said->truth : said->number;
        if (value < 0 && isfinite(value))
            return error_set(err, EXIT_USAGE, "%s: %s (%s) is %s", found->path, row->word, row->key,
                             null ? "null, which is unsupported; use another model, or for plans a copy with a number"
                                  : "missing; is the file complete?");
        if (row->unit != NULL) value *= (double)*(int64_t *)hf_model_field(&found->model, config_find(row->unit));
        if (put_(found, key, value, row->word, err) != 0) return -1;
    }
    return 0;
}

int hf_model_read(HfModel *found, int family_of_run, Error *err) {
    ModelConfig *m = &found->model;
    *m = (ModelConfig){.family = family_of_run, .rope_share = 1};
    const Family *family = &families[family_of_run];
    const FamilyForm *form = find_form_(found, err);
    if (form == NULL || read_numbers_(found, family->numbers, err) != 0 ||
        read_numbers_(found, form->experts, err) != 0)
        return -1;
    m->router = form->router;
    if (!form->any) m->qkv_bias = form->qkv_bias, m->qk_norm = form->qk_norm;
    const JsonValue *width = json_find(found->root, "head_dim");
    const JsonValue *tied = json_find(found->root, "tie_word_embeddings");
    if (expect_(found, width, JSON_NUMBER, "head_dim", err) != 0 ||
        expect_(found, tied, JSON_BOOL, "tie_word_embeddings", err) != 0)
        return -1;
    m->head_dim = form->head_dim;
    if (form->latent) m->head_dim = m->nope_dim + m->rope_dim;
    else if (is_number_(width) && put_(found, config_find("model.head_dim"), width->number, "head_dim", err) != 0)
        return -1;
    if (m->head_dim <= 0 && m->heads > 0) m->head_dim = m->hidden / m->heads;
    bool said = tied != NULL && tied->type == JSON_BOOL;
    m->tie_embeddings = (said ? tied->truth : family->tied) ? TIE_TRUE : TIE_FALSE;
    m->causal = json_find(found->root, "is_causal") == NULL || json_true(found->root, "is_causal");
    return family->rotary ? read_rope_(found, err) : 0;
}

int hf_model_keys(const ModelConfig *model, const ConfigKey *keys[HF_MOST_KEYS]) {
    static const char *const others[] = {"model.tie_embeddings", "model.causal",   "model.head_dim",
                                         "model.rope_scaling",   "model.qkv_bias", "model.qk_norm"};
    const Family *family = &families[model->family];
    const FamilyNumber *numbers[] = {family->numbers, family_form(model)->experts};
    int count = 0;
    for (int i = 0; i < 2; i++)
        for (const FamilyNumber *row = numbers[i]; row != NULL && row->key != NULL; row++)
            keys[count++] = config_find(row->key);
    for (int i = 0; i < (family_form(model)->any ? 4 : family->rotary ? 6 : 2); i++)
        keys[count++] = config_find(others[i]);
    for (const FamilyNumber *row = hf_rope_numbers; family->rotary && row->key != NULL; row++)
        if (row->scalings >> model->rope_scaling & 1) keys[count++] = config_find(row->key);
    if (model->rope_scaling == ROPE_YARN) keys[count++] = config_find("model.rope_original");
    if (family->gated) keys[count++] = config_find(numbers[1] != NULL ? "model.router" : "model.experts");
    return count;
}

// --- config.json as a configuration

// Returns whether the text is meant as a config.json: an object that contains one of the keys by which such a file is
// known, quoted as in JSON or Python. A configuration may begin with a brace too, but has none of these keys.
static bool is_config_json_(const char *text) {
    static const char *const words[] = {"\"model_type\"",  "\"architectures\"", "\"transformers_version\"",
                                        "\"hidden_size\"", "\"n_embd\"",        "'model_type'",
                                        "'architectures'", "'hidden_size'",     "'n_embd'"};
    bool object = text[strspn(text, " \t\r\n")] == '{' || text[strspn(text, " \t\r\n")] == '/'; // '/': a comment
    for (size_t i = 0; object && i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i]) != NULL) return true;
    return false;
}

char *hf_model_yaml(const char *text, size_t length, const char *path, int64_t *window, Error *err) {
    size_t size = 0;
    char *yaml = NULL;
    Json json;
    Error damage = {0};
    HfModel found = {.path = path};
    *window = 0;
    if (length >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0))
        return error_null(err, EXIT_USAGE, "%s: is UTF-16; save it as UTF-8", path);
    bool marked = length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0; // a byte order mark, which editors add
    text += marked ? 3 : 0;
    length -= marked ? 3 : 0;
    if (!is_config_json_(text)) return NULL;
    int status = json_parse_python(&json, text, (int64_t)length, path, &damage);
    found.root = json.root;
    // Find the family that implements the file's model_type. If there is none, LLaMA's reader refuses the file.
    int of_type = family_find("llama");
    for (int family = 0; family_words[family] != NULL; family++)
        for (const FamilyForm *form = families[family].forms; form->model_type != NULL; form++)
            if (strcmp(form->model_type, json_text(found.root, "model_type", "")) == 0) of_type = family;
    if (status != 0) {
        error_set(err, EXIT_USAGE, "%s; fix the file, or download it again", damage.text);
    } else if (json_find(found.root, "model_type") == NULL) {
        error_set(err, EXIT_USAGE, "%s: has no model_type; add it, such as \"model_type\": \"llama\"", path);
    } else if (hf_model_read(&found, of_type, err) == 0 && check_demands_(&found, err) == 0) {
        const char *type = json_text(found.root, "torch_dtype", json_text(found.root, "dtype", ""));
        FILE *file = xmemstream(&yaml, &size);
        const ConfigKey *keys[HF_MOST_KEYS];
        int count = hf_model_keys(&found.model, keys);
        fprintf(file, "model: {family: %s", family_words[found.model.family]);
        for (int i = 0; i < count; i++) {
            fprintf(file, ", %s: ", config_short_name(keys[i]));
            config_write_field(NULL, keys[i], hf_model_field(&found.model, keys[i]), file);
        }
        fputs("}\n", file);
        // Weights in 16 bits come from training in mixed precision; fp16 is planned as bf16.
        if (strcmp(type, "bfloat16") == 0 || strcmp(type, "float16") == 0) fputs("train: {precision: bf16}\n", file);
        xmemstream_close(file);
        *window = window_of_(found.root);
    }
    json_free(&json);
    return yaml;
}
