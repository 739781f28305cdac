// Shared by the fuzz targets. A target is a function of some bytes: libFuzzer generates them (make fuzz), or replay.c
// reads them from the corpus (make fuzz-replay). Where possible a target checks more than the absence of crashes: an
// input that is written and read back must be equal.
#pragma once

#include "config/config_schema.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Aborts if a promise is broken, so that libFuzzer keeps the input.
#define PROMISE(holds)                                                                                                 \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #holds);                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

// Returns the folder named by FUZZ_FOLDER, which only this process uses.
const char *fuzz_folder(void);
// Writes these bytes to the named file in that folder and returns its path, valid until the call after the next.
const char *fuzz_file(const char *name, const void *data, size_t size);

// Sets every key that has a default; writes `text` to the named file and makes it the configuration's path.
void fuzz_config(Config *config, const char *name, const void *text, size_t size);
