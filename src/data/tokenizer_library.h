// Tokenizers that have a library of their own (tokenizer.json, SentencePiece's *.model), through scripts/tokens.py: one
// Python process per request, which ends before the call returns. Normalization, special tokens and merges are the
// library's. Nothing of it is linked, and a run that asks for no text never starts it.
#ifndef TOKENIZER_LIBRARY_H
#define TOKENIZER_LIBRARY_H

#include "base/log.h"

#include <stddef.h>

// Runs `tokens.py ACTION --tokenizer FILE` with `input` on its standard input and returns its output with a NUL.
//   describe  the vocabulary and the token that ends a text (-1: none), as two numbers
//   encode    text to ids with blanks between them
//   decode    ids to text
// NULL with err (EXIT_USAGE): the library's error, or that Python, the script or the library is missing. The caller
// frees the result.
char *tokenizer_library_run(const char *action, const char *file, const char *input, size_t length, Error *err);

#endif
