// Opens and checks shards, maps each position in the training run to a sample, and reads the sample's tokens. Only the
// list of shards is kept in memory: the order of samples is a keyed permutation, computed for one position at a time.
#include "dataset.h"
#include "base/alloc.h"

#include "base/json.h"
#include "base/random.h"
#include "base/units.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- the side file of a shard

// "data/own_train_000.bin" and "data/own_val_000.bin" have the side file "data/own.json".
bool side_file_path(const char *shard, char path[SIDE_FILE_PATH]) {
    static const char *const splits[] = {"_train_", "_val_"};
    const char *slash = strrchr(shard, '/'), *name = slash != NULL ? slash + 1 : shard, *end = NULL;
    for (int i = 0; i < 2; i++)
        for (const char *at = strstr(name, splits[i]); at != NULL; at = strstr(at + 1, splits[i])) {
            const char *number = at + strlen(splits[i]);
            size_t digits = strspn(number, "0123456789");
            if (digits > 0 && strcmp(number + digits, ".bin") == 0) end = at;
        }
    if (end == NULL || end == name || end - shard > SIDE_FILE_PATH - 6) return false;
    snprintf(path, SIDE_FILE_PATH, "%.*s.json", (int)(end - shard), shard);
    return true;
}

int side_file_read(SideFile *side, const char *path, Error *err) {
    memset(side, 0, sizeof *side);
    if (access(path, F_OK) != 0) return 0;
    snprintf(side->path, sizeof side->path, "%s", path);
    Json json;
    int status = json_read_file(&json, side->path, err);
    if (status == 0) {
        side->vocab = json_integer(json.root, "vocab", -1);
        snprintf(side->tokenizer, sizeof side->tokenizer, "%s", json_text(json.root, "tokenizer", ""));
        snprintf(side->sha256, sizeof side->sha256, "%s", json_text(json.root, "tokenizer_sha256", ""));
        side->eot = json_integer(json.root, "eot", -1);
        // The tokenizer's file must be a regular file in this folder: its bytes are copied into every checkpoint, and a
        // data set may come from an untrusted source.
        const char *name = json_text(json.root, "tokenizer_file", "");
        char folder[SIDE_FILE_PATH];
        struct stat there;
        Error wrong = {0};
        strcpy(folder, side->path);
        if (name[0] != '\0' && file_path_within(side->file, dirname(folder), name, &wrong) != 0)
            status = error_set(err, EXIT_FAILED, "tokenizer_file of %s: %s", side->path, wrong.text);
        else if (name[0] != '\0' && stat(side->file, &there) == 0 && !S_ISREG(there.st_mode))
            status = error_set(err, EXIT_FAILED, "%s: tokenizer_file: %s is not a regular file; use a regular file",
                               side->path, side->file);
        if (status == 0 && (side->vocab < 1 || side->tokenizer[0] == '\0'))
            status = error_set(err, EXIT_FAILED, "%s: tokenizer or vocab is missing", side->path);
        if (status == 0 && side->eot >= side->vocab)
            status = error_set(err, EXIT_FAILED, "%s: eot %" PRId64 " is outside its vocab of %" PRId64, side->path,
                               side->eot, side->vocab);
    }
    json_free(&json);
    return status == 0 ? 1 : -1;
}

bool side_file_same_tokenizer(const SideFile *a, const SideFile *b) {
    return strcmp(a->tokenizer, b->tokenizer) == 0 && strcmp(a->sha256, b->sha256) == 0;
}

// ---- token files

enum { HEADER_BYTES = 256 * 4, MAGIC_GPT2 = 20240520, MAGIC_LLAMA3 = 20240801, FEISTEL_ROUNDS = 8 };

// Tokens checked when a data set is opened: per shard SCAN_ALL / shards, but at least SCAN_LEAST and at most SCAN_MOST.
// Reading every token of a large data set at start would take minutes; other tokens are checked when they are fetched.
enum { SCAN_ALL = 64 << 20, SCAN_MOST = 16 << 20, SCAN_LEAST = 64 << 10 };

// PIECE_BYTES: bytes of tokens per read, on the stack. PREFIX_BYTES: size of a buffer for a path.
enum { PIECE_BYTES = 64 << 10, PREFIX_BYTES = 1024 };

