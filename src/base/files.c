// Opens, reads and writes files that the user names or supplies. A path may name a pipe without a writer, a device or a
// directory, so file_open does not block and checks the type of the opened file.
#include "files.h"
#include "alloc.h"
#include "clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int unreadable_(const char *path, Error *err) {
    return error_set(err, EXIT_FAILED, "%s: cannot be read: %s%s", path, strerror(errno),
                     errno == EMFILE ? "; raise ulimit -n" : "");
}

int file_open(const char *path, int64_t *bytes, Error *err) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // opening a named pipe must not wait for a writer
    if (fd < 0 || fstat(fd, &status) != 0) unreadable_(path, err);
    else if (!S_ISREG(status.st_mode))
        error_set(err, EXIT_FAILED, "%s: is not a regular file; use a regular file", path);
    else return *bytes = status.st_size, fd;
    if (fd >= 0) close(fd);
    return -1;
}

int file_read(int fd, const char *path, int64_t offset, void *to, int64_t bytes, Error *err) {
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(fd, at, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return unreadable_(path, err);
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

// Opens the folder that holds `path`, and sets *name to the last part of the path. -1 with errno.
static int open_folder_(const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    *name = slash == NULL ? path : slash + 1;
    char *folder = strndup(path, (size_t)(*name - path));
    int fd = folder == NULL ? -1 : open(*name == path ? "." : folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    return fd;
}

// Removes the entry `name` of an open folder. A folder is opened without following links and emptied through its
// descriptor: a user who may write to it can swap any folder for a link meanwhile, but the link's target is never
// touched.
static void remove_(int within, const char *name, int depth) {
    enum { MOST_DEPTH = 64 };
    if (unlinkat(within, name, 0) == 0 || depth > MOST_DEPTH) return;
    int fd = openat(within, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) remove_(fd, entry->d_name, depth + 1);
    if (stream != NULL) closedir(stream);
    else if (fd >= 0) close(fd);
    unlinkat(within, name, AT_REMOVEDIR);
}

void file_remove_tree(const char *path) {
    const char *name;
    int within = open_folder_(path, &name);
    if (within < 0) return;
    remove_(within, name, 0);
    close(within);
}

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
    int fd = file_open(path, length, err);
    if (fd < 0) return NULL;
    bool fits = *length <= most;
    char *text = fits ? xcalloc((size_t)*length + 1, 1) : NULL;
    int status = fits ? file_read(fd, path, 0, text, *length, err)
                      : error_set(err, EXIT_FAILED, "%s: has %lld bytes; the limit for such a file is %lld", path,
                                  (long long)*length, (long long)most);
    close(fd);
    if (status == 0) return text;
    free(text);
    return NULL;
}

static bool inside_(const char *path, const char *dir) {
    size_t length = strlen(dir);
    return strncmp(path, dir, length) == 0 && path[length] == '/';
}

int file_join(char path[FILE_PATH], const char *dir, const char *name, Error *err) {
    if (snprintf(path, FILE_PATH, "%s/%s", dir, name) < FILE_PATH) return 0;
    return error_set(err, EXIT_FAILED, "%.200s...: the path is longer than %d bytes; use a shorter one", dir,
                     FILE_PATH - 1);
}

int file_path_within(char path[FILE_PATH], const char *dir, const char *name, Error *err) {
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strlen(name) >= FILE_NAME)
        return error_set(err, EXIT_FAILED,
                         "%s: file name \"%.200s\" is unsupported; it must have 1 to %d bytes, no / and no leading dot",
                         dir, name, FILE_NAME - 1);
    if (file_join(path, dir, name, err) != 0) return -1;
    char *real_dir = realpath(dir, NULL), *real = realpath(path, NULL);
    bool inside = real == NULL || real_dir == NULL || inside_(real, real_dir);
    // In the cache of Hugging Face's hub, models--X/snapshots/COMMIT/FILE is a link to models--X/blobs/HASH.
    char *commit = inside ? NULL : strrchr(real_dir, '/');
    if (commit != NULL) *commit = '\0';
    char *snapshots = commit == NULL ? NULL : strrchr(real_dir, '/');
    if (snapshots != NULL && strcmp(snapshots, "/snapshots") == 0) {
        strcpy(snapshots, "/blobs");
        inside = inside_(real, real_dir);
    }
    free_all(real_dir, real);
    if (inside) return 0;
    return error_set(err, EXIT_FAILED, "%s: is a link to a file outside its directory; replace it with a copy", path);
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
static bool owner_known_(uid_t owner) {
    enum { OVERFLOW_UID = 65534 };
    if (owner != OVERFLOW_UID) return true;
    unsigned inside, outside, count;
    FILE *map = fopen("/proc/self/uid_map", "re");
    if (map == NULL) return false;
    bool all = fscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && outside == 0 && count == UINT32_MAX;
    fclose(map);
    return all;
}

// Returns the target of a link, which the caller frees; NULL with errno if this process may not follow the link. Keeps
// folder and link open meanwhile, so that the target is read from the same link that was checked.
//
// The link's owner is not enough to trust it: in a container with mapped users, or on NFS that squashes root, our own
// links appear to belong to another user. Like Linux in sticky folders (fs.protected_symlinks, may_follow_link() in
// fs/namei.c), this trusts the folder's owner, who may replace any file there. Links of other owners are trusted only
// if just the folder's owner can write there. If the folder has an access control list, the folder's group bits are the
// list's mask and cover everyone whom the list names.
static char *follow_(const char *path) {
    char target[4096], *leads = NULL;
    const char *name;
    struct stat link, within;
    int folder = open_folder_(path, &name);
    if (folder < 0) return NULL;
    int fd = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool seen = fd >= 0 && fstat(fd, &link) == 0 && fstat(folder, &within) == 0;
    ssize_t length = seen ? readlinkat(fd, "", target, sizeof target - 1) : -1;
    close(folder);
    if (fd >= 0) close(fd);
    if (length < 0) return errno = ELOOP, NULL;
    bool same = link.st_uid == geteuid() || link.st_uid == within.st_uid;
    bool trusted = link.st_uid == 0 || (same && owner_known_(link.st_uid));
    if (!trusted && (within.st_mode & (S_IWGRP | S_IWOTH)) != 0) return errno = ELOOP, NULL;
    target[length] = '\0';
    return asprintf(&leads, "%.*s%s", target[0] == '/' ? 0 : (int)(name - path), path, target) < 0 ? NULL : leads;
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
        char *leads = follow_(place);
        free(place);
        place = leads;
    }
    int code = errno;
    free(place);
    if (fd >= 0) fcntl(fd, F_SETFL, flag & O_APPEND); // blocking from now on: a pipe's reader may be slow
    errno = code;
    return fd;
}

int file_replace(const char *path, const char *text, int64_t bytes) {
    char *beside = NULL;
    if (asprintf(&beside, "%s.new", path) < 0) return -1;
    bool cleared = unlink(beside) == 0 || errno == ENOENT; // removes the leftover of an earlier call
    int fd = cleared ? open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    bool done = fd >= 0 && file_write_all(fd, text, bytes) == 0 && fsync(fd) == 0 && rename(beside, path) == 0;
    int code = errno;
    if (fd >= 0) close(fd); // after fsync, nothing is left that it could fail to write
    if (fd >= 0 && !done) remove(beside);
    free(beside);
    errno = code;
    return done ? 0 : -1;
}

int file_failed(const char *path, const char *what, Error *err) {
    int code = errno;
    bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    bool closed = code == EACCES || code == EROFS || code == EPERM;
    return error_set(err, EXIT_FAILED, "%s: cannot be %s: %s%s", path, what, strerror(code),
                     full     ? "; free some space there"
                     : closed ? "; name a folder where you may write"
                              : "");
}

// Opens or creates a lock's file. -1 with err; -1 without err if the folder is not writable.
static int open_lock_(const char *path, int access_mode, Error *err) {
    struct stat there, folder;
    int fd = open(path, access_mode | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600), code = errno;
    bool found = fd >= 0 ? fstat(fd, &there) == 0 : lstat(path, &there) == 0;
    char *above = xstrdup(path), *dir = dirname(above);
    bool inside = stat(dir, &folder) == 0, writable = access(dir, W_OK) == 0;
    free(above);
    if (fd >= 0 && found && S_ISREG(there.st_mode) &&
        (there.st_uid == geteuid() || !owner_known_(there.st_uid) || (inside && there.st_uid == folder.st_uid))) {
        fchmod(fd, 0600); // any process that can open a file can lock it
        return fd;
    }
    if (fd >= 0) close(fd);
    if (fd < 0 && (code == EROFS || (!found && !writable))) return -1;
    if (fd >= 0 || code == ELOOP || code == EISDIR || (found && code == EACCES && there.st_uid != geteuid()))
        return error_set(err, EXIT_FAILED,
                         "%s: is not this user's lock file; remove it if no run uses it, or name another folder", path);
    errno = code;
    return file_failed(path, "opened", err);
}

bool file_locked(const FileLock *lock) {
    struct stat own, there;
    return lock->fd > 0 && fstat(lock->fd, &own) == 0 && lstat(lock->path, &there) == 0 && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
}

// The kernel releases a lock when its process ends for any reason. This may take a moment after a run was killed, so
// this function retries for a while. The process that unlocks removes the file first, so a lock counts only if the file
// is still in its place.
int file_lock(FileLock *lock, const char *path, const char *taken, Error *err) {
    enum { PATIENCE_MS = 5000, LOOK_MS = 100 };
    *lock = (FileLock){.path = xstrdup(path)};
    // A file open for writing would keep the disk from being remounted read-only. NFS locks only such files: EBADF.
    int access_mode = O_RDONLY;
    for (int ms = 0; ms <= PATIENCE_MS; ms += LOOK_MS) {
        Error why = {0};
        int fd = lock->fd > 0 ? lock->fd : open_lock_(path, access_mode, &why);
        if (fd < 0) return why.code != 0 ? error_set(err, why.code, "%s", why.text) : 0;
        lock->fd = fd;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (file_locked(lock)) return 0;
            close(fd);
            lock->fd = 0;
        } else if (errno == EBADF && access_mode == O_RDONLY) {
            close(fd);
            lock->fd = 0;
            access_mode = O_RDWR;
        } else if (errno == EWOULDBLOCK) clock_sleep(1e-3 * LOOK_MS);
        else return 0;
    }
    if (lock->fd > 0) close(lock->fd);
    lock->fd = 0;
    return error_set(err, EXIT_FAILED, "%s", taken);
}

