// Multiple choice by likelihood (HellaSwag; Zellers et al. 2019), from llm.c's evaluation files. Among several
// completions of a context, the model chooses the completion with the lowest mean loss per token.
//
// The file begins with 256 int32: 20240522, 1, number of examples, size of the longest in bytes. Each example is a list
// of uint16: 65535, its size in bytes, its number, the right completion, the number of completions; then the context
// and each completion, as a count and that many tokens. Version 2 is ours, for vocabularies above 65535; it has
// the same words as uint32.
// A *row* is a context followed by one completion, one sequence for the model; an example's rows are consecutive.
#pragma once

#include "base/log.h"

typedef struct ExampleRow {
    const uint32_t *context, *completion; // in Evaluation.words
    int64_t context_tokens, completion_tokens;
} ExampleRow;

// `rows` rows from first_row on, of which row `label` (from 0) has the right completion.
typedef struct Example {
    int64_t first_row, rows, label;
} Example;

typedef struct Evaluation {
    int64_t seq_len, vocab;
    int64_t examples, left_out, rows; // examples kept; examples left out; rows of the kept examples
    uint32_t *words;                  // words of the file, after its header
    Example *example;
    ExampleRow *row;
} Evaluation;

// Reads and checks the file. Examples with a row of more than seq_len + 1 tokens are left out. Errors begin with `key`
// (code 2): no such file, another kind of file, a damaged example, a token outside the vocabulary, no example left.
Evaluation *evaluation_open(const char *key, const char *path, int64_t seq_len, int64_t vocab, Error *err);
void evaluation_close(Evaluation *evaluation);

// Writes a row as strided inputs and targets of seq_len tokens, and zeros after its end and for nonexistent rows.
void evaluation_fetch(const Evaluation *evaluation, int64_t row, int32_t *inputs, int32_t *targets, int64_t stride);

// Returns the mean loss over the tokens of a row's completion; losses has seq_len positions, `stride` apart.
double evaluation_mean(const Evaluation *evaluation, int64_t row, const float *losses, int64_t stride);

// Returns the number of examples in which the model chooses the right completion: the one with the lowest mean loss, or
// the first of several with the same lowest mean. `means` has one value per row.
int64_t evaluation_correct(const Evaluation *evaluation, const double *means);