// Up to PIECE_BYTES of tokens, as stored in the file. Files are read, not mapped: if a file shrinks during a run or its
// disk fails, a read returns an error, but access to a mapping kills the process.
typedef union TokenPiece {
    uint16_t narrow[PIECE_BYTES / 2];
    uint32_t wide[PIECE_BYTES / 4];
} TokenPiece;

// Reads tokens [first, last), or as many as fit in a piece. Returns the number read, or -1 with err.
static int64_t read_tokens_(const Shard *shard, int64_t first, int64_t last, TokenPiece *piece, Error *err) {
    int64_t count = min_i64(PIECE_BYTES / shard->width, last - first);
    int64_t offset = shard->begin + first * shard->width;
    return file_read(shard->file, shard->path, offset, piece, count * shard->width, err) == 0 ? count : -1;
}

static uint32_t token_(const Shard *shard, const TokenPiece *piece, int64_t index) {
    return shard->width == 2 ? piece->narrow[index] : piece->wide[index];
}

// ---- the index of a token file of Megatron-LM: NAME.idx next to NAME.bin (megatron/core/datasets/indexed_dataset.py)
//
//     offset  bytes          contents, little-endian
//     0       9              "MMIDIDX", two zero bytes
//     9       8              version, 1
//     17      1              type of a token: 4 int32, 8 uint16 (other codes are refused)
//     18      8, 8           number of sequences S, number of document bounds D
//     34      4 S            tokens of each sequence, int32
//             8 S            byte offset of each sequence in NAME.bin, int64
//             8 D            sequence with which each document begins, and S, int64
//             S or nothing   mode of each sequence
//
// Sequences follow each other in the token file without gaps, so a data set needs only the tokens' type and number. The
// rest of the index is checked, because a run with another file's index could train on tokens of the wrong width.

enum { MAGIC_BYTES = 9, INDEX_HEADER = 34, INDEX_PATH = 1024, CODE_INT32 = 4, CODE_UINT16 = 8 };

// When an index is opened, the lengths and offsets of its first SCAN_SEQUENCES sequences are checked. If the
// index is longer, its last sequence is checked, too.
enum { SCAN_SEQUENCES = 1 << 20, INDEX_PIECE = 1 << 12 };

typedef struct IndexFile {
    const char *path;
    int file;
    int64_t bytes, sequences;
} IndexFile;

static int index_read_(const IndexFile *index, int64_t offset, void *to, int64_t bytes, Error *err) {
    return file_read(index->file, index->path, offset, to, bytes, err);
}

static int index_damaged_(const IndexFile *index, Error *err) {
    return error_set(err, EXIT_USAGE,
                     "%s is not an index of Megatron-LM (MMIDIDX, version 1), or it is damaged; copy it again together "
                     "with its .bin",
                     index->path);
}

// Checks that sequences [first, last) are contiguous from byte *at (-1: from any byte); sets *at to their end.
static int check_sequences_(const IndexFile *index, int64_t first, int64_t last, int width, int64_t *at, Error *err) {
    int32_t lengths[INDEX_PIECE];
    int64_t offsets[INDEX_PIECE];
    for (int64_t begin = first, count; begin < last; begin += count) {
        count = min_i64(last - begin, INDEX_PIECE);
        if (index_read_(index, INDEX_HEADER + 4 * begin, lengths, 4 * count, err) != 0 ||
            index_read_(index, INDEX_HEADER + 4 * index->sequences + 8 * begin, offsets, 8 * count, err) != 0)
            return -1;
        for (int64_t i = 0; i < count; i++) {
            if (*at < 0) *at = offsets[i];
            if (lengths[i] < 0 || offsets[i] != *at || *at > INT64_MAX / 2) return index_damaged_(index, err);
            *at += (int64_t)lengths[i] * width;
        }
    }
    return 0;
}

