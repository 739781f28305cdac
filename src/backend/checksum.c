// Checksums of device memory, computed on the host. Pieces are copied on the message stream into buffers that fit a
// core's cache, each while the previous piece is summed. Nothing here waits for the compute stream: a collective on it
// may need a tensor partner, which in turn may need a message that this rank has yet to check and send.
#include "checksum.h"
#include "base/alloc.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

enum { PIECE_BYTES = 1 << 20 }; // stays in a core's cache between the copy and the sum

struct Checksum {
    Backend *be;
    Crc64 crc;
    Event *here[2];
    bool pinned;
    char piece[2][PIECE_BYTES];
};

int64_t checksum_bytes(void) { return sizeof(Checksum); }

Checksum *checksum_create(Backend *be) {
    Checksum *checksum = xmalloc(sizeof *checksum);
    Error unpinned; // ignored: without pinned memory copies are only slower
    checksum->be = be;
    for (int i = 0; i < 2; i++) checksum->here[i] = be->event_create(be);
    checksum->pinned = be->pin != NULL && be->pin(be, checksum->piece, sizeof checksum->piece, &unpinned) == 0;
    checksum->crc = crc64_make();
    return checksum;
}

void checksum_destroy(Checksum *checksum) {
    if (checksum == NULL) return;
    Backend *be = checksum->be;
    for (int i = 0; i < 2; i++) be->event_destroy(be, checksum->here[i]);
    if (checksum->pinned) be->unpin(be, checksum->piece);
    free(checksum);
}

const Crc64 *checksum_crc(const Checksum *checksum) { return &checksum->crc; }

Backend *checksum_backend(const Checksum *checksum) { return checksum->be; }

static int64_t piece_(int64_t rest) { return rest < PIECE_BYTES ? rest : PIECE_BYTES; }

// Starts the copy of piece i; does nothing after the last piece.
static void fetch_(Checksum *checksum, const void *memory, int64_t bytes, int64_t i) {
    Backend *be = checksum->be;
    int64_t at = i * PIECE_BYTES;
    if (at >= bytes) return;
    be->copy(be, STREAM_MESSAGES, checksum->piece[i % 2], (const char *)memory + at, piece_(bytes - at));
    be->event_record(be, checksum->here[i % 2], STREAM_MESSAGES);
}

uint64_t checksum_raw(Checksum *checksum, const void *memory, int64_t bytes) {
    uint64_t raw = 0;
    Backend *be = checksum->be;
    fetch_(checksum, memory, bytes, 0);
    for (int64_t i = 0; i * PIECE_BYTES < bytes; i++) {
        fetch_(checksum, memory, bytes, i + 1);
        while (!be->event_done(be, checksum->here[i % 2])) sched_yield();
        raw = crc64_add(&checksum->crc, raw, checksum->piece[i % 2], (size_t)piece_(bytes - i * PIECE_BYTES));
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
                     ": memory, a link or a network card on the way corrupts data; exclude the faulty host and "
                     "resume with --resume",
                     left, arrived);
}
