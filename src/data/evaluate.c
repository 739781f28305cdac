// Reads and checks a multiple-choice file once, keeps its words in memory, and hands out its rows. In the file, words
// have 16 bits in version 1 and 32 bits in version 2; in memory all have 32 bits.
#include "evaluate.h"

#include "base/alloc.h"
#include "base/files.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 256 * 4, MAGIC = 20240522, VERSION_16 = 1, VERSION_32 = 2, MOST_BYTES = 1 << 30 };
enum { BEGIN_EXAMPLE = 65535, MOST_EXAMPLES = 65536 };

typedef struct ExampleRow {
    const uint32_t *context, *completion;
    int64_t context_tokens, completion_tokens;
} ExampleRow;

typedef struct Example {
    int64_t first_row, rows, label;
} Example;

struct Evaluation {
    uint32_t *words; // words of the file, after its header
    int64_t seq_len, vocab;
    ExampleRow *rows;
    int64_t row_count;
    Example *examples;
    int64_t example_count, left_out;
};

// The unread part of the file, and the position for error messages.
typedef struct Cursor {
    const char *key, *path;
    const uint32_t *at, *end;
    int64_t example;
    int width; // bytes of a word in the file
} Cursor;

static int damaged_(const Cursor *cursor, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s: %s is damaged: example %lld %s; make it again with scripts/prepare_eval.py",
                     cursor->key, cursor->path, (long long)cursor->example, what);
}

// Reads a count and that many tokens. Returns the tokens, or NULL with err.
static const uint32_t *tokens_(const Evaluation *evaluation, Cursor *cursor, int64_t *count, Error *err) {
    *count = cursor->at < cursor->end ? *cursor->at++ : 0;
    const uint32_t *tokens = cursor->at;
    if (*count == 0 || *count > cursor->end - cursor->at) {
        damaged_(cursor, err, *count == 0 ? "has a text without tokens" : "has more tokens than its size says");
        return NULL;
    }
    cursor->at += *count;
    for (int64_t i = 0; i < *count; i++) {
        if (tokens[i] < evaluation->vocab) continue;
        error_set(err, EXIT_USAGE,
                  "%s: %s: example %lld has token %u, outside a vocabulary of %lld; make the file with the model's "
                  "tokenizer",
                  cursor->key, cursor->path, (long long)cursor->example, tokens[i], (long long)evaluation->vocab);
        return NULL;
    }
    return tokens;
}

// Reads an example and its rows. Leaves out an example with a row that is too long.
static int read_example_(Evaluation *evaluation, Cursor *cursor, Error *err) {
    enum { START, BYTES, NUMBER, LABEL, COMPLETIONS, FIELDS };
    const uint32_t *fields = cursor->at, *file_end = cursor->end;
    if (file_end - fields < FIELDS) return damaged_(cursor, err, "is cut off");
    if (fields[START] != BEGIN_EXAMPLE) return damaged_(cursor, err, "does not begin where the previous example ends");
    if (fields[NUMBER] != cursor->example) return damaged_(cursor, err, "has the wrong number");
    int64_t words = fields[BYTES] / (uint32_t)cursor->width;
    if (words * cursor->width != fields[BYTES] || words < FIELDS || words > file_end - fields)
        return damaged_(cursor, err, "has an impossible size");
    if (fields[COMPLETIONS] < 2) return damaged_(cursor, err, "has fewer than two completions");
    if (fields[LABEL] >= fields[COMPLETIONS])
        return damaged_(cursor, err, "has a label that is not one of its completions");
    cursor->at += FIELDS;
    cursor->end = fields + words; // the example's end, until its texts are read
    Example example = {evaluation->row_count, fields[COMPLETIONS], fields[LABEL]};
    int64_t context_tokens;
    bool fits = true;
    const uint32_t *context = tokens_(evaluation, cursor, &context_tokens, err);
    if (context == NULL) return -1;
    for (int64_t i = 0; i < example.rows; i++) {
        evaluation->rows = xgrow(evaluation->rows, evaluation->row_count, sizeof *evaluation->rows);
        ExampleRow *row = &evaluation->rows[evaluation->row_count++];
        *row = (ExampleRow){.context = context, .context_tokens = context_tokens};
        row->completion = tokens_(evaluation, cursor, &row->completion_tokens, err);
        if (row->completion == NULL) return -1;
        fits = fits && context_tokens + row->completion_tokens <= evaluation->seq_len + 1;
    }
    if (cursor->at != cursor->end) return damaged_(cursor, err, "has fewer tokens than its size says");
    cursor->end = file_end;
    if (fits) {
        evaluation->examples[evaluation->example_count++] = example;
    } else {
        evaluation->row_count = example.first_row;
        evaluation->left_out++;
    }
    return 0;
}

