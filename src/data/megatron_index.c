// Reads and checks the index of Megatron-LM's token files. Sequences follow each other in the token file without gaps,
// so a data set needs nothing but the type and the number of tokens. The rest of the index is checked, because an index
// that does not fit its token file would otherwise train on tokens of the wrong width.
#include "megatron_index.h"

#include "base/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAGIC_BYTES = 9, HEADER_BYTES = 34, INDEX_PATH = 1024, CODE_INT32 = 4, CODE_UINT16 = 8 };

// Sequences whose length and offset are compared when the index is opened, a megabyte each. A longer index is checked
// up to there and at its end.
enum { SCAN_SEQUENCES = 1 << 20, PIECE = 1 << 12 };

typedef struct IndexFile {
    const char *path;
    int file;
    int64_t bytes, sequences, documents;
} IndexFile;

static int damaged_(const IndexFile *index, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s %s; copy it again together with its .bin", index->path, what);
}

static int read_header_(IndexFile *index, MegatronIndex *found, Error *err) {
    static const char magic[MAGIC_BYTES] = "MMIDIDX";
    unsigned char header[HEADER_BYTES];
    uint64_t version, counts[2];
    if (index->bytes < HEADER_BYTES) return damaged_(index, err, "is shorter than the header of an index");
    if (file_read(index->file, index->path, 0, header, sizeof header, err) != 0) return -1;
    memcpy(&version, header + MAGIC_BYTES, sizeof version);
    memcpy(counts, header + 18, sizeof counts);
    if (memcmp(header, magic, sizeof magic) != 0 || version != 1)
        return damaged_(index, err, "is not an index of Megatron-LM (MMIDIDX, version 1)");
    if (header[17] != CODE_INT32 && header[17] != CODE_UINT16)
        return error_set(err, EXIT_USAGE,
                         "%s says that tokens have type code %d; uint16 (8) and int32 (4) are read, so write the data "
                         "set again as one of these",
                         index->path, header[17]);
    found->width = header[17] == CODE_INT32 ? 4 : 2;
    // Each count is compared before they are multiplied: a damaged one may be close to 2^64.
    uint64_t most = (uint64_t)index->bytes;
    if (counts[0] > most || counts[1] > most) return damaged_(index, err, "counts more sequences than it has bytes");
    index->sequences = (int64_t)counts[0];
    index->documents = (int64_t)counts[1];
    int64_t expected = HEADER_BYTES + 12 * index->sequences + 8 * index->documents;
    if (index->bytes == expected || index->bytes == expected + index->sequences) return 0;
    return damaged_(index, err, index->bytes < expected ? "is truncated" : "is longer than its header says");
}

// Compares the sequences [first, last): each begins at byte `at`, where the one before it ends.
static int check_sequences_(const IndexFile *index, int64_t first, int64_t last, int width, int64_t *at, Error *err) {
    int32_t lengths[PIECE];
    int64_t offsets[PIECE];
    for (int64_t begin = first, count; begin < last; begin += count) {
        count = last - begin < PIECE ? last - begin : PIECE;
        int64_t of_lengths = HEADER_BYTES + 4 * begin, of_offsets = HEADER_BYTES + 4 * index->sequences + 8 * begin;
        if (file_read(index->file, index->path, of_lengths, lengths, 4 * count, err) != 0 ||
            file_read(index->file, index->path, of_offsets, offsets, 8 * count, err) != 0)
            return -1;
        for (int64_t i = 0; i < count; i++) {
            if (*at < 0) *at = offsets[i];
            if (lengths[i] < 0 || offsets[i] != *at || *at > INT64_MAX / 2)
                return damaged_(index, err, "has sequences that do not follow each other");
            *at += (int64_t)lengths[i] * width;
        }
    }
    return 0;
}

// Checks the sequences' bytes against the token file, and that documents span all sequences.
static int check_index_(const IndexFile *index, int width, int64_t bytes, Error *err) {
    int64_t sequences = index->sequences, end = 0, scanned = sequences < SCAN_SEQUENCES ? sequences : SCAN_SEQUENCES;
    int64_t bounds[2] = {0, sequences}, documents = HEADER_BYTES + 12 * sequences;
    if (check_sequences_(index, 0, scanned, width, &end, err) != 0) return -1;
    if (scanned < sequences) {
        end = -1; // where the last one begins is known from its offset alone
        if (check_sequences_(index, sequences - 1, sequences, width, &end, err) != 0) return -1;
    }
    if (end != bytes)
        return error_set(err, EXIT_USAGE,
                         "%s describes %lld bytes of tokens, and its .bin has %lld; copy both files again", index->path,
                         (long long)end, (long long)bytes);
    if (index->documents > 0 &&
        (file_read(index->file, index->path, documents, &bounds[0], 8, err) != 0 ||
         file_read(index->file, index->path, documents + 8 * (index->documents - 1), &bounds[1], 8, err) != 0))
        return -1;
    if (bounds[0] == 0 && bounds[1] == sequences) return 0;
    return damaged_(index, err, "has documents that do not span its sequences");
}

int megatron_index_read(MegatronIndex *found, const char *path, int64_t bytes, Error *err) {
    char name[INDEX_PATH];
    size_t length = strlen(path);
    if (length < 5 || length >= sizeof name || strcmp(path + length - 4, ".bin") != 0) return 0;
    snprintf(name, sizeof name, "%.*s.idx", (int)length - 4, path);
    if (access(name, F_OK) != 0) return 0;
    IndexFile index = {.path = name};
    Error wrong = {0};
    index.file = file_open(name, &index.bytes, &wrong);
    int status = index.file < 0 ? -1 : read_header_(&index, found, &wrong);
    if (status == 0) status = check_index_(&index, found->width, bytes, &wrong);
    if (index.file >= 0) close(index.file);
    if (status != 0) return error_set(err, EXIT_USAGE, "%s", wrong.text);
    found->tokens = bytes / found->width;
    return 1;
}
