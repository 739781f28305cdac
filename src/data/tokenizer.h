// Text to tokens and back, for prompts and samples.
//
// The tokenizer is sample.tokenizer; else the tokenizer that the side file of the training data names (dataset.h,
// written by scripts/prepare_data.py); else bytes if model.vocab is 257; else ids.
//   bytes     one token per byte; 256 is the end-of-text token
//   ids       a text is a list of token numbers, separated by blanks
//   a file    a tokenizer.json, or SentencePiece's *.model, through its own library
#pragma once

#include "config/config.h"
#include "dataset.h"

typedef enum TokenizerKind { TOKENIZER_BYTES, TOKENIZER_IDS, TOKENIZER_LIBRARY } TokenizerKind;

typedef struct Tokenizer {
    TokenizerKind kind;
    int64_t vocab;             // model.vocab
    int64_t end;               // the end-of-text token, which also begins every text; -1: unknown
    char file[SIDE_FILE_PATH]; // TOKENIZER_LIBRARY: path of the tokenizer's file
} Tokenizer;

typedef struct Tokens {
    int32_t *ids;
    int64_t count;
} Tokens;

// Reads the side file of the training data's first shard. Returns 1 if it was found, 0 if not, -1 with err if damaged.
int tokenizer_side(const Config *config, SideFile *side, Error *err);

// Chooses the run's tokenizer. -1 with err if its file cannot be used.
int tokenizer_open(Tokenizer *tokenizer, const Config *config, Error *err);

// Encodes a text. The empty text encodes to the end-of-text token, which also precedes every document. Returns 0,
// or -1 with err: the text is empty and that token unknown, a token is not in the vocabulary, or the text is not UTF-8.
// Errors start with `name` ("sample.prompt", "--generate"). The caller frees tokens->ids.
int tokenizer_encode(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err);

// Returns the text of tokens, safe to print: UTF-8, with \xNN for bytes that are not UTF-8 and for control characters
// other than newline and tab. The caller frees it.
char *tokenizer_decode(const Tokenizer *tokenizer, const Tokens *tokens);
