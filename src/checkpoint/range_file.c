// Writes ranges of one file from several processes, past the page cache if the file system allows it.
#include "range_file.h"
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// Size in bytes. Smaller writes use the page cache: a direct write would take longer, because it waits for the disk. A
// cached write of at least this size starts the transfer to the disk at once.
enum { LARGE = 1 << 20 };

int range_file_open(RangeFile *file, int dir, const char *name, const char *path, void *staging, Error *err) {
    *file = (RangeFile){path, -1, -1, staging};
    file->fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file->fd < 0) return file_failed(file->path, "written", err);
    file->direct = openat(dir, name, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    return 0;
}

// Writes as many full blocks past the page cache as fit into the staging memory, or else through the page cache. If the
// file system refuses direct writes (EINVAL), all later writes use the page cache. If a write stops inside a block, as
// on a full disk, the next write is cached.
int64_t range_file_put(RangeFile *file, int64_t offset, const void *data, int64_t bytes, Error *err) {
    int64_t before = -offset & (RANGE_FILE_BLOCK - 1); // bytes until a block begins
    bool direct = file->direct >= 0 && bytes - before >= LARGE;
    if (direct && before > 0) bytes = before, direct = false;
    for (;;) {
        int64_t piece = bytes < RANGE_FILE_STAGING ? bytes : RANGE_FILE_STAGING;
        if (direct) memcpy(file->staging, data, (size_t)(piece = piece / RANGE_FILE_BLOCK * RANGE_FILE_BLOCK));
        ssize_t put =
            pwrite(direct ? file->direct : file->fd, direct ? file->staging : data, (size_t)piece, (off_t)offset);
        // Starts writing to the disk now instead of at the sync. If the file system cannot, the sync writes everything.
        if (!direct && put >= LARGE) sync_file_range(file->fd, (off_t)offset, (off_t)put, SYNC_FILE_RANGE_WRITE);
        if (put > 0) return put;
        if (put < 0 && direct && errno == EINVAL) {
            close(file->direct);
            file->direct = -1;
            direct = false;
            continue;
        }
        if (put < 0 && errno != EINTR) return file_failed(file->path, "written", err);
    }
}

int range_file_close(RangeFile *file, bool sync, Error *err) {
    int status = sync && fsync(file->fd) != 0 ? file_failed(file->path, "written", err) : 0; // direct and cached writes
    if (file->direct >= 0) close(file->direct);
    close(file->fd);
    return status;
}
