// Overrides (-o KEY=VALUE), separated by 0x01 bytes, of a complete configuration: the same as config_load, but the file
// is read once.
#include "fuzz.h"

enum { MOST = 8 };

static Config base, config;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    if (base.path[0] == '\0') {
        fuzz_config(&base, "base.yaml", FUZZ_MODEL, sizeof FUZZ_MODEL - 1);
        PROMISE(config_read_file(&base, &err) == 0);
    }
    char *overrides = malloc(size + 1), *rest = overrides;
    PROMISE(overrides != NULL);
    memcpy(overrides, data, size);
    overrides[size] = '\0';
    int status = 0;
    config = base;
    for (int i = 0; i < MOST && rest != NULL && status == 0; i++)
        status = config_read_override(&config, strsep(&rest, "\001"), &err);
    if (status == 0) status = config_check(&config, &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_USAGE && err.text[0] != '\0');
    free(overrides);
    return 0;
}
