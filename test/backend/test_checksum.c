// Checksums of device memory equal those of the same bytes on the host, at any length, without waiting for compute.
#include "backend/checksum.h"
#include "unit.h"

#include <string.h>

static Backend as_made;
static int downloads;

static void count_download(Backend *be, void *to, const void *from, int64_t bytes) {
    downloads++;
    as_made.download(be, to, from, bytes);
}

TEST(a_checksum_waits_for_no_compute_and_is_that_of_the_bytes) {
    static const int64_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 * (1 << 20) + 77};
    Error err = {0};
    Backend *be = backend_cpu_create(PRECISION_FP32, 1, &err);
    assert_non_null(be);
    as_made = *be;
    be->download = count_download;
    Checksum *checksum = checksum_create(be);
    Crc64 crc = crc64_make();
    char *bytes = malloc((size_t)sizes[5]);
    assert_non_null(bytes);
    for (int64_t i = 0; i < sizes[5]; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t want = crc64_finish(&crc, crc64_add(&crc, 0, bytes, (size_t)sizes[i]), sizes[i]);
        assert_true(checksum_of(checksum, bytes, sizes[i]) == want);
        assert_int_equal(downloads, 0);
    }
    free(bytes);
    checksum_destroy(checksum);
    be->destroy(be);
}
