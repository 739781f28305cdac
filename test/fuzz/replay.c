// Runs a fuzz target on files and folders of files: a regression test on the corpus, with any compiler.
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static int replay_(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) return perror(path), 0;
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc((size_t)size + 1);
    PROMISE(data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    uint8_t *exact = realloc(data, size > 0 ? (size_t)size : 1); // exact size: ASan finds a read past it
    PROMISE(exact != NULL);
    LLVMFuzzerTestOneInput(exact, (size_t)size);
    for (long cut = 0; cut < size; cut += 1 + size / 64) LLVMFuzzerTestOneInput(exact, (size_t)cut); // truncated, too
    free(exact);
    return 1;
}

static int replay_all_(const char *path) {
    struct dirent **names;
    int count = scandir(path, &names, NULL, alphasort), done = 0;
    if (count < 0) return replay_(path);
    for (int i = 0; i < count; i++) {
        char inside[1024];
        snprintf(inside, sizeof inside, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') done += replay_all_(inside);
        free(names[i]);
    }
    free(names);
    return done;
}

int main(int argc, char **argv) {
    int done = 0;
    for (int i = 1; i < argc; i++) done += replay_all_(argv[i]);
    printf("%d files\n", done);
    return done > 0 ? 0 : 1;
}
