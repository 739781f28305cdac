// Files that came from elsewhere, or lie where somebody else said. What is no regular file (a named pipe, a device, a directory) is not read and never
// waited for, and no memory is asked for that the file's length does not justify.
#ifndef FILES_H
#define FILES_H

#include "log.h"

#include <stdint.h>

// Opens a regular file for reading. Its descriptor and length, or -1 with err (EXIT_FAILED): "PATH: is no regular file".
int file_open(const char *path, int64_t *bytes, Error *err);

// Reads bytes [offset, offset + bytes). -1 with err where they cannot be read, or where the file ends before.
int file_read(int fd, const char *path, int64_t offset, void *to, int64_t bytes, Error *err);

// A whole file of at most `most` bytes, as a text that ends with a NUL behind its length. NULL with err; the caller frees it.
char *file_read_whole(const char *path, int64_t most, int64_t *length, Error *err);

// Makes every folder on the way to the file `path` that is not there. 0, or -1 with errno.
int file_make_folders(const char *path);

// Whether a file can be written to `path`, told before long work; makes the folders on the way, and no file. 0, or an errno.
int file_check_to_write(const char *path);

// Writes all of it at the file's position. -1 with errno.
int file_write_all(int fd, const void *data, int64_t bytes);

// Opens or makes a file for writing: O_APPEND or O_TRUNC. A named pipe that nobody reads is an error (ENXIO) and not waited for. -1 with
// errno.
int file_open_to_write(const char *path, int flag);

// Where this process was started with standard input, output or error closed, the next file that is opened would take that number, and
// what is meant for a reader would be written into it. Puts something there to which nothing can be written.
void file_reserve_standard(void);

#endif
