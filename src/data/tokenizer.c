// Chooses the tokenizer of a run and converts texts. Bytes and ids are converted here; for other tokenizers, a helper
// process calls the tokenizer's own library.
#include "tokenizer.h"
#include "base/alloc.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES_VOCABULARY = 257, BYTES_END = 256 };

static const char KEY[] = "sample.tokenizer";

// ---------------------------------------------------------------- the library: scripts/tokens.py in its own process

// Input, output and error messages are anonymous files in memory, so neither side ever waits for the other to read.
enum { LIBRARY_PATH = 1200, LIBRARY_FILES = 3 };

extern char **environ;

// Returns the system's Python if it exists, because install_deps.sh installs the libraries for it; else any python3.
static const char *library_python_(void) {
    return access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
}

// Runs `tokens.py ACTION --tokenizer FILE` with `input` as standard input and returns its output as a string.
// length: of the input; on success, of the output, which may contain NUL.
//   describe  prints the vocabulary size and the end-of-text token (-1: unknown)
//   encode    converts text to ids separated by blanks
//   decode    converts ids to text
// NULL with err: the library failed, or Python, the script or the library is missing. The caller frees the result.
static char *library_run_(const char *action, const char *file, const char *input, size_t *length, Error *err) {
    static const char *const names[LIBRARY_FILES] = {"tokens-in", "tokens-out", "tokens-errors"};
    // Paths from the program's folder. The program is next to scripts/, installed, in build/*, or in build/*/test.
    static const char *const places[] = {"scripts/tokens.py", "../share/bpipe-trainer/scripts/tokens.py",
                                         "../../scripts/tokens.py", "../../../scripts/tokens.py", NULL};
    char script[LIBRARY_PATH];
    int files[LIBRARY_FILES];
    if (!file_near_program(script, sizeof script, places))
        return error_null(err, EXIT_USAGE,
                          "sample.tokenizer: scripts/tokens.py, needed for %s, not found next to the program; use ids",
                          file);
    bool opened = true;
    for (int i = 0; i < LIBRARY_FILES; i++) opened = (files[i] = memfd_create(names[i], MFD_CLOEXEC)) >= 0 && opened;
    opened = opened && write(files[0], input, *length) == (ssize_t)*length && lseek(files[0], 0, SEEK_SET) == 0;
    const char *command[] = {library_python_(), script, action, "--eot", "none", "--tokenizer", file, NULL};
    // exit status of the helper; 128: killed; -1: it did not start
    int status = -1;
    if (opened) {
        posix_spawn_file_actions_t actions;
        pid_t child;
        posix_spawn_file_actions_init(&actions);
        for (int i = 0; i < LIBRARY_FILES; i++) posix_spawn_file_actions_adddup2(&actions, files[i], i);
        bool started = posix_spawnp(&child, command[0], &actions, NULL, (char *const *)command, environ) == 0;
        posix_spawn_file_actions_destroy(&actions);
        int ended = 0, waited = -1;
        while (started && (waited = waitpid(child, &ended, 0)) < 0 && errno == EINTR) continue;
        if (started && waited >= 0) status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128;
    }
    if (!opened)
        error_set(err, EXIT_FAILED, "sample.tokenizer: cannot pass a request to scripts/tokens.py: %s",
                  strerror(errno));
    else if (status < 0)
        error_set(err, EXIT_USAGE,
                  "sample.tokenizer: %s needs Python, and %s cannot be started; install python3, or use ids", file,
                  library_python_());
    int said = files[status == 0 ? 1 : 2];
    struct stat size;
    char *text = NULL;
    if (opened && status >= 0 && fstat(said, &size) == 0) {
        text = xcalloc((size_t)size.st_size + 1, 1);
        if (file_read(said, script, 0, text, size.st_size, err) != 0) free(text), text = NULL;
    }
    for (int i = 0; i < LIBRARY_FILES; i++)
        if (files[i] >= 0) close(files[i]);
    if (text != NULL && status == 0) *length = (size_t)size.st_size;
    if (text == NULL || status == 0) return text;
    // The last line of stderr is the error.
    size_t end = strlen(text);
    while (end > 0 && text[end - 1] == '\n') text[--end] = '\0';
    char *line = strrchr(text, '\n'), *from = line == NULL ? text : line + 1;
    if (strncmp(from, "tokens.py: ", 11) == 0) from += 11;
    error_set(err, EXIT_USAGE, "sample.tokenizer: %.400s",
              end > 0 ? from : "scripts/tokens.py failed without a message");
    free(text);
    return NULL;
}

// ---------------------------------------------------------------- choice of the tokenizer

static int take_library_(Tokenizer *tokenizer, const char *path, Error *err) {
    long long vocab = 0, end = -1;
    size_t length = 0;
    tokenizer->kind = TOKENIZER_LIBRARY;
    snprintf(tokenizer->file, sizeof tokenizer->file, "%s", path);
    char *told = library_run_("describe", path, "", &length, err);
    if (told == NULL) return -1;
    int numbers = sscanf(told, "%lld %lld", &vocab, &end);
    free(told);
    if (numbers != 2)
        return error_set(err, EXIT_USAGE, "%s: scripts/tokens.py gave an unexpected answer for %s", KEY, path);
    if (tokenizer->end < 0 && end < tokenizer->vocab) tokenizer->end = end;
    if (vocab <= tokenizer->vocab) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: %s has %lld tokens, more than model.vocab %lld; name the model's own tokenizer", KEY, path,
                     vocab, (long long)tokenizer->vocab);
}

