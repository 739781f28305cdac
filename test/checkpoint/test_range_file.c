// Files written in ranges: every byte is at its place for any boundaries of the ranges, with several processes, with
// and without direct I/O.
#include "checkpoint/range_file.h"
#include "unit.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 23 * 1000 * 1000 + 7 };

static uint64_t next_(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static char *content(void) {
    char *bytes = malloc(BYTES);
    uint64_t state = 7;
    for (int64_t i = 0; i < BYTES; i++) bytes[i] = (char)next_(&state);
    return bytes;
}

static void put_all(RangeFile *file, const char *bytes, int64_t begin, int64_t end) {
    Error err = {0};
    while (begin < end) {
        int64_t put = range_file_put(file, begin, bytes + begin, end - begin, &err);
        if (put <= 0 || put > end - begin) fail_msg("%lld bytes put: %s", (long long)put, err.text);
        begin += put;
    }
}

// Path of the test's file; `remove_file` deletes it after the test, even if the test fails.
static char path[64];

static void make_file(const char *dir) {
    snprintf(path, sizeof path, "%s/range-file-XXXXXX", dir);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static int remove_file(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

// Writes the ranges with number % parts == part; part -1: all. The ranges have many different sizes and cover the file.
static void put_ranges(const char *bytes, int part, int parts) {
    RangeFile file;
    void *staging = aligned_alloc(RANGE_FILE_BLOCK, RANGE_FILE_STAGING);
    assert_succeeds(range_file_open(&file, AT_FDCWD, path, path, BYTES, staging, &unit_error));
    uint64_t state = 11;
    int64_t begin = 0;
    for (int number = 0; begin < BYTES; number++) {
        static const int64_t most[] = {5000, 100000, 9000000};
        int64_t length = 1 + (int64_t)(next_(&state) % (uint64_t)most[number % 3]);
        int64_t end = begin + length < BYTES ? begin + length : BYTES;
        if (part < 0 || number % parts == part) put_all(&file, bytes, begin, end);
        begin = end;
    }
    assert_succeeds(range_file_close(&file, true, &unit_error));
    free(staging);
}

static void check_content(const char *bytes) {
    AutoText *found = malloc(BYTES + 1);
    int fd = open(path, O_RDONLY);
    int64_t got = 0, more;
    while ((more = read(fd, found + got, (size_t)(BYTES + 1 - got))) > 0) got += more;
    assert_int_equal(got, BYTES);
    assert_memory_equal(found, bytes, BYTES);
    close(fd);
    unlink(path);
}

TEST_BETWEEN(every_byte_is_where_it_belongs, NULL, remove_file) {
    static const char *const dirs[] = {".", "/dev/shm"}; // a disk, and memory
    AutoText *bytes = content();
    for (int i = 0; i < 2; i++) {
        make_file(dirs[i]);
        put_ranges(bytes, -1, 1);
        check_content(bytes);
    }
}

TEST_BETWEEN(processes_share_blocks, NULL, remove_file) {
    enum { WRITERS = 3 };
    AutoText *bytes = content();
    make_file(".");
    for (int part = 0; part < WRITERS; part++) {
        if (fork() != 0) continue;
        put_ranges(bytes, part, WRITERS);
        _exit(0);
    }
    for (int part = 0; part < WRITERS; part++) {
        int status = -1;
        wait(&status);
        assert_int_equal(status, 0);
    }
    check_content(bytes);
}

// --- an NFS client: it learns the length of a file by its own calls alone, and sends a page after the end from its
// beginning on, with zeros before the new bytes

static bool on_nfs;
static int64_t known; // length of the file

int fstatfs(int fd, struct statfs *to) {
    int status = (int)syscall(SYS_fstatfs, fd, to);
    if (on_nfs) to->f_type = NFS_SUPER_MAGIC;
    return status;
}

int ftruncate(int fd, off_t length) {
    known = length;
    return (int)syscall(SYS_ftruncate, fd, length);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    static const char zeros[RANGE_FILE_BLOCK];
    int64_t page = offset / RANGE_FILE_BLOCK * RANGE_FILE_BLOCK;
    if (on_nfs && page >= known) syscall(SYS_pwrite64, fd, zeros, offset - page, page);
    if (offset + (int64_t)bytes > known) known = offset + (int64_t)bytes;
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

TEST_BETWEEN(hosts_share_pages_of_a_file_on_nfs, NULL, remove_file) {
    enum { HOSTS = 2 };
    AutoText *bytes = content();
    make_file(".");
    on_nfs = true;
    for (int host = 0; host < HOSTS; host++) {
        known = 0;
        put_ranges(bytes, host, HOSTS);
    }
    on_nfs = false;
    check_content(bytes);
}

TEST(errors_name_the_file) {
    RangeFile file;
    assert_refused(range_file_open(&file, AT_FDCWD, "/dev/null/x", "/dev/null/x", 1, NULL, &unit_error), EXIT_FAILED,
                   "/dev/null/x: cannot be written: Not a directory");
    assert_succeeds(range_file_open(&file, AT_FDCWD, "/dev/full", "/dev/full", 1, NULL, &unit_error));
    assert_refused(range_file_put(&file, 0, "x", 1, &unit_error), EXIT_FAILED,
                   "/dev/full: cannot be written: No space left on device; free some space there");
    range_file_close(&file, false, NULL);
}
