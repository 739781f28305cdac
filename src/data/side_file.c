// Finds and reads the side file of a shard.
#include "side_file.h"

#include "base/json.h"

#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// "data/own_train_000.bin" and "data/own_val_000.bin" have the side file "data/own.json".
bool side_file_path(const char *shard, char path[SIDE_FILE_PATH]) {
    static const char *const splits[] = {"_train_", "_val_"};
    const char *slash = strrchr(shard, '/'), *name = slash != NULL ? slash + 1 : shard, *end = NULL;
    for (int i = 0; i < 2; i++)
        for (const char *at = strstr(name, splits[i]); at != NULL; at = strstr(at + 1, splits[i])) {
            const char *number = at + strlen(splits[i]);
            size_t digits = strspn(number, "0123456789");
            if (digits > 0 && strcmp(number + digits, ".bin") == 0) end = at;
        }
    if (end == NULL || end == name || end - shard > SIDE_FILE_PATH - 6) return false;
    snprintf(path, SIDE_FILE_PATH, "%.*s.json", (int)(end - shard), shard);
    return true;
}

int side_file_read(SideFile *side, const char *path, Error *err) {
    memset(side, 0, sizeof *side);
    if (access(path, F_OK) != 0) return 0;
    snprintf(side->path, sizeof side->path, "%s", path);
    Json json;
    int status = json_read_file(&json, side->path, err);
    if (status == 0) {
        side->vocab = json_integer(json.root, "vocab", -1);
        snprintf(side->tokenizer, sizeof side->tokenizer, "%s", json_text(json.root, "tokenizer", ""));
        snprintf(side->sha256, sizeof side->sha256, "%s", json_text(json.root, "tokenizer_sha256", ""));
        side->eot = json_integer(json.root, "eot", -1);
        // The tokenizer's file must be a regular file in this folder: its bytes are copied into every checkpoint, and a
        // data set may come from an untrusted source.
        const char *name = json_text(json.root, "tokenizer_file", "");
        char folder[SIDE_FILE_PATH];
        struct stat there;
        Error wrong = {0};
        strcpy(folder, side->path);
        if (name[0] != '\0' && file_path_within(side->file, dirname(folder), name, &wrong) != 0)
            status = error_set(err, EXIT_FAILED, "tokenizer_file of %s: %s", side->path, wrong.text);
        else if (name[0] != '\0' && stat(side->file, &there) == 0 && !S_ISREG(there.st_mode))
            status = error_set(err, EXIT_FAILED, "%s: tokenizer_file: %s is not a regular file; use a regular file",
                               side->path, side->file);
        if (status == 0 && (side->vocab < 1 || side->tokenizer[0] == '\0'))
            status = error_set(err, EXIT_FAILED, "%s: tokenizer or vocab is missing", side->path);
    }
    json_free(&json);
    return status == 0 ? 1 : -1;
}

bool side_file_same_tokenizer(const SideFile *a, const SideFile *b) {
    return strcmp(a->tokenizer, b->tokenizer) == 0 && strcmp(a->sha256, b->sha256) == 0;
}
