// Starts scripts/tokens.py and waits for it. Input, output and error messages are anonymous files in memory, so neither
// side ever waits for the other to read.
#include "tokenizer.h"

#include "base/alloc.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIBRARY_PATH = 1200, LIBRARY_FILES = 3 };

extern char **environ;

// Finds the script from the program's folder: next to it, where make install puts it, and from build/*/test.
static bool library_script_(char path[LIBRARY_PATH]) {
    static const char *const places[] = {"scripts", "../share/bpipe-trainer/scripts", "../../scripts",
                                         "../../../scripts"};
    char program[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return false;
    program[length] = '\0';
    *(strrchr(program, '/') + 1) = '\0';
    for (int i = 0; i < 4; i++) {
        snprintf(path, LIBRARY_PATH, "%s%s/tokens.py", program, places[i]);
        if (access(path, R_OK) == 0) return true;
    }
    return false;
}

// Returns the system's Python, for which install_deps.sh installs the libraries, before any other.
static const char *library_python_(void) {
    return access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
}

static char *library_read_(int file) {
    off_t size = lseek(file, 0, SEEK_END);
    char *text = xcalloc((size_t)(size < 0 ? 0 : size) + 1, 1);
    for (off_t at = 0; at < size;) {
        ssize_t n = pread(file, text + at, (size_t)(size - at), at);
        if (n <= 0) break;
        at += n;
    }
    return text;
}

// Runs the process with these files as stdin, stdout and stderr. Returns its exit status, or -1 if it did not start.
static int library_spawn_(char *const *command, const int files[LIBRARY_FILES]) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < LIBRARY_FILES; i++) posix_spawn_file_actions_adddup2(&actions, files[i], i);
    int failed = posix_spawnp(&child, command[0], &actions, NULL, command, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// Returns the output, or NULL with the last line of stderr in err.
static char *library_answer_(int status, const int files[LIBRARY_FILES], const char *file, Error *err) {
    if (status == 0) return library_read_(files[1]);
    char *said = library_read_(files[2]);
    size_t length = strlen(said);
    while (length > 0 && said[length - 1] == '\n') said[--length] = '\0';
    char *line = strrchr(said, '\n'), *from = line == NULL ? said : line + 1;
    if (strncmp(from, "tokens.py: ", 11) == 0) from += 11;
    if (status < 0)
        error_set(err, EXIT_USAGE,
                  "sample.tokenizer: %s is read by Python, and %s does not start; install python3, or use ids", file,
                  library_python_());
    else
        error_set(err, EXIT_USAGE, "sample.tokenizer: %.400s",
                  length > 0 ? from : "scripts/tokens.py ended without a word");
    free(said);
    return NULL;
}

char *tokenizer_library_run(const char *action, const char *file, const char *input, size_t length, Error *err) {
    static const char *const names[LIBRARY_FILES] = {"tokens-in", "tokens-out", "tokens-errors"};
    char script[LIBRARY_PATH];
    int files[LIBRARY_FILES];
    if (!library_script_(script)) {
        error_set(err, EXIT_USAGE,
                  "sample.tokenizer: scripts/tokens.py, which reads %s, is not found beside the program; use ids",
                  file);
        return NULL;
    }
    bool opened = true;
    for (int i = 0; i < LIBRARY_FILES; i++) opened = (files[i] = memfd_create(names[i], MFD_CLOEXEC)) >= 0 && opened;
    opened = opened && write(files[0], input, length) == (ssize_t)length && lseek(files[0], 0, SEEK_SET) == 0;
    const char *command[] = {library_python_(), script, action, "--eot", "none", "--tokenizer", file, NULL};
    char *answer = NULL;
    if (opened) answer = library_answer_(library_spawn_((char *const *)command, files), files, file, err);
    else
        error_set(err, EXIT_FAILED, "sample.tokenizer: no memory for a request to scripts/tokens.py: %s",
                  strerror(errno));
    for (int i = 0; i < LIBRARY_FILES; i++)
        if (files[i] >= 0) close(files[i]);
    return answer;
}
