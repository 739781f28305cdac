// A temporary folder for a test program, and token files in it.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TEST_PATH = 256, SHARD_GPT2 = 20240520, SHARD_LLAMA3 = 20240801 };

// Set-up and tear-down of a group of tests: make the folder in P_tmpdir, and remove it with all its files.
int test_folder_create(void **state);
int test_folder_remove(void **state);

// The folder, and the path of a file in it, which the next call overwrites.
const char *test_folder(void);
const char *test_path(const char *name);

// Writes a file in the folder, or `bytes` bytes at an offset of one that exists.
void test_file_write(const char *name, const void *data, size_t bytes);
void test_file_poke(const char *name, int64_t offset, const void *data, size_t bytes);

// What a shard's header says. Tokens are 16 bits wide, 32 where magic is SHARD_LLAMA3.
typedef struct ShardHeader {
    int magic, version;
    int64_t tokens;
} ShardHeader;

// Writes a shard with this header and `count` tokens: token i is token_of(i, context).
void test_shard_write(const char *name, ShardHeader header, int64_t count,
                      uint32_t (*token_of)(int64_t i, const void *context), const void *context);
