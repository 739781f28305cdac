// The side file of a data set: which tokenizer made its shards (docs/data.md). It stands beside them: NAME.json for
// NAME_train_000.bin and NAME_val_000.bin. Shards from elsewhere have none, and that is fine.
#ifndef SIDE_FILE_H
#define SIDE_FILE_H

#include "base/log.h"

#include <stdint.h>

enum { SIDE_FILE_PATH = 1024, SIDE_FILE_WORD = 80 };

typedef struct SideFile {
    char path[SIDE_FILE_PATH];
    int64_t vocab;
    char tokenizer[SIDE_FILE_WORD]; // "bytes", "sentencepiece", "tokenizers"
    char sha256[SIDE_FILE_WORD];    // of the tokenizer's file; empty for bytes
    char file[SIDE_FILE_PATH];      // the tokenizer's file; empty for bytes
    int64_t eot;                    // the token that ends a text; -1: not known
} SideFile;

// Where the side file of a shard would be. False where the shard's name is not made as above.
bool side_file_path(const char *shard, char path[SIDE_FILE_PATH]);

// 1 read, 0 there is none, -1 with err where it is there and damaged.
int side_file_read(SideFile *side, const char *path, Error *err);

// Do two data sets have the same tokenizer?
bool side_file_same_tokenizer(const SideFile *a, const SideFile *b);

#endif
