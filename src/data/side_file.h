// The side file of a data set names its tokenizer (docs/data.md): NAME.json next to NAME_train_000.bin
// and NAME_val_000.bin. Shards from elsewhere may lack it.
#pragma once

#include "base/files.h"
#include "base/log.h"

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
