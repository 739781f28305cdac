// Files that the user names or supplies. Anything but a regular file (a named pipe, a device, a directory) is refused,
// so that no read blocks. No more memory is allocated than the file's length justifies.
#pragma once

#include "log.h"

#include <stddef.h>

// Opens a regular file for reading. Returns its descriptor and length, or -1 with err (EXIT_FAILED).
int file_open(const char *path, int64_t *bytes, Error *err);

// Reads bytes [offset, offset + bytes). Returns 0, or -1 with err if they cannot be read or the file is too short.
int file_read(int fd, const char *path, int64_t offset, void *to, int64_t bytes, Error *err);

// Returns the NUL-terminated contents of a file of at most `most` bytes, or NULL with err. The caller frees the text.
char *file_read_whole(const char *path, int64_t most, int64_t *length, Error *err);

enum { FILE_PATH = 1024, FILE_NAME = 128 };

// Writes "DIR/NAME". -1 with err if it is too long.
int file_join(char path[FILE_PATH], const char *dir, const char *name, Error *err);

// Writes the path of `name` in the folder `dir`; the name was read from an index, a manifest or a side file there.
// Returns 0, or -1 with err for a name with a slash, "..", a hidden name, or a link that leads out of the folder. A
// link to the blob store of the same Hugging Face cache is accepted.
int file_path_within(char path[FILE_PATH], const char *dir, const char *name, Error *err);

// Creates the missing parent folders of the file `path`. Returns 0, or -1 with errno.
int file_make_folders(const char *path);

// Checks before long work that `path` is writable. Creates missing parent folders but no file. Returns 0 or an errno.
int file_check_to_write(const char *path);

// Removes a file, or a folder with its contents; ignores errors. Follows no links, even if another user swaps a folder
// for a link meanwhile.
void file_remove_tree(const char *path);

// Writes all `bytes` at the file's current position. Returns 0, or -1 with errno.
int file_write_all(int fd, const void *data, int64_t bytes);

// Opens or creates a file for writing; flag: O_APPEND or O_TRUNC. A named pipe without a reader is an error (ENXIO), so
// the call never waits for a reader. A symbolic link is followed if it belongs to this user, to root or to its folder's
// owner, or if only that owner can write to the folder. Any other link could make us overwrite a file of our own, and
// is an error (ELOOP). Returns -1 with errno on failure.
int file_open_to_write(const char *path, int flag);
// Writes a temporary file next to `path` and renames it, so that readers see the old or the new file. Returns 0, or -1
// with errno.
int file_replace(const char *path, const char *text, int64_t bytes);

// A lock on a file that only its owner can open, so that no other user can hold it.
typedef struct FileLock {
    int fd; // 0: no lock
    char *path;
} FileLock;

// Locks `path`, an empty file made for this, until file_unlock or the end of the process. Also returns 0, without a
// lock, if the folder is not writable or the file system has no locks. -1 with err: `taken` if another process still
// holds the lock after some seconds, or a sentence if the file is another user's. Call file_unlock in both cases.
int file_lock(FileLock *lock, const char *path, const char *taken, Error *err);
// Returns whether the lock is held and its file is still in its place: its folder was not removed or moved.
bool file_locked(const FileLock *lock);
// Removes the file and releases the lock.
void file_unlock(FileLock *lock);

// Sets "PATH: cannot be <what>: <reason>" from errno, with the remedy for a full disk or missing permission.
int file_failed(const char *path, const char *what, Error *err);
// Returns the text of strerror; for ELOOP, our own text about links that are not followed.
const char *file_why(int code);

// Returns whether a file accepts a line within `ms` milliseconds; a signal ends the wait. A pipe that does accepts
// PIPE_BUF bytes at once. Async-signal-safe.
bool file_accepts(int fd, int ms);

// Raises this process's limit on open files to `files`, or as far as it may. Returns the limit.
int64_t file_limit(int64_t files);

// Opens /dev/null, read-only, for each of stdin, stdout and stderr that is closed at start. Otherwise the next open()
// would get that descriptor, and our output would end up in its file. Opens a nonblocking pipe or terminal for output
// (as from node.js) again, for it would refuse lines while its reader pauses, and its flags are its other users', too.
void file_prepare_standard(void);

// Writes the path of the running program's file. Returns false if /proc/self/exe cannot be read.
bool file_of_program(char *path, size_t size);
// Writes the path of the first readable file of `names`: paths relative to the program's folder, terminated by NULL.
// Returns false if no file is readable.
bool file_near_program(char *path, size_t size, const char *const *names);