static int read_examples_(Evaluation *evaluation, const char *key, const char *path, const char *file, int64_t bytes,
                          Error *err) {
    const uint32_t *header = (const uint32_t *)(const void *)file;
    Cursor cursor = {.key = key, .path = path};
    if (header[0] != MAGIC)
        return error_set(err, EXIT_USAGE,
                         "%s: %s is not an evaluation file: its first word is %u, expected %d; make one with "
                         "scripts/prepare_eval.py",
                         key, path, header[0], (int)MAGIC);
    if (header[1] != VERSION_16 && header[1] != VERSION_32)
        return error_set(err, EXIT_USAGE, "%s: %s has version %u, expected %d or %d; make it again", key, path,
                         header[1], (int)VERSION_16, (int)VERSION_32);
    if (header[2] < 1 || header[2] > MOST_EXAMPLES)
        return error_set(err, EXIT_USAGE, "%s: %s has %u examples by its header; 1 to %d are supported", key, path,
                         header[2], (int)MOST_EXAMPLES);
    cursor.width = header[1] == VERSION_16 ? 2 : 4;
    const void *words = file + HEADER_BYTES;
    const uint16_t *narrow = words;
    int64_t count = (bytes - HEADER_BYTES) / cursor.width;
    evaluation->words = xmalloc((size_t)(count + 1) * sizeof *evaluation->words);
    if (cursor.width == 4) memcpy(evaluation->words, words, (size_t)count * 4);
    for (int64_t i = 0; cursor.width == 2 && i < count; i++) evaluation->words[i] = narrow[i];
    cursor.at = evaluation->words;
    cursor.end = cursor.at + count;
    evaluation->examples = xcalloc(header[2], sizeof *evaluation->examples);
    int64_t longest = 0;
    for (; cursor.example < header[2]; cursor.example++) {
        const uint32_t *begin = cursor.at;
        if (read_example_(evaluation, &cursor, err) != 0) return -1;
        if ((cursor.at - begin) * cursor.width > longest) longest = (cursor.at - begin) * cursor.width;
    }
    if (cursor.at != cursor.end || bytes % cursor.width != 0 || longest != header[3])
        return error_set(err, EXIT_USAGE, "%s: %s does not match its header (%u examples, the longest %u bytes): %s",
                         key, path, header[2], header[3],
                         longest != header[3] ? "the longest example has a different size" : "extra data");
    if (evaluation->example_count > 0) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: all %u examples of %s are longer than model.seq_len %lld; increase it, or remove the key",
                     key, header[2], path, (long long)evaluation->seq_len);
}

Evaluation *evaluation_open(const char *key, const char *path, int64_t seq_len, int64_t vocab, Error *err) {
    Evaluation *evaluation = xcalloc(1, sizeof *evaluation);
    int64_t bytes = 0;
    int status;
    Error wrong = {0};
    char *file = file_read_whole(path, MOST_BYTES, &bytes, &wrong);
    *evaluation = (Evaluation){.seq_len = seq_len, .vocab = vocab};
    if (file == NULL) status = error_set(err, EXIT_USAGE, "%s: %s", key, wrong.text);
    else if (bytes < HEADER_BYTES)
        status = error_set(err, EXIT_USAGE, "%s: %s is too short for an evaluation file; make one with %s", key, path,
                           "scripts/prepare_eval.py");
    else status = read_examples_(evaluation, key, path, file, bytes, err);
    free(file);
    if (status == 0) return evaluation;
    evaluation_close(evaluation);
    return NULL;
}

void evaluation_close(Evaluation *evaluation) {
    if (evaluation == NULL) return;
    free_all(evaluation->words, evaluation->rows, evaluation->examples, evaluation);
}

int64_t evaluation_examples(const Evaluation *evaluation) { return evaluation->example_count; }

int64_t evaluation_left_out(const Evaluation *evaluation) { return evaluation->left_out; }

int64_t evaluation_rows(const Evaluation *evaluation) { return evaluation->row_count; }

static int32_t row_token_(const ExampleRow *row, int64_t i) {
    if (i < row->context_tokens) return (int32_t)row->context[i];
    return i < row->context_tokens + row->completion_tokens ? (int32_t)row->completion[i - row->context_tokens] : 0;
}

void evaluation_fetch(const Evaluation *evaluation, int64_t row, int32_t *inputs, int32_t *targets, int64_t stride) {
    static const ExampleRow none = {NULL, NULL, 0, 0};
    const ExampleRow *from = row < evaluation->row_count ? &evaluation->rows[row] : &none;
    for (int64_t i = 0; i < evaluation->seq_len; i++) {
        inputs[i * stride] = row_token_(from, i);
        targets[i * stride] = row_token_(from, i + 1);
    }
}

double evaluation_mean(const Evaluation *evaluation, int64_t row, const float *losses, int64_t stride) {
    const ExampleRow *of = &evaluation->rows[row];
    double sum = 0.0;
    // The last token of the context predicts the first one of the completion.
    for (int64_t i = 0; i < of->completion_tokens; i++) sum += losses[(of->context_tokens - 1 + i) * stride];
    return sum / (double)of->completion_tokens;
}

int64_t evaluation_correct(const Evaluation *evaluation, const double *means) {
    int64_t correct = 0;
    for (int64_t i = 0; i < evaluation->example_count; i++) {
        const Example *example = &evaluation->examples[i];
        const double *of = means + example->first_row;
        int64_t best = 0;
        for (int64_t k = 1; k < example->rows; k++)
            if (of[k] < of[best]) best = k;
        correct += best == example->label;
    }
    return correct;
}