int tokenizer_side(const Config *config, SideFile *side, Error *err) {
    glob_t shards;
    char path[SIDE_FILE_PATH];
    if (config->data.train_sources == 0 || dataset_list(config->data.train[0].path, &shards) != 0) return 0;
    bool named = side_file_path(shards.gl_pathv[0], path);
    globfree(&shards);
    return named ? side_file_read(side, path, err) : 0;
}

// Chooses the tokenizer in tokenizer.h's order: sample.tokenizer, the side file, bytes, ids.
int tokenizer_open(Tokenizer *tokenizer, const Config *config, Error *err) {
    *tokenizer = (Tokenizer){.kind = TOKENIZER_IDS, .vocab = config->model.vocab, .end = -1};
    const char *named = config->sample.tokenizer;
    SideFile side = {0};
    if (named[0] == '\0') {
        int found = tokenizer_side(config, &side, err);
        if (found < 0) return -1;
        if (found == 0 && tokenizer->vocab == BYTES_VOCABULARY) named = "bytes";
        if (found > 0 && side.eot >= 0 && side.eot < tokenizer->vocab) tokenizer->end = side.eot;
        if (found > 0) named = side.file[0] != '\0' ? side.file : strcmp(side.tokenizer, "bytes") == 0 ? "bytes" : "";
    }
    if (named[0] == '\0' || strcmp(named, "ids") == 0) return 0;
    if (strcmp(named, "bytes") != 0) return take_library_(tokenizer, named, err);
    tokenizer->kind = TOKENIZER_BYTES;
    if (tokenizer->end < 0 && tokenizer->vocab >= BYTES_VOCABULARY) tokenizer->end = BYTES_END;
    return 0;
}

// ---------------------------------------------------------------- text to tokens

int tokenizer_encode(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err) {
    size_t length = strlen(text);
    char *ids = NULL;
    int status = 0;
    *tokens = (Tokens){0};
    if (tokenizer->kind == TOKENIZER_LIBRARY) {
        uint32_t code;
        for (size_t at = 0, n; at < length; at += n)
            if ((n = (size_t)text_decode(text + at, length - at, &code)) == 0)
                return error_set(err, EXIT_USAGE, "%s: byte %zu is not UTF-8; use UTF-8 text", name, at);
        ids = library_run_("encode", tokenizer->file, text, &length, err);
        if (ids == NULL) return -1;
    }
    const char *at = ids != NULL ? ids : text;
    // A byte is a token. An id takes at least a digit and a blank.
    tokens->ids = xmalloc((strlen(at) + 1) * sizeof *tokens->ids);
    for (; tokenizer->kind == TOKENIZER_BYTES && status == 0 && *at != '\0'; at++) {
        int byte = (unsigned char)*at;
        tokens->ids[tokens->count++] = byte;
        if (byte >= tokenizer->vocab)
            status = error_set(err, EXIT_USAGE,
                               "%s: byte %d (token %d) is outside the vocabulary of %lld (model.vocab); use other text",
                               name, byte, byte, (long long)tokenizer->vocab);
    }
    at += strspn(at, " ,\t\n");
    while (tokenizer->kind != TOKENIZER_BYTES && status == 0 && *at != '\0') {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || strchr(" ,\t\n", *end) == NULL) // strchr also matches the text's NUL
            status = error_set(err, EXIT_USAGE,
                               "%s: without a tokenizer a prompt must be token ids, such as \"11 42\", not %.20s; set "
                               "sample.tokenizer, or encode the text with scripts/tokens.py",
                               name, at);
        else if (errno != 0 || id < 0 || id >= tokenizer->vocab)
            status = error_set(err, EXIT_USAGE, "%s: token %.*s is outside the vocabulary of %lld (model.vocab)", name,
                               (int)(end - at < 24 ? end - at : 24), at, (long long)tokenizer->vocab);
        else tokens->ids[tokens->count++] = (int32_t)id;
        at = end + strspn(end, " ,\t\n");
    }
    free(ids);
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

char *tokenizer_decode(const Tokenizer *tokenizer, const Tokens *tokens) {
    char *raw = NULL, *safe = NULL;
    size_t raw_length, safe_length;
    FILE *out = xmemstream(&raw, &raw_length);
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokenizer->kind != TOKENIZER_BYTES) fprintf(out, "%s%d", i > 0 ? " " : "", tokens->ids[i]);
        else if (tokens->ids[i] < BYTES_END) fputc(tokens->ids[i], out);
    xmemstream_close(out);
    if (tokenizer->kind == TOKENIZER_LIBRARY) {
        // If the library fails now, return the token numbers, so that training continues.
        Error ignored = {0};
        char *text = library_run_("decode", tokenizer->file, raw, &raw_length, &ignored);
        if (text != NULL) free(raw), raw = text;
    }
    out = xmemstream(&safe, &safe_length);
    for (const char *at = raw, *end = raw + raw_length; at < end;) {
        uint32_t code;
        int n = text_decode(at, (size_t)(end - at), &code);
        bool obeyed = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0); // C0, DEL, C1
        bool shown = n > 0 && !obeyed;
        if (n == 0) n = 1;
        for (int i = 0; i < n; i++, at++)
            if (shown) fputc(*at, out);
            else fprintf(out, "\\x%02X", (unsigned char)*at);
    }
    free(raw);
    xmemstream_close(out);
    return safe;
}