// Reads the width of a token from an index. Checks its sequences against the `bytes` bytes of the token file, and that
// its documents span all sequences.
static int read_index_(IndexFile *index, int64_t bytes, int *width, Error *err) {
    static const char magic[MAGIC_BYTES] = "MMIDIDX";
    unsigned char header[INDEX_HEADER];
    int64_t version, sequences, documents;
    if (index->bytes < INDEX_HEADER) return index_damaged_(index, err);
    if (index_read_(index, 0, header, sizeof header, err) != 0) return -1;
    memcpy(&version, header + MAGIC_BYTES, sizeof version);
    memcpy(&sequences, header + 18, sizeof sequences);
    memcpy(&documents, header + 26, sizeof documents);
    // Check each count before multiplying: a damaged count may be close to 2^63, or negative.
    if (memcmp(header, magic, sizeof magic) != 0 || version != 1 || sequences < 0 || sequences > index->bytes ||
        documents < 0 || documents > index->bytes)
        return index_damaged_(index, err);
    int64_t bounds_at = INDEX_HEADER + 12 * sequences, end = bounds_at + 8 * documents;
    if (index->bytes != end && index->bytes != end + sequences) return index_damaged_(index, err);
    if (header[17] != CODE_INT32 && header[17] != CODE_UINT16)
        return error_set(err, EXIT_USAGE,
                         "%s has token type code %d, not 8 (uint16) or 4 (int32); write the data set again with one "
                         "of these types",
                         index->path, header[17]);
    *width = header[17] == CODE_INT32 ? 4 : 2;
    index->sequences = sequences;
    int64_t scanned = min_i64(sequences, SCAN_SEQUENCES), at = 0, bounds[2] = {0, sequences};
    if (check_sequences_(index, 0, scanned, *width, &at, err) != 0) return -1;
    if (scanned < sequences) at = -1; // sequences are skipped, so the last one may begin anywhere
    if (scanned < sequences && check_sequences_(index, sequences - 1, sequences, *width, &at, err) != 0) return -1;
    if (at != bytes)
        return error_set(err, EXIT_USAGE,
                         "%s describes %lld bytes of tokens, but its .bin has %lld; copy both files again", index->path,
                         (long long)at, (long long)bytes);
    if (documents > 0 && (index_read_(index, bounds_at, &bounds[0], 8, err) != 0 ||
                          index_read_(index, bounds_at + 8 * (documents - 1), &bounds[1], 8, err) != 0))
        return -1;
    return bounds[0] == 0 && bounds[1] == sequences ? 0 : index_damaged_(index, err);
}

// ---- opening --------------------------------------------------------------------------------------------------------

// Reads the type and number of tokens from the index next to the file if it exists and belongs to this file, else from
// the file's header.
static int shard_header_(Shard *shard, Error *err) {
    char name[INDEX_PATH];
    uint32_t header[3];
    size_t length = strlen(shard->path);
    bool named = length >= 5 && length < sizeof name && strcmp(shard->path + length - 4, ".bin") == 0;
    if (named) snprintf(name, sizeof name, "%.*s.idx", (int)length - 4, shard->path);
    if (named && access(name, F_OK) == 0) {
        IndexFile index = {.path = name};
        index.file = file_open(name, &index.bytes, err);
        if (index.file < 0) return err->code = EXIT_USAGE, -1;
        int status = read_index_(&index, shard->bytes, &shard->width, err);
        close(index.file);
        if (status == 0) shard->tokens = shard->bytes / shard->width;
        return status;
    }
    if (shard->bytes < HEADER_BYTES)
        return error_set(err, EXIT_USAGE, "%s has %" PRId64 " bytes, fewer than the %d of a token file's header; %s",
                         shard->path, shard->bytes, (int)HEADER_BYTES,
                         named ? "make it again with scripts/prepare_data.py"
                               : "name token files alone, such as *.bin");
    shard->begin = HEADER_BYTES;
    if (file_read(shard->file, shard->path, 0, header, sizeof header, err) != 0) return -1;
    bool gpt2 = header[0] == MAGIC_GPT2 && header[1] == 1, llama3 = header[0] == MAGIC_LLAMA3 && header[1] == 7;
    if (!gpt2 && !llama3)
        return error_set(err, EXIT_USAGE,
                         "%s is not a token file: it begins with %" PRIu32 ", version %" PRIu32
                         ", not with %d, version 1 (GPT-2 kind) or %d, version 7 (Llama-3 kind)%s; name token files "
                         "alone, such as *.bin, or make one with scripts/prepare_data.py",
                         shard->path, header[0], header[1], (int)MAGIC_GPT2, (int)MAGIC_LLAMA3,
                         named ? ", and there is no Megatron-LM .idx next to it" : "");
    shard->width = gpt2 ? 2 : 4;
    shard->tokens = header[2];
    int64_t expected = HEADER_BYTES + shard->tokens * shard->width, found = shard->bytes;
    if (expected != found)
        return error_set(err, EXIT_USAGE,
                         "%s is %s: its header promises %" PRId64 " tokens, that is %" PRId64
                         " bytes, but the file has %" PRId64 "; copy it or make it again",
                         shard->path, found < expected ? "truncated" : "too long", shard->tokens, expected, found);
    return 0;
}

