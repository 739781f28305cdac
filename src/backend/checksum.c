// Checksums of device memory, worked out on the host: pieces are downloaded into a buffer that fits a core's cache.
#include "checksum.h"
#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PIECE_BYTES = 1 << 20 }; // stays in a core's cache between the copy and the sum

struct Checksum {
    Backend *be;
    Crc64 crc;
    char piece[PIECE_BYTES];
};

int64_t checksum_bytes(void) {
    return sizeof(Checksum);
}

Checksum *checksum_create(Backend *be) {
    Checksum *checksum = xmalloc(sizeof *checksum);
    checksum->be = be;
    crc64_init(&checksum->crc);
    return checksum;
}

void checksum_destroy(Checksum *checksum) {
    free(checksum);
}

const Crc64 *checksum_crc(const Checksum *checksum) {
    return &checksum->crc;
}

uint64_t checksum_raw(Checksum *checksum, const void *memory, int64_t bytes) {
    uint64_t raw = 0;
    for (int64_t at = 0; at < bytes; at += PIECE_BYTES) {
        int64_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        checksum->be->download(checksum->be, checksum->piece, (const char *)memory + at, count);
        raw = crc64_add(&checksum->crc, raw, checksum->piece, (size_t)count);
    }
    return raw;
}

uint64_t checksum_of(Checksum *checksum, const void *memory, int64_t bytes) {
    return crc64_finish(&checksum->crc, checksum_raw(checksum, memory, bytes), bytes);
}

int checksum_compare(uint64_t left, uint64_t arrived, Error *err) {
    if (left == arrived) return 0;
    return error_set(err, EXIT_FAILED,
                     "it left with checksum %016" PRIx64 " and arrived with %016" PRIx64
                     ": memory, a link or a network card between the two changes bits; leave that host out and go on "
                     "with --resume",
                     left, arrived);
}
