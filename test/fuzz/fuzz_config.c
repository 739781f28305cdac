// A configuration file with any content: what config_load does, with the defaults set once.
#include "fuzz.h"

static Config base, config;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (base.path[0] == '\0') fuzz_config(&base, "config.yaml", "", 0);
    fuzz_file("config.yaml", data, size);
    Error err = {0};
    config = base;
    int status = config_read_file(&config, &err);
    if (status == 0) status = config_check(&config, &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_USAGE && strstr(err.text, "config.yaml") != NULL);
    if (status != 0) return 0;
    PROMISE(config_microbatches(&config) >= 1 && config_world(&config) >= 1 && config_padded_vocab(&config) >= 1);
    free(unit_written(config_write_json(&config, file)));
    return 0;
}
