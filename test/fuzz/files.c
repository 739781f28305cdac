// The files that fuzz targets read, in a folder that run.py makes.
#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

// run.py makes and removes the folder: libFuzzer ends a target without running its atexit functions.
const char *fuzz_folder(void) {
    const char *folder = getenv("FUZZ_FOLDER");
    return folder != NULL ? folder : ".";
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char paths[2][256];
    static int turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    PROMISE(file >= 0 && write(file, data, size) == (ssize_t)size);
    close(file);
    return path;
}

void fuzz_config(Config *config, const char *name, const void *text, size_t size) {
    Error err = {0};
    for (int i = 0; i < config_key_count; i++)
        PROMISE(config_keys[i].def == NULL || config_set_default(config, &config_keys[i], &err) == 0);
    strcpy(config->path, fuzz_file(name, text, size));
}
