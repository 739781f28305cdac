// Shared by the tests of the configuration: loads a configuration from text, through a temporary file.
#pragma once

#include "config/config_schema.h"
#include "unit.h"

#include <unistd.h>

// The shortest complete file: model in line 1, data in line 2.
#define MODEL "model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define GPT   "model: {family: gpt, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define DATA  "data: {train: x.bin}\n"
#define BASE  MODEL DATA

static char config_file_path[256]; // path of the file under test

// Set-up and tear-down of a group of tests: a temporary file at config_file_path.
static inline int config_file_create(__attribute__((unused)) void **state) {
    const char *directory = getenv("TMPDIR");
    snprintf(config_file_path, sizeof config_file_path, "%.200s/test_config_XXXXXX",
             directory != NULL ? directory : P_tmpdir);
    int fd = mkstemp(config_file_path);
    return fd < 0 ? -1 : close(fd);
}

static inline int config_file_remove(__attribute__((unused)) void **state) { return unlink(config_file_path); }

static inline void config_file_write(const char *bytes, size_t length) {
    FILE *file = fopen(config_file_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

// Write the text and load it with `count` overrides, or one (may be NULL). Clear err; return config_load's result.
static inline int config_file_load(Config *config, const char *text, const char *const *overrides, int count,
                                   Error *err) {
    *err = (Error){0};
    config_file_write(text, strlen(text));
    return config_load(config, config_file_path, overrides, count, err);
}

static inline int config_file_load_one(Config *config, const char *text, const char *override, Error *err) {
    return config_file_load(config, text, &override, override != NULL, err);
}

// Does the same for a valid text with one override or NULL; otherwise the test fails with the message.
static inline void config_file_load_well(Config *config, const char *text, const char *override) {
    assert_succeeds(config_file_load_one(config, text, override, &unit_error));
}
