// Files written in ranges: every byte is at its place for any boundaries of the ranges, with several processes, with
// and without direct I/O.
#include "checkpoint/range_file.h"
#include "unit.h"

#include <fcntl.h>
#include <string.h>
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
    assert_succeeds(range_file_open(&file, AT_FDCWD, path, path, staging, &unit_error));
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

TEST(errors_name_the_file) {
    RangeFile file;
    assert_refused(range_file_open(&file, AT_FDCWD, "/dev/null/x", "/dev/null/x", NULL, &unit_error), EXIT_FAILED,
                   "/dev/null/x: cannot be written: Not a directory");
    assert_succeeds(range_file_open(&file, AT_FDCWD, "/dev/full", "/dev/full", NULL, &unit_error));
    assert_refused(range_file_put(&file, 0, "x", 1, &unit_error), EXIT_FAILED,
                   "/dev/full: cannot be written: No space left on device; free some space there");
    range_file_close(&file, false, NULL);
}
