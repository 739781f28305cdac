// config.json, by which transformers knows a model: written into checkpoints, and compared if a run starts from one.
#pragma once

#include "config/config.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

// Writes config.json. end: the token that ends a text and begins the next; -1: unknown.
void hf_config_write(const Config *config, int64_t end, FILE *file);

// Refuses, with code 2, a configuration whose config.json would describe another model: writes it, reads it back, and
// requires that every key of `model` either comes back as it was or has its default. For the start of a run, since a
// checkpoint that says nothing of a key would be found out after the training.
int hf_config_check(const Config *config, Error *err);

// Compares config.json in `dir` with the configuration. -1 with err (code 2) that lists every size and constant that
// differs, or names a computation of the file's model that this program lacks. exact: the sequence length must agree
// even if no tensor depends on it. A directory without the file passes; the tensors' shapes are compared later.
int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err);

// The tokenizer that a checkpoint carries, so that AutoTokenizer and generate() of transformers work on its folder:
// that of the training data (side_file.h), or for bytes one that is written here.
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

__END_DECLS
