// A file that several processes write in ranges and flush to the disk. Large ranges bypass the page cache (O_DIRECT) if
// the file system supports it: the cache costs a copy, memory that training may need, and on the machines measured half
// of the disk's rate (docs/performance.md). Partial blocks are written through the page cache.
#pragma once

#include "base/log.h"

enum {
    RANGE_FILE_BLOCK = 4096,      // divisor of the offsets, lengths and addresses of direct writes, in bytes
    RANGE_FILE_STAGING = 4 << 20, // bytes of the caller's staging memory, and the limit of one system call's write
};

typedef struct RangeFile {
    const char *path; // path for error messages, owned by the caller
    int fd;
    int direct; // descriptor of the same file, opened with O_DIRECT; -1: unsupported
    char *staging;
} RangeFile;

// Opens a file for writing, creates it if necessary, and keeps the bytes that other ranks wrote. staging:
// RANGE_FILE_STAGING bytes aligned to RANGE_FILE_BLOCK, used by this file until it is closed. The file is `name` in the
// open directory `dir` (AT_FDCWD: the working directory); a symbolic link of that name is not followed. path: for
// errors; the caller keeps it. bytes: length of the complete file. -1 with err.
int range_file_open(RangeFile *file, int dir, const char *name, const char *path, int64_t bytes, void *staging,
                    Error *err);

// Writes the beginning of a range and returns the number of bytes written, at least 1; -1 with err. Ranges of two
// processes may share a disk block, but must not overlap.
int64_t range_file_put(RangeFile *file, int64_t offset, const void *data, int64_t bytes, Error *err);

// Closes the file; call it after each successful range_file_open. sync: first flushes the file to the disk. -1 with
// err if that fails.
int range_file_close(RangeFile *file, bool sync, Error *err);
