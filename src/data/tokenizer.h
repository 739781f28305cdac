// Text to tokens and back, for prompts and samples.
//
// Which tokenizer: sample.tokenizer, else what the side file of the training data says (side_file.h, which
// scripts/prepare_data.py writes), else bytes where model.vocab is 257, else none: then a text is its tokens' numbers.
//   bytes     one token a byte, 256 ends a text
//   ids       numbers with blanks between them, both ways
//   a file    a tokenizer.json, or SentencePiece's *.model, through its own library (tokenizer_library.h)
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "config/config.h"
#include "side_file.h"

typedef struct Tokenizer Tokenizer;

typedef struct Tokens {
    int32_t *ids;
    int64_t count;
} Tokens;

// What the first shard of the training data was made with. 1 found, 0 not, -1 with err where its side file is damaged.
int tokenizer_side(const Config *config, SideFile *side, Error *err);

// NULL with err.
Tokenizer *tokenizer_open(const Config *config, Error *err);
void tokenizer_close(Tokenizer *tokenizer);

// The token that ends a text and begins the next; -1: unknown.
int64_t tokenizer_end(const Tokenizer *tokenizer);

// Tokens of a text; an empty text gives the token that ends one, which is how texts begin. `name` ("sample.prompt",
// "--generate") begins the error: nothing to begin with, not in the vocabulary, not UTF-8. The caller frees
// tokens->ids. 0, or -1 with err.
int tokenizer_encode(const Tokenizer *tokenizer, const char *name, const char *text, Tokens *tokens, Error *err);

// Text of tokens, fit to be shown: UTF-8, with \xNN for bytes that are none and for control characters other than
// newline and tab. NULL with err when memory is out; the caller frees.
char *tokenizer_decode(const Tokenizer *tokenizer, const Tokens *tokens);

#endif
