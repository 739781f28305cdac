// What the fuzz targets share. A target is a function that is handed bytes; libFuzzer makes them up (make fuzz),
// replay.c reads them from the corpus (make fuzz-replay). A target asks for more than not crashing where it can: what
// reads back must be equal.
#pragma once

#include "config/config_schema.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Ends the program where a promise is broken, so that libFuzzer keeps the input.
#define PROMISE(holds)                                                                                                 \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #holds);                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

// The folder that FUZZ_FOLDER names: for this process alone.
const char *fuzz_folder(void);
// Path of a file of that name in it, which then holds these bytes. Two paths are remembered at a time.
const char *fuzz_file(const char *name, const void *data, size_t size);

// Sets every key that has a default, and the configuration's path to a file of that name which holds `text`.
void fuzz_config(Config *config, const char *name, const void *text, size_t size);
