// A small reader of SentencePiece models (Kudo and Richardson 2018): the pieces of a .model file, BPE and unigram segmentation, decoding.
//
// Why not the library: it has no C interface, and would bring the C++ runtime and its own protocol buffers into every build for the sake
// of prompts and samples. Tests hold this reader against the library, piece by piece.
//
// A .model is a protocol buffer; read here are the pieces (text, score, type), the model type, byte fallback, and how blanks are treated.
// Text is taken as it is: a model that was trained with Unicode normalization gets the same tokens for text that is normalized already.
#ifndef SENTENCEPIECE_H
#define SENTENCEPIECE_H

#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct SentencePiece SentencePiece;

// NULL with err (EXIT_USAGE): `name: path: what is wrong`.
SentencePiece *sentencepiece_open(const char *name, const char *path, Error *err);
void sentencepiece_close(SentencePiece *model);

int64_t sentencepiece_count(const SentencePiece *model);
int64_t sentencepiece_end(const SentencePiece *model); // the id of </s>; -1: none

// Ids of UTF-8 text: at most sentencepiece_capacity(length) of them. Returns how many, -1 when memory is out.
int64_t sentencepiece_capacity(int64_t length);
int64_t sentencepiece_encode(const SentencePiece *model, const char *text, int64_t length, int32_t *ids);

// Writes the text of ids; a blank that was put in front is taken away again. It need not be UTF-8.
void sentencepiece_decode(const SentencePiece *model, const int32_t *ids, int64_t count, FILE *out);

#endif
