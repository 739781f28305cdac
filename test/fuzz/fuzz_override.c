// Overrides (-o KEY=VALUE), one a line, over a configuration that is whole.
#include "fuzz.h"

#include "config.h"

enum { MOST = 8 };

static const char base[] =
    "model: {family: llama, hidden: 64, layers: 8, heads: 4, ffn: 128, vocab: 257, seq_len: 32}\n"
    "data: {train: \"x_*.bin\"}\n";
static Config config;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *path;
    static char kept[256];
    if (path == NULL) path = strcpy(kept, fuzz_file("base.yaml", base, sizeof base - 1));
    char *text = malloc(size + 1), *rest = text;
    const char *overrides[MOST];
    int count = 0;
    PROMISE(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    // A line break may be part of a value, too: it has to be refused.
    while (count < MOST && rest != NULL) overrides[count++] = strsep(&rest, "\001");
    Error err = {0};
    int status = config_load(&config, path, overrides, count, &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_USAGE && err.text[0] != '\0');
    free(text);
    return 0;
}
