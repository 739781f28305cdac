// Writes a configuration to a temporary file and loads it, for unit tests.
#include "config_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

char config_file_path[256]; // path of the file under test

void config_file_write(const char *bytes, size_t length) {
    FILE *file = fopen(config_file_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

int config_file_load(Config *config, const char *text, const char *const *overrides, int count, Error *err) {
    *err = (Error){0};
    config_file_write(text, strlen(text));
    return config_load(config, config_file_path, overrides, count, err);
}

int config_file_load_one(Config *config, const char *text, const char *override, Error *err) {
    return config_file_load(config, text, &override, override != NULL, err);
}

void config_file_load_well(Config *config, const char *text, const char *override) {
    Error err;
    if (config_file_load_one(config, text, override, &err) != 0) fail_msg("%s", err.text);
}

int config_file_create(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    snprintf(config_file_path, sizeof config_file_path, "%.200s/test_config_XXXXXX",
             directory != NULL ? directory : P_tmpdir);
    int fd = mkstemp(config_file_path);
    if (fd < 0) return -1;
    return close(fd);
}

int config_file_remove(void **state) {
    (void)state;
    return unlink(config_file_path);
}
