// Chooses the tokenizer of a run and converts texts: bytes and ids here, everything else by the tokenizer's own library
// in a helper process (tokenizer_library.c).
#include "tokenizer.h"
#include "base/alloc.h"

#include "side_file.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

typedef enum TokenizerKind { KIND_BYTES, KIND_IDS, KIND_LIBRARY } TokenizerKind;

enum { BYTES_VOCABULARY = 257, BYTES_END = 256 };

struct Tokenizer {
    TokenizerKind kind;
    int64_t vocab; // the model's
    int64_t end;
    char file[SIDE_FILE_PATH]; // KIND_LIBRARY: the tokenizer's
};

static const char KEY[] = "sample.tokenizer";

// ---------------------------------------------------------------- which one

static int take_library_(Tokenizer *tokenizer, const char *path, Error *err) {
    long long vocab = 0, end = -1;
    tokenizer->kind = KIND_LIBRARY;
    snprintf(tokenizer->file, sizeof tokenizer->file, "%s", path);
    char *told = tokenizer_library_run("describe", path, "", 0, err);
    if (told == NULL) return -1;
    int numbers = sscanf(told, "%lld %lld", &vocab, &end);
    free(told);
    if (numbers != 2) return error_set(err, EXIT_USAGE, "%s: scripts/tokens.py does not describe %s", KEY, path);
    if (tokenizer->end < 0 && end < tokenizer->vocab) tokenizer->end = end;
    if (vocab <= tokenizer->vocab) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: %s has %lld tokens, more than model.vocab %lld; name the model's own tokenizer", KEY, path,
                     vocab, (long long)tokenizer->vocab);
}

static void tokenizer_take_bytes_(Tokenizer *tokenizer) {
    tokenizer->kind = KIND_BYTES;
    if (tokenizer->end < 0 && tokenizer->vocab >= BYTES_VOCABULARY) tokenizer->end = BYTES_END;
}

int tokenizer_side(const Config *config, SideFile *side, Error *err) {
    glob_t shards;
    char path[SIDE_FILE_PATH];
    if (config->data.train_sources == 0 || glob(config->data.train[0].path, 0, NULL, &shards) != 0) return 0;
    bool named = side_file_path(shards.gl_pathv[0], path);
    globfree(&shards);
    return named ? side_file_read(side, path, err) : 0;
}

// Chooses as tokenizer.h says: sample.tokenizer, else the side file's, else bytes, else ids, which need nothing.
static int tokenizer_take_(Tokenizer *tokenizer, const Config *config, Error *err) {
    const char *named = config->sample.tokenizer;
    if (strcmp(named, "ids") == 0) return 0;
    if (strcmp(named, "bytes") == 0) return tokenizer_take_bytes_(tokenizer), 0;
    if (named[0] != '\0') return take_library_(tokenizer, named, err);
    SideFile side;
    int found = tokenizer_side(config, &side, err);
    if (found < 0) return -1;
    if (found == 0 && tokenizer->vocab == BYTES_VOCABULARY) tokenizer_take_bytes_(tokenizer);
    if (found == 0) return 0;
    if (side.eot >= 0 && side.eot < tokenizer->vocab) tokenizer->end = side.eot;
    if (strcmp(side.tokenizer, "bytes") == 0) tokenizer_take_bytes_(tokenizer);
    return side.file[0] != '\0' ? take_library_(tokenizer, side.file, err) : 0;
}

Tokenizer *tokenizer_open(const Config *config, Error *err) {
    Tokenizer *tokenizer = xcalloc(1, sizeof *tokenizer);
    tokenizer->kind = KIND_IDS;
    tokenizer->vocab = config->model.vocab;
    tokenizer->end = -1;
    if (tokenizer_take_(tokenizer, config, err) == 0) return tokenizer;
    tokenizer_close(tokenizer);
    return NULL;
}

void tokenizer_close(Tokenizer *tokenizer) {
    if (tokenizer == NULL) return;
    free(tokenizer);
}

int64_t tokenizer_end(const Tokenizer *tokenizer) { return tokenizer->end; }

// ---------------------------------------------------------------- text to tokens

