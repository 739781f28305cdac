// Checkpoints as directories: names, publishing and removing, and what a start may resume from and write to. The
// manifest and the list of checkpoints are in checkpoint_manifest.c. A file is created relative to its directory's
// descriptor, which is opened without following links, so that another user cannot swap the directory for a link in
// between.
#include "checkpoint_files.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
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

// --- the checkpoints that a directory offers
//
// These functions inspect the disk before a start loads or writes anything, and only read. So the process that starts
// the ranks can also call them and report a mistake on the command line at once.

static bool has_(const char *dir, const char *name) {
    char path[CHECKPOINT_PATH];
    return file_join(path, dir, name, NULL) == 0 && access(path, F_OK) == 0;
}

const char *resume_option(bool if_any) { return if_any ? "--resume-if-any" : "--resume"; }

int candidates_find(Candidates *candidates, const char *dir, bool any_run, bool if_any, Error *err) {
    *candidates = (Candidates){0};
    if (has_(dir, CHECKPOINT_MANIFEST) || has_(dir, CHECKPOINT_TRAINING)) { // the directory itself: no name
        *candidates = (Candidates){1, 1, xcalloc(1, sizeof *candidates->names)};
        return 0;
    }
    if (checkpoint_list(dir, &candidates->names, &candidates->count, err) != 0) return -1;
    CheckpointName *names = candidates->names;
    int64_t newest = 0; // damaged checkpoints come first
    while (newest < candidates->count && !names[newest].complete) newest++;
    int64_t kept = newest;
    for (int64_t i = newest; i < candidates->count; i++) {
        if (names[i].run == names[newest].run) names[kept++] = names[i];
        else if (!any_run)
            return error_set(err, EXIT_USAGE,
                             "%s %s: holds checkpoints of several runs (%s and %s differ); name the one to resume, as "
                             "in --resume %s/%s",
                             resume_option(if_any), dir, names[newest].name, names[i].name, dir, names[newest].name);
    }
    candidates->complete = kept - newest;
    candidates->count = kept;
    if (candidates->count > 0 || (!has_(dir, CHECKPOINT_INDEX) && !has_(dir, "model.safetensors"))) return 0;
    return error_set(err, EXIT_USAGE, "%s %s: holds only weights, no training state; set checkpoint.init_from to it",
                     resume_option(if_any), dir);
}

// --- runs

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool checkpoint_lies_in(const char *checkpoint, const char *dir) {
    char above[CHECKPOINT_PATH + 4];
    if (snprintf(above, sizeof above, "%s/..", checkpoint) >= (int)sizeof above) return false;
    return same_file(above, dir);
}

uint64_t run_id_draw(void) {
    uint64_t id = 0;
    // If the kernel has no random numbers, any ID that is unlikely to repeat will do.
    if (getrandom(&id, sizeof id, 0) != sizeof id || id == 0) id = (uint64_t)clock_wall_ns() | 1;
    return id;
}

// --- starts that are refused

int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err) {
    Candidates candidates = {0};
    if (resume == NULL) return 0;
    int status = candidates_find(&candidates, resume, config->checkpoint.overwrite, if_any, err);
    if (status == 0 && candidates.complete == 0 && !if_any) {
        const char *what = access(resume, F_OK) != 0 ? "there is no such folder"
                           : candidates.count == 0   ? "there is no checkpoint in it"
                                                     : "no checkpoint in it has a readable manifest";
        status = error_set(err, EXIT_USAGE, "--resume %s: %s; name a folder with a run's checkpoints%s%s", resume, what,
                           trains ? ", or start at step 0 with --resume-if-any " : "", trains ? resume : "");
    }
    free(candidates.names);
    return status;
}

int checkpoint_check_dir(const Config *config, const char *resume, Error *err) {
    const char *dir = config->checkpoint.dir;
    if (dir[0] == '\0' || config->checkpoint.overwrite) return 0;
    // candidates_find has already checked that a folder to resume from has only one run. If the checkpoint to resume
    // has no readable manifest, its run is unknown, and loading refuses it later.
    Manifest manifest = {0};
    bool same = resume != NULL && same_file(resume, dir), within = resume != NULL && checkpoint_lies_in(resume, dir);
    bool unknown = within && manifest_read(&manifest, resume, NULL) != 0;
    uint64_t run = manifest.run;
    manifest_free(&manifest);
    if (same || unknown) return 0;
    CheckpointName *list = NULL;
    int64_t count = 0;
    Error unreadable = {0};
    int status = checkpoint_list(dir, &list, &count, &unreadable);
    if (status != 0) error_set(err, unreadable.code, "checkpoint.dir: %s", unreadable.text);
    const CheckpointName *found = NULL; // a checkpoint of another run, a complete one if possible
    for (int64_t i = 0; i < count && status == 0; i++) {
        bool other = !within || (list[i].complete && list[i].run != run);
        if (other && (found == NULL || list[i].complete > found->complete)) found = &list[i];
    }
    // If the checkpoint to resume is there too, --resume with the folder would refuse its several runs.
    if (found != NULL)
        status = config_error(config, "checkpoint.dir", err,
                              "%s holds checkpoints of another run, such as %s; %s%s%sname another folder, or set "
                              "checkpoint.overwrite: true to remove them",
                              dir, found->name, within ? "" : "resume from them with --resume ", within ? "" : dir,
                              within ? "" : ", ");
    free(list);
    return status;
}
