// The tokenizer that a checkpoint carries, so that AutoTokenizer and generate() of transformers work on its folder:
// that of the training data (side_file.h), or for bytes one that is written here.
#pragma once

#include "config/config.h"

#include <stddef.h>

enum { HF_TOKENIZER_FILES = 2 };

typedef struct HfTokenizer {
    int count; // files; 0 if the data do not name their tokenizer
    struct {
        const char *name; // in the checkpoint
        char *text;
        size_t length;
    } file[HF_TOKENIZER_FILES];
    int64_t end; // the token that ends a text and begins the next; -1: unknown
} HfTokenizer;

// Reads the tokenizer's file into memory. -1 with err if it is missing or damaged: then checkpoints have no tokenizer.
int hf_tokenizer_load(HfTokenizer *tokenizer, const Config *config, Error *err);
void hf_tokenizer_free(HfTokenizer *tokenizer);
