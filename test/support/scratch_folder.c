// The name of the folder is made once per process; every test program is one process.
#include "scratch_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = P_tmpdir "/trainer_test_XXXXXX";

int test_folder_create(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

int test_folder_remove(void **state) {
    (void)state;
    char command[TEST_PATH];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

const char *test_folder(void) { return folder; }

const char *test_path(const char *name) {
    static char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_(const char *name, const char *mode, int64_t offset, const void *data, size_t bytes) {
    FILE *file = fopen(test_path(name), mode);
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void test_file_write(const char *name, const void *data, size_t bytes) { put_(name, "wb", 0, data, bytes); }

void test_file_poke(const char *name, int64_t offset, const void *data, size_t bytes) {
    put_(name, "r+b", offset, data, bytes);
}

void test_shard_write(const char *name, ShardHeader header, int64_t count,
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