static int encode_ids_(const char *name, const char *text, int64_t vocab, Tokens *tokens, Error *err) {
    for (const char *at = text + strspn(text, " ,\t\n"); *at != '\0'; at += strspn(at, " ,\t\n")) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || strchr(" ,\t\n", *end) == NULL) // the end of the text matches too
            return error_set(err, EXIT_USAGE,
                             "%s: without a tokenizer a prompt is token numbers, such as \"11 42\", and %.20s is none; "
                             "set sample.tokenizer, or make them with scripts/tokens.py",
                             name, at);
        if (errno != 0 || id < 0 || id >= vocab)
            return error_set(err, EXIT_USAGE, "%s: token %.*s is outside the vocabulary of %lld (model.vocab)", name,
                             (int)(end - at < 24 ? end - at : 24), at, (long long)vocab);
        tokens->ids[tokens->count++] = (int32_t)id;
        at = end;
    }
    return 0;
}

static int encode_bytes_(const char *name, const char *text, int64_t vocab, Tokens *tokens, Error *err) {
    for (; *text != '\0'; text++) {
        int byte = (unsigned char)*text;
        if (byte >= vocab)
            return error_set(err, EXIT_USAGE,
                             "%s: byte %d (token %d) is outside the vocabulary of %lld (model.vocab); use other text",
                             name, byte, byte, (long long)vocab);
        tokens->ids[tokens->count++] = byte;
    }
    return 0;
}

static int check_utf8_(const char *name, const char *text, int64_t length, Error *err) {
    for (const char *at = text; *at != '\0';) {
        uint32_t code;
        int n = text_decode(at, (size_t)(text + length - at), &code);
        if (n == 0) return error_set(err, EXIT_USAGE, "%s: byte %lld is not UTF-8", name, (long long)(at - text));
        at += n;
    }
    return 0;
}

static int encode_library_(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err) {
    size_t length = strlen(text);
    if (check_utf8_(name, text, (int64_t)length, err) != 0) return -1;
    char *ids = tokenizer_library_run("encode", tokenizer->file, text, length, err);
    if (ids == NULL) return -1;
    free(tokens->ids);
    tokens->ids = xcalloc(strlen(ids) / 2 + 2, sizeof *tokens->ids); // an id takes at least a digit and a blank
    int status = encode_ids_(name, ids, tokenizer->vocab, tokens, err);
    free(ids);
    return status;
}

int tokenizer_encode(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err) {
    tokens->count = 0;
    tokens->ids = xmalloc((strlen(text) + 1) * sizeof *tokens->ids);
    int status = tokenizer->kind == KIND_BYTES ? encode_bytes_(name, text, tokenizer->vocab, tokens, err)
                 : tokenizer->kind == KIND_IDS ? encode_ids_(name, text, tokenizer->vocab, tokens, err)
                                               : encode_library_(tokenizer, name, text, tokens, err);
    if (status == 0 && tokens->count == 0 && tokenizer->end >= 0)
        tokens->ids[tokens->count++] = (int32_t)tokenizer->end;
    if (status == 0 && tokens->count == 0)
        status =
            error_set(err, EXIT_USAGE, "%s: is empty, and the beginning-of-text token is unknown; give a prompt", name);
    if (status == 0) return 0;
    free(tokens->ids);
    tokens->ids = NULL;
    return -1;
}

// ---------------------------------------------------------------- tokens to text

static void write_safely_(const char *text, size_t length, FILE *out) {
    for (const char *at = text, *end = text + length; at < end;) {
        uint32_t code;
        int n = text_decode(at, (size_t)(end - at), &code);
        bool obeyed = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0); // C0, DEL, C1
        bool shown = n > 0 && !obeyed;
        if (n == 0) n = 1;
        for (int i = 0; i < n; i++, at++)
            if (shown) fputc(*at, out);
            else fprintf(out, "\\x%02X", (unsigned char)*at);
    }
}

char *tokenizer_decode(const Tokenizer *tokenizer, const Tokens *tokens) {
    char *raw = NULL, *safe = NULL;
    size_t raw_length, safe_length;
    FILE *out = xmemstream(&raw, &raw_length);
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokenizer->kind != KIND_BYTES) fprintf(out, "%s%d", i > 0 ? " " : "", tokens->ids[i]);
        else if (tokens->ids[i] < BYTES_END) fputc(tokens->ids[i], out);
    xmemstream_close(out);
    if (tokenizer->kind == KIND_LIBRARY) {
        // If the library has gone missing since the start, show the numbers and go on training.
        Error ignored = {0};
        char *text = tokenizer_library_run("decode", tokenizer->file, raw, raw_length, &ignored);
        if (text != NULL) free(raw), raw = text, raw_length = strlen(text);
    }
    out = xmemstream(&safe, &safe_length);
    write_safely_(raw, raw_length, out);
    free(raw);
    xmemstream_close(out);
    return safe;
}