void file_unlock(FileLock *lock) {
    if (file_locked(lock)) unlink(lock->path);
    if (lock->fd > 0) close(lock->fd);
    free(lock->path);
    *lock = (FileLock){0};
}

const char *file_why(int code) {
    return code == ELOOP
               ? "it is a symbolic link of another user in a folder that others can write to, or part of a loop "
                 "of symbolic links"
           : code == ENXIO ? "it is a pipe that no program reads, or a device that is not there"
                           : strerror(code);
}

bool file_accepts(int fd, int ms) {
    struct pollfd out = {fd, POLLOUT, 0};
    return poll(&out, 1, ms) > 0;
}

int64_t file_limit(int64_t files) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT64_MAX;
    rlim_t now = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)files < limit.rlim_max ? (rlim_t)files : limit.rlim_max;
    if (limit.rlim_cur > now && setrlimit(RLIMIT_NOFILE, &limit) == 0) now = limit.rlim_cur;
    return now < INT64_MAX ? (int64_t)now : INT64_MAX;
}

void file_prepare_standard(void) {
    char path[32];
    struct stat there;
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0) open("/dev/null", O_RDONLY); // takes the lowest free number, which is fd
        if (fd == STDIN_FILENO || flags < 0 || (flags & O_NONBLOCK) == 0 || fstat(fd, &there) != 0) continue;
        if (!S_ISFIFO(there.st_mode) && !isatty(fd)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); // fails, not waits, if no reader is left
        if (own < 0 || fcntl(own, F_SETFL, flags & ~O_NONBLOCK) != 0) continue;
        dup2(own, fd);
        close(own);
    }
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