static int out_of_range_(const Shard *shard, int64_t index, uint32_t token, int64_t vocab, int code, Error *err) {
    return error_set(err, code,
                     "%s: token %" PRId64 " is %" PRIu32 ", outside a vocabulary of %" PRId64
                     "; set model.vocab to that of the tokenizer that made the file",
                     shard->path, index, token, vocab);
}

static int shard_scan_(const Shard *shard, int64_t shards, int64_t vocab, Error *err) {
    TokenPiece piece;
    int64_t end = min_i64(max_i64(min_i64(SCAN_ALL / shards, SCAN_MOST), SCAN_LEAST), shard->tokens);
    for (int64_t at = 0, count; at < end; at += count) {
        count = read_tokens_(shard, at, end, &piece, err);
        if (count < 0) return -1;
        uint16_t narrow = 0; // same width as the tokens, so that the loop fills vectors
        uint32_t wide = 0;
        for (int64_t i = 0; i < count && shard->width == 2; i++)
            narrow = piece.narrow[i] > narrow ? piece.narrow[i] : narrow;
        for (int64_t i = 0; i < count && shard->width == 4; i++) wide = piece.wide[i] > wide ? piece.wide[i] : wide;
        if (narrow < vocab && wide < vocab) continue;
        int64_t i = 0;
        while (token_(shard, &piece, i) < vocab) i++;
        return out_of_range_(shard, at + i, token_(shard, &piece, i), vocab, EXIT_USAGE, err);
    }
    return 0;
}

static int shard_open_(Dataset *dataset, Shard *shard, Error *err) {
    if (shard->path[strlen(shard->path) - 1] == '/') // GLOB_MARK
        return error_set(err, EXIT_USAGE, "%s is a directory; name token files, such as %s*.bin", shard->path,
                         shard->path);
    shard->file = file_open(shard->path, &shard->bytes, err);
    if (shard->file < 0) return err->code = EXIT_USAGE, -1;
    if (shard_header_(shard, err) != 0 || shard_scan_(shard, dataset->count, dataset->vocab, err) != 0) return -1;
    // Samples come from all over the file, so read-ahead would be wasted.
    (void)posix_fadvise(shard->file, 0, 0, POSIX_FADV_RANDOM);
    shard->first_sample = dataset->samples;
    if (shard->tokens > 0) dataset->samples += (shard->tokens - 1) / dataset->seq_len;
    dataset->tokens += shard->tokens;
    return 0;
}

// Checks a shard's side file, unless its path equals `last`, the path of the previous side file. Updates `last`.
static int check_side_(Dataset *dataset, const char *shard, char last[SIDE_FILE_PATH], Error *err) {
    SideFile side;
    Error damage = {0};
    char path[SIDE_FILE_PATH];
    if (!side_file_path(shard, path) || strcmp(path, last) == 0) return 0;
    strcpy(last, path);
    int found = side_file_read(&side, path, &damage);
    if (found < 0) return error_set(err, EXIT_USAGE, "%s; make the data set again, or remove this file", damage.text);
    if (found == 0) return 0;
    if (dataset->side[0].vocab == 0) dataset->side[0] = side;
    else if (dataset->side[1].vocab == 0 && !side_file_same_tokenizer(&dataset->side[0], &side))
        dataset->side[1] = side;
    if (side.vocab <= dataset->vocab) return 0;
    return error_set(err, EXIT_USAGE,
                     "the tokenizer (%s) has a vocabulary of %" PRId64
                     " according to %s, more than model.vocab %" PRId64 "; set model.vocab to %" PRId64,
                     side.tokenizer, side.vocab, side.path, dataset->vocab, side.vocab);
}

int dataset_list(const char *pattern, glob_t *names) {
    char prefix[PREFIX_BYTES]; // Megatron-LM's name of a data set: NAME for NAME.bin and NAME.idx
    // The brackets in the name of a file that exists are part of the name, unless the pattern matches other files.
    int status = glob(pattern, GLOB_MARK | (access(pattern, F_OK) == 0 ? GLOB_NOCHECK : 0), NULL, names);
    if (status != GLOB_NOMATCH || snprintf(prefix, sizeof prefix, "%s.bin", pattern) >= (int)sizeof prefix)
        return status;
    return glob(prefix, GLOB_MARK | (access(prefix, F_OK) == 0 ? GLOB_NOCHECK : 0), NULL, names);
}

