// Training text: token files of llm.c or Megatron-LM, one or many shards named by a glob, and the order of samples.
//
// A shard has a header of 256 int32: magic 20240520 version 1 (uint16 tokens, GPT-2 kind) or magic 20240801 version 7
// (uint32 tokens, Llama-3 kind); word 2 is the token count. A .bin with an .idx next to it is Megatron-LM's and has no
// header; for such a file the glob may omit .bin.
// A sample is seq_len + 1 tokens that start at a multiple of seq_len inside one shard: the first seq_len are inputs,
// the last seq_len the targets; shards never mix in a sample.
// Sample order: one pseudo-random permutation of all samples per (seed, epoch), computed and never stored, so that
// a position in training is one number: step k takes samples [k*B, (k+1)*B) of the endless sequence of epochs.
#pragma once

#include "base/crc64.h"
#include "base/files.h"
#include "base/log.h"

#include <glob.h>

// --- the side file of a data set names its tokenizer (docs/data.md): NAME.json next to NAME_train_000.bin and
// NAME_val_000.bin. Shards from elsewhere may lack it.

enum { SIDE_FILE_PATH = FILE_PATH, SIDE_FILE_WORD = 80 };

typedef struct SideFile {
    char path[SIDE_FILE_PATH];
    int64_t vocab;
    char tokenizer[SIDE_FILE_WORD]; // "bytes", "sentencepiece", "tokenizers"
    char sha256[SIDE_FILE_WORD];    // hash of the tokenizer's file; empty for bytes
    char file[SIDE_FILE_PATH];      // the tokenizer's file; empty for bytes
    int64_t eot;                    // end-of-text token; -1: unknown
} SideFile;

// Writes the path of a shard's side file. Returns false if the shard's name does not have the form above.
bool side_file_path(const char *shard, char path[SIDE_FILE_PATH]);

// Reads a side file. Returns 1 on success, 0 if the file is missing, -1 with err if it is damaged.
int side_file_read(SideFile *side, const char *path, Error *err);

// Returns whether two data sets have the same tokenizer.
bool side_file_same_tokenizer(const SideFile *a, const SideFile *b);

// --- the data set

typedef struct Shard {
    char *path;
    int file;                     // -1: not open
    int width;                    // bytes of one token: 2 or 4
    int64_t bytes, begin, tokens; // begin: offset of the first token
    int64_t first_sample;         // index of the shard's first sample in the data set
} Shard;

typedef struct Dataset {
    Shard *shards;
    int count;
    int64_t seq_len, vocab, samples, tokens;
    SideFile side[2]; // the first side file, and the first one with another tokenizer; vocab 0: not found
} Dataset;

// Lists the shards that a glob matches, in name order. Returns what glob() returns; if 0, call globfree.
int dataset_list(const char *pattern, glob_t *names);

// Opens every shard that the glob matches, in name order. Checks every shard's magic and version, its token count
// against the file's length, and the tokens in its first part against vocab. `key` ("data.train") names the setting in
// errors. Returns NULL with err if nothing matches, if a file cannot be read, has a bad magic or is truncated, if a
// token is out of range, if a side file is damaged or names a vocabulary larger than vocab, or if there are fewer than
// `need` samples of seq_len tokens.
Dataset *dataset_open(const char *key, const char *glob, int64_t seq_len, int64_t vocab, int64_t need, Error *err);
void dataset_close(Dataset *dataset);

// Returns the token that begins every document: the side file's, else the token that llm.c uses. -1: unknown.
int64_t dataset_end_of_text(const Dataset *dataset);
// Returns 1 if the first shard has this token among its first 16 Mi tokens, 0 if it has not, or -1 with err.
int dataset_has_token(const Dataset *dataset, int64_t token, Error *err);

// Adds the identity of the data to the checksum `raw` (crc64.h): for each shard, in order, its number of tokens and its
// first and last 64 KiB. File names are not included. -1 with err if a shard cannot be read.
int dataset_identify(const Dataset *dataset, const Crc64 *crc, uint64_t *raw, Error *err);

// Returns the sample (0 .. samples-1) at a position of training: the permutation keyed by (seed, position / samples).
int64_t dataset_shuffled(const Dataset *dataset, int64_t seed, int64_t position);

// Prefetches a sample: the kernel reads it into the page cache in the background.
void dataset_expect(const Dataset *dataset, int64_t sample);

// Copies sample number `sample` in file order: inputs (seq_len) and targets (seq_len), each written with a stride of
// `stride` elements (batches are sequence-major: token i of sequence j is at i * b + j). Either pointer may be NULL. -1
// with err naming the file: a token is not below vocab, or the file cannot be read or has become shorter.
int dataset_fetch(const Dataset *dataset, int64_t sample, int32_t *inputs, int32_t *targets, int64_t stride,
                  Error *err);

// Returns the image of an index under the permutation of [0, count) keyed by (seed, epoch). Public for tests.
int64_t permute_index(int64_t index, int64_t count, uint64_t seed, uint64_t epoch);
