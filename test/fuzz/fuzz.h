// Shared by the fuzz targets. A target is a function of some bytes: libFuzzer generates them (make fuzz), or replay.c
// reads them from the corpus (make fuzz-replay). Where possible a target checks more than the absence of crashes: an
// input that is written and read back must be equal.
#pragma once

#include "config/config_schema.h"
#include "test/support/written.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Aborts if a promise is broken, so that libFuzzer keeps the input.
#define PROMISE(holds)                                                                                                 \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #holds);                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

// A complete configuration.
static const char FUZZ_MODEL[] __attribute__((unused)) =
    "model: {family: llama, hidden: 64, layers: 8, heads: 4, ffn: 128, vocab: 257, seq_len: 32}\n"
    "data: {train: \"x_*.bin\"}\n";

// Returns the folder of the files that targets read. run.py makes and removes it: libFuzzer ends a target without
// running its atexit functions.
static inline const char *fuzz_folder(void) {
    const char *folder = getenv("FUZZ_FOLDER");
    return folder != NULL ? folder : ".";
}

// Writes these bytes to the named file in that folder and returns its path, valid until the call after the next.
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char paths[2][256];
    static int turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    PROMISE(file >= 0 && write(file, data, size) == (ssize_t)size);
    close(file);
    return path;
}

// Sets every key that has a default; writes `text` to the named file and makes it the configuration's path.
static inline void fuzz_config(Config *config, const char *name, const void *text, size_t size) {
    Error err = {0};
    for (int i = 0; i < config_key_count; i++)
        PROMISE(config_keys[i].def == NULL || config_set_default(config, &config_keys[i], &err) == 0);
    strcpy(config->path, fuzz_file(name, text, size));
}