static int dataset_open_(Dataset *dataset, const char *pattern, int64_t need, Error *err) {
    enum { MOST_WILD = 4 };
    glob_t names;
    int wild = 0;
    // 1. Refuse patterns whose search would take hours: each */../ multiplies the matches by the number of folders.
    for (const char *at = pattern; *at != '\0'; at += strspn(at, "/")) {
        size_t length = strcspn(at, "/");
        bool up = wild > 0 && length == 2 && strncmp(at, "..", 2) == 0;
        if (strcspn(at, "*?[") < length) wild++;
        if (up || wild > MOST_WILD)
            return error_set(err, EXIT_USAGE,
                             "%.200s has %s; name the folder, or a pattern for the files of one folder", pattern,
                             up ? "/../ after a wildcard" : "wildcards in more than 4 parts of the path");
        at += length;
    }
    // 2. List the shards.
    int status = dataset_list(pattern, &names);
    if (status == GLOB_NOMATCH)
        return error_set(err, EXIT_USAGE,
                         "no file matches %s; make the tiny data set with `make data`, or one of your own with "
                         "scripts/prepare_data.py FILE...",
                         pattern);
    if (status != 0) return error_set(err, EXIT_USAGE, "cannot list the files that match %s", pattern);
    dataset->shards = xcalloc(names.gl_pathc, sizeof *dataset->shards);
    dataset->count = (int)names.gl_pathc;
    for (int i = 0; i < dataset->count; i++)
        dataset->shards[i] = (Shard){.file = -1, .path = xstrdup(names.gl_pathv[i])};
    globfree(&names);
    // 3. Every shard keeps a file open, so raise the limit on open files by the number of shards.
    int64_t allowed = file_limit(0);
    if (allowed < INT64_MAX) file_limit(allowed + dataset->count); // if this fails, open reports it
    // 4. Open them, and check that they have enough sequences.
    char last[SIDE_FILE_PATH] = "";
    for (int i = 0; i < dataset->count; i++)
        if (check_side_(dataset, dataset->shards[i].path, last, err) != 0 ||
            shard_open_(dataset, &dataset->shards[i], err) != 0)
            return -1;
    if (need < 1) need = 1;
    if (dataset->samples >= need) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s has %" PRId64 " tokens in %d file%s, enough for %" PRId64 " sequences of %" PRId64 "; %" PRId64
                     " sequences are needed, at least %" PRId64 " tokens",
                     pattern, dataset->tokens, dataset->count, dataset->count == 1 ? "" : "s", dataset->samples,
                     dataset->seq_len, need, need * dataset->seq_len + 1);
}

Dataset *dataset_open(const char *key, const char *glob, int64_t seq_len, int64_t vocab, int64_t need, Error *err) {
    Dataset *dataset = xcalloc(1, sizeof *dataset);
    *dataset = (Dataset){.seq_len = seq_len, .vocab = vocab};
    Error wrong = {0};
    if (dataset_open_(dataset, glob, need, &wrong) == 0) return dataset;
    dataset_close(dataset);
    return error_null(err, wrong.code, "%s: %s", key, wrong.text);
}

void dataset_close(Dataset *dataset) {
    if (dataset == NULL) return;
    for (int i = 0; i < dataset->count; i++) {
        if (dataset->shards[i].file >= 0) close(dataset->shards[i].file);
        free(dataset->shards[i].path);
    }
    free_all(dataset->shards, dataset);
}

// Without a side file, every document in a shard of llm.c begins with token 50256 (GPT-2 kind) or 128000 (Llama-3
// kind). A vocabulary of 257 means that the tokens are bytes; documents then begin with token 256.
int64_t dataset_end_of_text(const Dataset *dataset) {
    const Shard *first = &dataset->shards[0];
    if (dataset->side[0].vocab != 0) return dataset->side[0].eot;
    int64_t token = first->width == 4 ? 128000 : dataset->vocab == 257 ? 256 : 50256;
    return first->begin == HEADER_BYTES && token < dataset->vocab ? token : -1;
}

