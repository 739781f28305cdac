// Opens, reads and writes files that the user names or supplies. A path may name a pipe without a writer, a device or a
// directory, so file_open does not block and checks the type of the opened file.
#include "files.h"
#include "alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int files_unreadable_(const char *path, Error *err) {
    return error_set(err, EXIT_FAILED, "%s: cannot be read: %s", path, strerror(errno));
}

int file_open(const char *path, int64_t *bytes, Error *err) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // opening a named pipe must not wait for a writer
    if (fd < 0) return files_unreadable_(path, err);
    int failed = fstat(fd, &status) != 0 ? files_unreadable_(path, err)
                 : !S_ISREG(status.st_mode)
                     ? error_set(err, EXIT_FAILED, "%s: is not a regular file; put a plain file there", path)
                     : 0;
    *bytes = status.st_size;
    if (failed == 0) return fd;
    close(fd);
    return -1;
}

int file_read(int fd, const char *path, int64_t offset, void *to, int64_t bytes, Error *err) {
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(fd, at, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return files_unreadable_(path, err);
        if (got == 0)
            return error_set(err, EXIT_FAILED,
                             "%s: ends before byte %lld; it was truncated after it was opened; restore it", path,
                             (long long)offset);
        at += got;
        offset += got;
        bytes -= got;
    }
    return 0;
}

int file_check_to_write(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode)) return EISDIR;
        return access(path, W_OK) == 0 ? 0 : errno;
    }
    if (errno != ENOENT || file_make_folders(path) != 0) return errno;
    char *folder = xstrdup(path);
    int code = access(dirname(folder), W_OK | X_OK) == 0 ? 0 : errno;
    free(folder);
    return code;
}

static int files_remove_(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status, (void)type, (void)walk;
    remove(path);
    return 0;
}

void file_remove_tree(const char *path) { nftw(path, files_remove_, 16, FTW_DEPTH | FTW_PHYS); }

int file_write_all(int fd, const void *data, int64_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t put = write(fd, at, (size_t)bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return -1;
        at += put;
        bytes -= put;
    }
    return 0;
}

char *file_read_whole(const char *path, int64_t most, int64_t *length, Error *err) {
    char *text = NULL;
    int fd = file_open(path, length, err);
    if (fd < 0) return NULL;
    if (*length > most)
        error_set(err, EXIT_FAILED, "%s: has %lld bytes; the limit for such a file is %lld", path, (long long)*length,
                  (long long)most);
    else {
        text = xcalloc((size_t)*length + 1, 1);
        if (file_read(fd, path, 0, text, *length, err) != 0) free(text), text = NULL;
    }
    close(fd);
    return text;
}

static bool files_inside_(const char *path, const char *dir) {
    size_t length = strlen(dir);
    return strncmp(path, dir, length) == 0 && path[length] == '/';
}

// Returns whether `path` lies in the blob store that belongs to `dir`, a snapshot in the cache of Hugging Face's hub.
// In that cache, models--X/snapshots/COMMIT/FILE is a link to models--X/blobs/HASH.
static bool files_inside_hub_store_(const char *path, const char *dir) {
    char store[PATH_MAX + 8];
    snprintf(store, sizeof store, "%s", dir);
    char *last = strrchr(store, '/');
    if (last == NULL) return false;
    *last = '\0';
    char *snapshots = strrchr(store, '/');
    if (snapshots == NULL || strcmp(snapshots, "/snapshots") != 0) return false;
    strcpy(snapshots, "/blobs");
    return files_inside_(path, store);
}

int file_path_within(char path[FILE_PATH], const char *dir, const char *name, Error *err) {
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strlen(name) >= FILE_NAME)
        return error_set(err, EXIT_FAILED,
                         "%s: file name \"%.200s\" is unsupported; it must have 1 to %d bytes, no / and no leading dot",
                         dir, name, FILE_NAME - 1);
    if (snprintf(path, FILE_PATH, "%s/%s", dir, name) >= FILE_PATH)
        return error_set(err, EXIT_FAILED, "%.200s...: the path is longer than %d bytes; use a shorter one", dir,
                         FILE_PATH - 1);
    char *real_dir = realpath(dir, NULL), *real = realpath(path, NULL);
    bool inside =
        real == NULL || real_dir == NULL || files_inside_(real, real_dir) || files_inside_hub_store_(real, real_dir);
    free_all(real_dir, real);
    return inside ? 0
                  : error_set(err, EXIT_FAILED, "%s: is a link that leads out of its directory; replace it with a copy",
                              path);
}

