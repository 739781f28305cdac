// Checkpoints as directories: names, publishing and removing. The manifest and the list of checkpoints are in
// checkpoint_manifest.c. A file is created relative to its directory's descriptor, which is opened without following
// links, so that another user cannot swap the directory for a link in between.
#include "checkpoint_files.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// --- names

int checkpoint_path(char path[CHECKPOINT_PATH], const char *dir, int64_t step, bool partial, Error *err) {
    char name[48];
    snprintf(name, sizeof name, partial ? ".step_%08lld.partial" : "step_%08lld", (long long)step);
    return file_join(path, dir, name, err);
}

bool name_ends_with(const char *name, const char *end) {
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

// --- writing and flushing to the disk

int file_write(const char *dir, const char *name, const void *data, int64_t bytes, Error *err) {
    char path[CHECKPOINT_PATH];
    if (file_join(path, dir, name, err) != 0) return -1;
    int within = directory_open(dir, err);
    if (within < 0) return -1;
    unlinkat(within, name, 0);
    int fd = openat(within, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool failed = fd < 0 || file_write_all(fd, data, bytes) != 0 || fsync(fd) != 0;
    int status = failed ? file_failed(path, "written", err) : 0;
    if (fd >= 0) close(fd);
    close(within);
    return status;
}

static int sync_(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_failed(path, "synchronized", err);
    // EINVAL: the file system does not support fsync on directories and does not need it.
    int status = fsync(fd) != 0 && errno != EINVAL ? file_failed(path, "synchronized", err) : 0;
    close(fd);
    return status;
}

// Syncs the parent directory of `path`, which makes the creation, renaming or removal of the name durable.
static int sync_name_(const char *path, Error *err) {
    char above[CHECKPOINT_PATH + 16];
    snprintf(above, sizeof above, "%s", path);
    return sync_(dirname(above), err);
}

int directory_open(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : file_failed(path, "opened", err);
}

int directory_make(const char *path, Error *err) {
    struct stat status;
    bool made = mkdir(path, 0777) == 0;
    if (!made && errno == ENOENT) { // a parent is missing; the error names the first that cannot be created
        char *parent = xstrdup(path);
        int failed = directory_make(dirname(parent), err);
        free(parent);
        if (failed != 0) return -1;
        made = mkdir(path, 0777) == 0;
    }
    if (made) sync_name_(path, NULL); // fails if the directory above is not readable
    if (made || (errno == EEXIST && stat(path, &status) == 0 && S_ISDIR(status.st_mode))) return 0;
    if (errno == EEXIST) errno = ENOTDIR;
    return file_failed(path, "created", err);
}

// Writes "DIR/.NAME<end>" for "DIR/NAME" or "DIR/.NAME".
static void hidden_path_(char hidden[CHECKPOINT_PATH + 16], const char *path, const char *end) {
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    snprintf(hidden, CHECKPOINT_PATH + 16, "%.*s.%s%s", (int)(name - path), path, name + (name[0] == '.'), end);
}

// If the file system cannot swap two names at once, a checkpoint that is replaced first gets a hidden name. If the run
// ends before the second rename, the next run's sweep restores the old name.
int directory_publish(const char *partial, const char *path, bool replace, Error *err) {
    char kept[CHECKPOINT_PATH + 32], hidden[CHECKPOINT_PATH + 16];
    if (sync_(partial, err) != 0) return -1;
    if (rename(partial, path) == 0) return sync_name_(path, err);
    // ENOTDIR: `path` is a file or a symbolic link.
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) return file_failed(path, "created", err);
    snprintf(kept, sizeof kept, "%s.kept", path);
    for (int number = 2; access(kept, F_OK) == 0; number++) snprintf(kept, sizeof kept, "%s.kept%d", path, number);
    hidden_path_(hidden, path, CHECKPOINT_REPLACED);
    if (!replace) {
        if (rename(path, kept) != 0 || rename(partial, path) != 0) return file_failed(path, "replaced", err);
    } else if (renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        directory_remove(partial);
    } else {
        directory_remove(hidden);
        if (rename(path, hidden) != 0) return file_failed(path, "renamed", err);
        if (rename(partial, path) != 0) {
            file_failed(path, "replaced", err);
            rename(hidden, path);
            return -1;
        }
        directory_remove(hidden);
    }
    return sync_name_(path, err);
}

// Renames the directory first, so that neither a kill nor a power cut in between can leave half a checkpoint under a
// valid name.
void directory_remove(const char *path) {
    char hidden[CHECKPOINT_PATH + 16];
    hidden_path_(hidden, path, ".removed");
    file_remove_tree(hidden); // left over
    if (rename(path, hidden) != 0) snprintf(hidden, sizeof hidden, "%s", path);
    else sync_name_(path, NULL);
    file_remove_tree(hidden);
}
