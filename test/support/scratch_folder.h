// A temporary folder for a test program, and token files in it.
#pragma once

#include "unit.h"

#include <unistd.h>

enum { TEST_PATH = 256, SHARD_GPT2 = 20240520, SHARD_LLAMA3 = 20240801 };

static char test_folder[] __attribute__((unused)) = P_tmpdir "/trainer_test_XXXXXX";

// Set-up and tear-down of a group of tests: make the folder in P_tmpdir, and remove it with all its files.
static inline int test_folder_create(__attribute__((unused)) void **state) {
    return mkdtemp(test_folder) == NULL ? -1 : 0;
}

static inline int test_folder_remove(__attribute__((unused)) void **state) {
    char command[TEST_PATH];
    snprintf(command, sizeof command, "rm -rf %s", test_folder);
    return system(command);
}

// Returns the path of a file in the folder, which the next call overwrites.
static inline const char *test_path(const char *name) {
    static char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    return path;
}

static inline void test_put_(const char *name, const char *mode, int64_t offset, const void *data, size_t bytes) {
    FILE *file = fopen(test_path(name), mode);
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void test_file_write(const char *name, const void *data, size_t bytes) {
    test_put_(name, "wb", 0, data, bytes);
}

// Writes `bytes` bytes at an offset of a file that exists.
static inline void test_file_poke(const char *name, int64_t offset, const void *data, size_t bytes) {
    test_put_(name, "r+b", offset, data, bytes);
}

// The header of a shard. Tokens have 16 bits; with magic SHARD_LLAMA3, 32 bits.
typedef struct ShardHeader {
    int magic, version;
    int64_t tokens;
} ShardHeader;

// Writes a shard with this header and `count` tokens: token i is token_of(i, context).
static inline void test_shard_write(const char *name, ShardHeader header, int64_t count,
                                    uint32_t (*token_of)(int64_t i, const void *context), const void *context) {
    FILE *file = fopen(test_path(name), "wb");
    assert_non_null(file);
    uint32_t words[256] = {(uint32_t)header.magic, (uint32_t)header.version, (uint32_t)header.tokens};
    assert_int_equal(fwrite(words, sizeof words, 1, file), 1);
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = token_of(i, context);
        uint16_t narrow = (uint16_t)token;
        if (header.magic == SHARD_LLAMA3) fwrite(&token, sizeof token, 1, file);
        else fwrite(&narrow, sizeof narrow, 1, file);
    }
    assert_int_equal(fclose(file), 0);
}
