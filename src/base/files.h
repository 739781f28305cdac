// Files whose contents or paths come from the user. Anything but a regular file (a named pipe, a device, a directory)
// is refused instead of waited for, and no more memory is allocated than the file's length justifies.
#pragma once

#include "log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Opens a regular file for reading. Returns its descriptor and length, or -1 with err (EXIT_FAILED).
int file_open(const char *path, int64_t *bytes, Error *err);

// Reads bytes [offset, offset + bytes). Returns -1 with err if they cannot be read or the file ends before them.
int file_read(int fd, const char *path, int64_t offset, void *to, int64_t bytes, Error *err);

// Reads a file of at most `most` bytes and adds a NUL. The caller frees the text; NULL with err.
char *file_read_whole(const char *path, int64_t most, int64_t *length, Error *err);

enum { FILE_PATH = 1024, FILE_NAME = 128 };

// Writes the path of a file that an index, a manifest or a side file in the folder `dir` names. Refuses names with a
// slash, "..", hidden names, and links that lead out of the folder (except to the store of a Hugging Face cache next to
// it). -1 with err.
int file_path_within(char path[FILE_PATH], const char *dir, const char *name, Error *err);

// Creates the missing folders on the way to the file `path`. Returns 0, or -1 with errno.
int file_make_folders(const char *path);

// Checks that a file can be written to `path`, so that long work does not end in vain. Creates the folders on the way
// but no file. Returns 0 or an errno.
int file_check_to_write(const char *path);

// Removes a file, or a folder with all that is in it, as far as that is possible. Follows no link.
void file_remove_tree(const char *path);

// Writes all of it at the file's position. Returns -1 with errno on failure.
int file_write_all(int fd, const void *data, int64_t bytes);

// Opens or creates a file for writing: O_APPEND or O_TRUNC. A named pipe without a reader is an error (ENXIO); it is
// not waited for. A symbolic link is followed if it is this user's, root's or that of the owner of its folder, or if
// only that owner may write there. Where many can write, another user may have put his to have us overwrite a file of
// ours; that is ELOOP. Returns -1 with errno on failure.
int file_open_to_write(const char *path, int flag);
// Creates a new file, after removing whatever has its name; follows no link. Returns -1 with errno on failure.
int file_open_new(const char *path);
// Returns strerror's text, or our own for a link that is not followed.
const char *file_why(int code);

// If stdin, stdout or stderr is closed at start, the next open() would take its descriptor and our output would land in
// that file. Fills the gaps with a descriptor that cannot be written to.
void file_reserve_standard(void);

// Writes the path of the running program's file. Returns false if the system does not say.
bool file_of_program(char *path, size_t size);
// Writes the path of the first file of `names` that can be read. They are relative to the program's folder; the last
// is NULL. Returns false if there is none.
bool file_near_program(char *path, size_t size, const char *const *names);
