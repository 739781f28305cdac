// Makes tokenizer_config.json, and tokenizer.json or tokenizer.model, in memory.
#include "hf_tokenizer.h"

#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_END_TOKEN = 256 };

#define BYTES_END_TEXT "<|endoftext|>"

// --- bytes

// GPT-2's alphabet: a printable byte is its own character, the others are the characters from U+0100 on, in order.
static int alphabet_(int byte) {
    int others = 0;
    bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (prints) return byte;
    for (int i = 0; i < byte; i++) others += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    return 256 + others;
}

// Writes byte-level BPE without merges, which is one token a byte.
static void write_bytes_tokenizer_(FILE *file) {
    fputs(
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": 256, \"content\": "
        "\"" BYTES_END_TEXT "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
        "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false, \"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, \"model\": "
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], \"vocab\": {",
        file);
    for (int byte = 0; byte < 256; byte++) {
        int sign = alphabet_(byte);
        char text[3] = {(char)sign};
        if (sign >= 128) text[0] = (char)(0xC0 | sign >> 6), text[1] = (char)(0x80 | (sign & 63));
        if (byte > 0) fputs(", ", file);
        json_write_text(file, text);
        fprintf(file, ": %d", byte);
    }
    fputs("}}}\n", file);
}

// --- the two files

static FILE *begin_(HfTokenizer *tokenizer, const char *name) {
    int i = tokenizer->count++;
    tokenizer->file[i].name = name;
    return xmemstream(&tokenizer->file[i].text, &tokenizer->file[i].length);
}

// Adds tokenizer_config.json. end: the text of the token that ends a text, or NULL.
static void add_config_(HfTokenizer *tokenizer, const Config *config, const char *class, const char *end) {
    FILE *file = begin_(tokenizer, "tokenizer_config.json");
    fprintf(file, "{\n  \"tokenizer_class\": \"%s\",\n  \"model_max_length\": %lld,\n", class,
            (long long)config->model.seq_len);
    // A document is preceded by the token that ends one, so it is both; it is not put before prompts.
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

// Adds a copy of a file.
static int add_copy_(HfTokenizer *tokenizer, const char *name, const char *path, Error *err) {
    enum { MOST = 256 << 20 }; // ten times the largest tokenizer.json in use
    int64_t length = 0;
    char *text = file_read_whole(path, MOST, &length, err);
    if (text == NULL) return -1;
    int i = tokenizer->count++;
    tokenizer->file[i].name = name, tokenizer->file[i].text = text, tokenizer->file[i].length = (size_t)length;
    return 0;
}

// Writes the text of a token that was added to a tokenizer.json, such as "<|end_of_text|>", to `text`; may be NULL has
// this id.
static const char *added_token_(const char *json_text_, size_t length, int64_t id, char text[80]) {
    Json json = {0};
    Error ignored = {0};
    const char *found = NULL;
    if (json_parse(&json, json_text_, (int64_t)length, "tokenizer.json", &ignored) == 0) {
        const JsonValue *added = json_find(json.root, "added_tokens");
        for (const JsonValue *token = added == NULL ? NULL : added->first; token != NULL; token = token->next)
            if (json_integer(token, "id", -1) == id) found = json_text(token, "content", NULL);
        if (found != NULL) snprintf(text, 80, "%s", found), found = text;
    }
    json_free(&json);
    return found;
}

static void load_bytes_(HfTokenizer *tokenizer, const Config *config) {
    if (config->model.vocab <= BYTES_END_TOKEN) return;
    FILE *file = begin_(tokenizer, "tokenizer.json");
    write_bytes_tokenizer_(file);
    xmemstream_close(file);
    add_config_(tokenizer, config, "PreTrainedTokenizerFast", BYTES_END_TEXT);
    tokenizer->end = BYTES_END_TOKEN;
}

static int load_file_(HfTokenizer *tokenizer, const Config *config, const SideFile *side, Error *err) {
    bool pieces = strcmp(side->tokenizer, "sentencepiece") == 0;
    char text[80];
    if (add_copy_(tokenizer, pieces ? "tokenizer.model" : "tokenizer.json", side->file, err) != 0) return -1;
    tokenizer->end = side->eot;
    add_config_(tokenizer, config, pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast",
                pieces ? "</s>" : added_token_(tokenizer->file[0].text, tokenizer->file[0].length, side->eot, text));
    return 0;
}

int hf_tokenizer_load(HfTokenizer *tokenizer, const Config *config, Error *err) {
    SideFile side;
    memset(tokenizer, 0, sizeof *tokenizer);
    tokenizer->end = -1;
    int found = tokenizer_side(config, &side, err);
    if (found < 0) return -1;
    if (found > 0 && side.file[0] != '\0') return load_file_(tokenizer, config, &side, err);
    if (found > 0 ? strcmp(side.tokenizer, "bytes") == 0 : config->model.vocab == BYTES_END_TOKEN + 1)
        load_bytes_(tokenizer, config);
    return 0;
}

void hf_tokenizer_free(HfTokenizer *tokenizer) {
    for (int i = 0; i < tokenizer->count; i++) free(tokenizer->file[i].text);
    memset(tokenizer, 0, sizeof *tokenizer);
    tokenizer->end = -1;
}