int dataset_has_token(const Dataset *dataset, int64_t token, Error *err) {
    const Shard *first = &dataset->shards[0];
    int64_t end = min_i64(SCAN_MOST, first->tokens);
    TokenPiece piece;
    for (int64_t at = 0, count; at < end; at += count) {
        count = read_tokens_(first, at, end, &piece, err);
        if (count < 0) return -1;
        for (int64_t i = 0; i < count; i++)
            if (token_(first, &piece, i) == token) return 1;
    }
    return 0;
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Returns the last shard that begins at or before the sample. That is never a shard too short for a sample, because the
// next shard begins at the same sample.
static const Shard *shard_of_(const Dataset *dataset, int64_t sample) {
    int low = 0, high = dataset->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (dataset->shards[middle].first_sample <= sample) low = middle;
        else high = middle - 1;
    }
    return &dataset->shards[low];
}

void dataset_expect(const Dataset *dataset, int64_t sample) {
    const Shard *shard = shard_of_(dataset, sample);
    int64_t width = shard->width, start = (sample - shard->first_sample) * dataset->seq_len;
    (void)posix_fadvise(shard->file, shard->begin + start * width, (dataset->seq_len + 1) * width, POSIX_FADV_WILLNEED);
}

int dataset_fetch(const Dataset *dataset, int64_t sample, int32_t *inputs, int32_t *targets, int64_t stride,
                  Error *err) {
    assert(sample >= 0 && sample < dataset->samples);
    const Shard *shard = shard_of_(dataset, sample);
    int64_t start = (sample - shard->first_sample) * dataset->seq_len, length = dataset->seq_len + 1;
    TokenPiece piece;
    for (int64_t at = 0, count; at < length; at += count) {
        count = read_tokens_(shard, start + at, start + length, &piece, err);
        if (count < 0) return -1;
        for (int64_t j = 0, i = at; j < count; j++, i++) {
            uint32_t token = token_(shard, &piece, j);
            if (token >= dataset->vocab)
                return out_of_range_(shard, start + i, token, dataset->vocab, EXIT_FAILED, err);
            if (inputs != NULL && i < dataset->seq_len) inputs[i * stride] = (int32_t)token;
            if (targets != NULL && i > 0) targets[(i - 1) * stride] = (int32_t)token;
        }
    }
    return 0;
}

// ---- order ----------------------------------------------------------------------------------------------------------

// A Feistel network permutes [0, 4^half). Its round function is the finalizer of SplitMix64 (Steele et al., OOPSLA
// 2014), which mixes all bits of its input.
int64_t permute_index(int64_t index, int64_t count, uint64_t seed, uint64_t epoch) {
    if (count <= 1) return 0;
    int half = 1;
    while (half < 31 && (int64_t)1 << (2 * half) < count) half++;
    // ~seed, because the initialization of weights uses the seed itself as its key.
    uint64_t keys[FEISTEL_ROUNDS];
    for (int round = 0; round < FEISTEL_ROUNDS; round++) keys[round] = random_bits(~seed, epoch, (uint64_t)round);
    // Repeat the network until the value is below count; the result is still a bijection of [0, count). The domain is
    // smaller than 4 * count, so a few steps suffice.
    uint64_t value = (uint64_t)index, mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = value >> half, right = value & mask;
        for (int round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t x = right + keys[round], before = left;
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
            x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
            left = right;
            right = before ^ ((x ^ (x >> 31)) & mask);
        }
        value = left << half | right;
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}

int dataset_identify(const Dataset *dataset, const Crc64 *crc, uint64_t *raw, Error *err) {
    for (int i = 0; i < dataset->count; i++) {
        const Shard *shard = &dataset->shards[i];
        int64_t last = max_i64(0, shard->tokens - PIECE_BYTES / shard->width);
        const int64_t parts[2] = {0, last};
        *raw = crc64_add(crc, *raw, &shard->tokens, sizeof shard->tokens);
        for (int part = 0; part < 2; part++) {
            TokenPiece piece;
            int64_t count = read_tokens_(shard, parts[part], shard->tokens, &piece, err);
            if (count < 0) return -1;
            *raw = crc64_add(crc, *raw, &piece, (size_t)(count * shard->width));
        }
    }
    return 0;
}

int64_t dataset_shuffled(const Dataset *dataset, int64_t seed, int64_t position) {
    return permute_index(position % dataset->samples, dataset->samples, (uint64_t)seed,
                         (uint64_t)(position / dataset->samples));
}