int file_make_folders(const char *path) {
    if (path[0] == '\0') return 0;
    char *folder = xstrdup(path);
    int code = 0;
    for (char *slash = folder; code == 0 && (slash = strchr(slash + 1, '/')) != NULL; *slash = '/') {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) code = errno;
    }
    free(folder);
    errno = code;
    return code == 0 ? 0 : -1;
}

// Returns whether `owner` identifies a single user. In a user namespace (a container), all users that are not mapped
// share one number (kernel.overflowuid, user_namespaces(7)).
static bool files_owner_known_(uid_t owner) {
    enum { OVERFLOW_UID = 65534 };
    if (owner != OVERFLOW_UID) return true;
    unsigned inside, outside, count;
    FILE *map = fopen("/proc/self/uid_map", "re");
    if (map == NULL) return false;
    bool all = fscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && outside == 0 && count == UINT32_MAX;
    fclose(map);
    return all;
}

// Returns whether a link in this folder may be trusted. The link's owner is not enough: in a container with mapped
// users, or on NFS that squashes root, our own links appear to belong to another user. Like Linux in sticky folders
// (fs.protected_symlinks, may_follow_link() in fs/namei.c), this trusts the folder's owner, who may replace any file
// there. Links of other owners are trusted only if just the folder's owner can write there. If the folder has
// an access control list, the folder's group bits are the list's mask and cover everyone whom the list names.
static bool files_trusted_(const struct stat *link, const struct stat *folder) {
    bool same = link->st_uid == geteuid() || link->st_uid == folder->st_uid;
    if (link->st_uid == 0 || (same && files_owner_known_(link->st_uid))) return true;
    return (folder->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Returns the target of a link, which the caller frees; NULL with errno if this process may not follow the link. Keeps
// folder and link open meanwhile, so that the target is read from the same link that was checked.
static char *files_follow_(const char *path) {
    char target[4096], *leads = NULL, *name = xstrdup(path), *slash = strrchr(name, '/');
    struct stat link, within;
    int before = slash == NULL ? 0 : (int)(slash - name) + 1; // the folder's length, slash included
    name[before] = '\0';
    int folder = open(before == 0 ? "." : name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(name);
    if (folder < 0) return NULL;
    int fd = openat(folder, path + before, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool seen = fd >= 0 && fstat(fd, &link) == 0 && fstat(folder, &within) == 0;
    ssize_t length = seen ? readlinkat(fd, "", target, sizeof target - 1) : -1;
    close(folder);
    if (fd >= 0) close(fd);
    if (length < 0 || !files_trusted_(&link, &within)) return errno = ELOOP, NULL;
    target[length] = '\0';
    return asprintf(&leads, "%.*s%s", target[0] == '/' ? 0 : before, path, target) < 0 ? NULL : leads;
}

int file_open_to_write(const char *path, int flag) {
    enum { LINKS = 16 };
    char *place = xstrdup(path);
    int fd = -1, open_flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | flag;
    // open() itself follows the links in /proc and /dev/fd, because they refer to open files (our standard output, a
    // process substitution), not to paths.
    for (int i = 0; i < LINKS && place != NULL; i++) {
        bool open_file = strncmp(place, "/proc/", 6) == 0 || strncmp(place, "/dev/fd/", 8) == 0;
        fd = open(place, open_file ? open_flags & ~O_NOFOLLOW : open_flags, 0666);
        if (fd >= 0 || errno != ELOOP) break;
        char *leads = files_follow_(place);
        free(place);
        place = leads;
    }
    int code = errno;
    free(place);
    if (fd >= 0) fcntl(fd, F_SETFL, flag & O_APPEND); // blocking from now on: a pipe's reader may be slow
    errno = code;
    return fd;
}

int file_open_new(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) return -1;
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

const char *file_why(int code) {
    return code == ELOOP
               ? "it is a symbolic link of another user in a folder that others can write to, or part of a loop "
                 "of symbolic links"
               : strerror(code);
}

void file_reserve_standard(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDONLY); // takes the lowest free number, which is fd
}

bool file_of_program(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length > 0) path[length] = '\0';
    return length > 0;
}

bool file_near_program(char *path, size_t size, const char *const *names) {
    char program[PATH_MAX];
    if (!file_of_program(program, sizeof program)) return false;
    for (const char *folder = dirname(program); *names != NULL; names++)
        if (snprintf(path, size, "%s/%s", folder, *names) < (int)size && access(path, R_OK) == 0) return true;
    return false;
}
