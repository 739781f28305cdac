// A configuration file, whatever stands in it.
#include "fuzz.h"

#include "config.h"

static Config config;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    int status = config_load(&config, fuzz_file("config.yaml", data, size), NULL, 0, &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_USAGE && strstr(err.text, "config.yaml") != NULL);
    if (status != 0) return 0;
    PROMISE(config_microbatches(&config) >= 1 && config_world(&config) >= 1 && config_padded_vocab(&config) >= 1);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    config_write_json(&config, file);
    fclose(file);
    free(text);
    return 0;
}
