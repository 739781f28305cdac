// config.json, transformers' description of a model: written into checkpoints and compared if a run starts from one.
#pragma once

#include "config/config.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// Writes config.json. end: id of the end-of-text token; -1: unknown.
void hf_config_write(const Config *config, int64_t end, FILE *file);

// Refuses, with code 2, a configuration that config.json cannot describe: writes the file, reads it back, and requires
// that every key of `model` is either unchanged or at its default. Called at the start of a run; otherwise a missing
// key would be noticed only after the training.
int hf_config_check(const Config *config, Error *err);

// Compares config.json in `dir` with the configuration. -1 with err (code 2) that lists every size and constant that
// differs, or names an unsupported setting of the file. exact: the sequence length must agree even if no tensor depends
// on it, unless checkpoint.changed is accept. A directory without the file passes; shapes are compared later.
int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err);

// The tokenizer files in a checkpoint, with which AutoTokenizer and generate() of transformers can load the folder.
// tokenizer_config.json is generated. The other file is a copy of the training data's tokenizer (dataset.h); if the
// data are bytes, it is generated too.
enum { HF_TOKENIZER_FILES = 2 };

typedef struct HfFile {
    const char *name; // file name in the checkpoint
    char *text;
    size_t length;
} HfFile;

typedef struct HfTokenizer {
    int count; // number of files; 0: the tokenizer of the data is unknown
    HfFile file[HF_TOKENIZER_FILES];
    int64_t end; // id of the end-of-text token; -1: unknown
} HfTokenizer;

// Reads or generates the files in memory. -1 with err if a file is missing or damaged; `count` is then 0.
int hf_tokenizer_load(HfTokenizer *tokenizer, const Config *config, Error *err);
void hf_tokenizer_free(HfTokenizer *tokenizer);

__END_DECLS
