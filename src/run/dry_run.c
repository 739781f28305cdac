#include "trainer.h"

#include "base/alloc.h"
#include "base/files.h"
#include "config/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char DRY_[] = "VIRTUAL_DRY";

// A checksum of the sources, from the Makefile. The program for virtual GPUs has the same checksum if it was built from
// the same sources.
#ifndef SOURCES
#define SOURCES "unknown"
#endif
static const char BUILT_FROM_[] = "built from the sources " SOURCES;

// Runs make in the checkout. Returns whether it succeeded.
static bool build_(const char *checkout) {
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO); // keeps stdout for results
        execlp("make", "make", "-s", "-C", checkout, "virtual", "NVCC=", (char *)NULL);
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return child > 0 && status == 0;
}

// Sets a variable of the environment that the user has not set.
static void set_number_(const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 0);
}

int dry_run_start(const Config *config, const Log *log, int argc, char **argv, Error *err) {
    char own[4096], path[4200], make[4200];
    if (getenv(DRY_) != NULL) return 0;
    // The program is in the checkout's root, or in build/release.
    if (!file_of_program(own, sizeof own)) own[0] = '\0';
    do {
        *(strrchr(own, '/') != NULL ? strrchr(own, '/') : own) = '\0';
        snprintf(make, sizeof make, "%s/Makefile", own);
    } while (own[0] != '\0' && access(make, R_OK) != 0);
    snprintf(path, sizeof path, "%s/build/virtual/%s", own, log->program);
    if (access(path, X_OK) != 0 && access(make, R_OK) != 0)
        return error_set(err, EXIT_FAILED, "--dry-run: needs a checkout with its Makefile; run it there");
    if (access(path, X_OK) != 0) {
        log_status(log, "dry run: building the program for virtual GPUs once, with make virtual; this takes minutes");
        if (!build_(own) || access(path, X_OK) != 0)
            return error_set(err, EXIT_FAILED, "--dry-run: make virtual failed in %s; run it there to see why", own);
    }
    enum { MOST_BYTES = 1 << 30 };
    int64_t size = 0;
    char *code = file_read_whole(path, MOST_BYTES, &size, err);
    if (code == NULL) return -1;
    bool same = memmem(code, (size_t)size, BUILT_FROM_, sizeof BUILT_FROM_) != NULL;
    free(code);
    if (!same)
        return error_set(err, EXIT_FAILED,
                         "--dry-run: %s was built from other sources than this program; run make programs virtual in "
                         "%s",
                         path, own);
    log_status(log, "dry run on virtual GPUs: nothing is computed, and times are from the virtual clock");
    int64_t node = config->hardware.gpus_per_node, world = config_world(config);
    set_number_(DRY_, 1);
    set_number_("VIRTUAL_GPUS", node);
    set_number_("VIRTUAL_NODES", (world + node - 1) / node);
    static char *const more[] = {"-o", "hardware.device=cuda", "-o", "checkpoint.every=0",
                                 "-o", "data.val_every=0",     NULL};
    char **words = xcalloc((size_t)argc + sizeof more / sizeof *more, sizeof *words);
    memcpy(words, argv, (size_t)argc * sizeof *words);
    memcpy(words + argc, more, sizeof more);
    words[0] = path;
    execv(path, words);
    free(words);
    return error_set(err, EXIT_FAILED, "--dry-run: %s: %s", path, strerror(errno));
}
