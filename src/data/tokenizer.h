// Text to tokens and back, for prompts and samples.
//
// The tokenizer is sample.tokenizer; else the one that the side file of the training data names (side_file.h, written
// by scripts/prepare_data.py); else bytes if model.vocab is 257; else a text is the numbers of its tokens.
//   bytes     one token a byte, 256 ends a text
//   ids       numbers with blanks between them, both ways
//   a file    a tokenizer.json, or SentencePiece's *.model, through its own library
#pragma once

#include "config/config.h"
#include "side_file.h"

typedef struct Tokenizer Tokenizer;

typedef struct Tokens {
    int32_t *ids;
    int64_t count;
} Tokens;

// Finds the tokenizer of the first shard of the training data. Returns 1 if found, 0 if not, -1 with err if its side
// file is damaged.
int tokenizer_side(const Config *config, SideFile *side, Error *err);

// Opens the run's tokenizer. NULL with err.
Tokenizer *tokenizer_open(const Config *config, Error *err);
void tokenizer_close(Tokenizer *tokenizer);

// Returns the token that ends a text and begins the next; -1: unknown.
int64_t tokenizer_end(const Tokenizer *tokenizer);

// Encodes a text. The empty text encodes to the end-of-text token, which also precedes every document. Errors start
// with `name` ("sample.prompt", "--generate"): nothing to begin with, not in the vocabulary, not UTF-8. The caller
// frees tokens->ids. Returns 0, or -1 with err.
int tokenizer_encode(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err);

// Returns the text of tokens, safe to print: UTF-8, with \xNN for bytes that are not and for control characters other
// than newline and tab. The caller frees it.
char *tokenizer_decode(const Tokenizer *tokenizer, const Tokens *tokens);
