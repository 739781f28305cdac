// Writes ranges of one file from several processes, past the page cache if the file system allows it.
#include "range_file.h"
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

// Size in bytes. Smaller writes use the page cache: a direct write would take longer, because it waits for the disk. A
// cached write of at least this size starts the transfer to the disk at once.
enum { LARGE = 1 << 20 };

// An NFS client that writes into a page after the end of the file, as far as it knows, sends the page from its
// beginning, with zeros before the new bytes (nfs_write_end and nfs_can_extend_write in Linux). The zeros would replace
// what another host has written there, so a file on NFS gets its final length before the first write. On other file
// systems it does not: its length shows whether all hosts write into the same file (check_sizes_).
static int set_length_(const RangeFile *file, int64_t bytes) {
    enum { NFS = 0x6969 }; // NFS_SUPER_MAGIC in linux/magic.h, which the explore page's compiler lacks
    struct statfs system;
    return fstatfs(file->fd, &system) == 0 && system.f_type == NFS ? ftruncate(file->fd, bytes) : 0;
}

int range_file_open(RangeFile *file, int dir, const char *name, const char *path, int64_t bytes, void *staging,
                    Error *err) {
    *file = (RangeFile){path, -1, -1, staging};
    file->fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file->fd < 0 || set_length_(file, bytes) != 0) {
        file_failed(file->path, "written", err);
        if (file->fd >= 0) close(file->fd);
        return -1;
    }
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
