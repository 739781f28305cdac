// Reads and checks a multiple-choice file once, keeps it in memory as it is on disk, and hands out its rows.
#include "evaluate.h"

#include "base/files.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 256 * 4, MAGIC = 20240522, VERSION_1 = 1, BEGIN_EXAMPLE = 65535, MOST_BYTES = 1 << 30 };

typedef struct Row {
    const uint16_t *context, *completion;
    int64_t context_tokens, completion_tokens;
} Row;

typedef struct Example {
    int64_t first_row, rows, label;
} Example;

struct Evaluation {
    char *file;
    int64_t seq_len, vocab;
    Row *rows;
    int64_t row_count, row_capacity;
    Example *examples;
    int64_t example_count, left_out;
};

// The part of the file that was not read yet, and the place for errors.
typedef struct Cursor {
    const char *key, *path;
    const uint16_t *at, *end;
    int64_t example;
} Cursor;

static int evaluate_damaged_(const Cursor *cursor, Error *err, const char *what) {
    return error_set(err, EXIT_USAGE, "%s: %s is damaged: example %lld %s; make it again with scripts/prepare_eval.py",
                     cursor->key, cursor->path, (long long)cursor->example, what);
}

// Reads a count and as many tokens. NULL with err.
static const uint16_t *tokens_(const Evaluation *evaluation, Cursor *cursor, int64_t *count, Error *err) {
    *count = cursor->at < cursor->end ? *cursor->at++ : 0;
    const uint16_t *tokens = cursor->at;
    if (*count == 0 || *count > cursor->end - cursor->at) {
        evaluate_damaged_(cursor, err,
                          *count == 0 ? "has a text without tokens" : "has more tokens than its size says");
        return NULL;
    }
    cursor->at += *count;
    for (int64_t i = 0; i < *count; i++) {
        if (tokens[i] < evaluation->vocab) continue;
        error_set(err, EXIT_USAGE,
                  "%s: %s: example %lld has token %d, outside a vocabulary of %lld; make the file with the model's "
                  "tokenizer",
                  cursor->key, cursor->path, (long long)cursor->example, tokens[i], (long long)evaluation->vocab);
        return NULL;
    }
    return tokens;
}

static Row *evaluation_add_row_(Evaluation *evaluation, Error *err) {
    if (evaluation->row_count == evaluation->row_capacity) {
        int64_t capacity = evaluation->row_capacity == 0 ? 64 : 2 * evaluation->row_capacity;
        Row *rows = realloc(evaluation->rows, (size_t)capacity * sizeof *rows);
        if (rows == NULL) {
            error_set(err, EXIT_FAILED, "out of host memory for %lld rows of an evaluation", (long long)capacity);
            return NULL;
        }
        evaluation->rows = rows;
        evaluation->row_capacity = capacity;
    }
    return &evaluation->rows[evaluation->row_count++];
}

// Reads the rows of an example whose header was read; the cursor ends at the example's end.
static int read_rows_(Evaluation *evaluation, Cursor *cursor, int64_t label, int64_t completions, Error *err) {
    Example example = {evaluation->row_count, completions, label};
    int64_t context_tokens;
    bool fits = true;
    const uint16_t *context = tokens_(evaluation, cursor, &context_tokens, err);
    if (context == NULL) return -1;
    for (int64_t i = 0; i < completions; i++) {
        Row *row = evaluation_add_row_(evaluation, err);
        if (row == NULL) return -1;
        *row = (Row){.context = context, .context_tokens = context_tokens};
        row->completion = tokens_(evaluation, cursor, &row->completion_tokens, err);
        if (row->completion == NULL) return -1;
        fits = fits && context_tokens + row->completion_tokens <= evaluation->seq_len + 1;
    }
    if (cursor->at != cursor->end) return evaluate_damaged_(cursor, err, "has fewer tokens than its size says");
    if (fits) {
        evaluation->examples[evaluation->example_count++] = example;
    } else {
        evaluation->row_count = example.first_row;
        evaluation->left_out++;
    }
    return 0;
}

static int read_example_(Evaluation *evaluation, Cursor *cursor, Error *err) {
    enum { START, BYTES, NUMBER, LABEL, COMPLETIONS, FIELDS };
    const uint16_t *fields = cursor->at, *file_end = cursor->end;
    if (file_end - fields < FIELDS) return evaluate_damaged_(cursor, err, "is cut off");
    if (fields[START] != BEGIN_EXAMPLE)
        return evaluate_damaged_(cursor, err, "does not begin where the one before it ends");
    if (fields[NUMBER] != cursor->example) return evaluate_damaged_(cursor, err, "has another number");
    if (fields[BYTES] % 2 != 0 || fields[BYTES] / 2 < FIELDS || fields[BYTES] / 2 > file_end - fields)
        return evaluate_damaged_(cursor, err, "has a size that cannot be");
    if (fields[COMPLETIONS] < 2) return evaluate_damaged_(cursor, err, "has fewer than two completions");
    if (fields[LABEL] >= fields[COMPLETIONS])
        return evaluate_damaged_(cursor, err, "has a label that names no completion");
    cursor->at += FIELDS;
    cursor->end = fields + fields[BYTES] / 2;
    int status = read_rows_(evaluation, cursor, fields[LABEL], fields[COMPLETIONS], err);
    cursor->end = file_end;
    return status;
}

static int evaluate_read_header_(const Cursor *cursor, const uint32_t *header, Error *err) {
    if (header[0] != MAGIC)
        return error_set(err, EXIT_USAGE,
                         "%s: %s is not an evaluation file: its first word is %u, expected %d; make one with "
                         "scripts/prepare_eval.py",
                         cursor->key, cursor->path, header[0], (int)MAGIC);
    if (header[1] != VERSION_1)
        return error_set(err, EXIT_USAGE, "%s: %s is of version %u, expected %d; make it again", cursor->key,
                         cursor->path, header[1], (int)VERSION_1);
    if (header[2] >= 1 && header[2] <= BEGIN_EXAMPLE + 1) return 0;
    return error_set(err, EXIT_USAGE, "%s: %s says that it has %u examples; 1 to %d are possible", cursor->key,
                     cursor->path, header[2], BEGIN_EXAMPLE + 1);
}

static int read_examples_(Evaluation *evaluation, const char *key, const char *path, int64_t bytes, Error *err) {
    const uint32_t *header = (const uint32_t *)(const void *)evaluation->file;
    const uint16_t *words = (const uint16_t *)(const void *)(evaluation->file + HEADER_BYTES);
    Cursor cursor = {key, path, words, words + (bytes - HEADER_BYTES) / 2, 0};
    if (evaluate_read_header_(&cursor, header, err) != 0) return -1;
    evaluation->examples = calloc(header[2], sizeof *evaluation->examples);
    if (evaluation->examples == NULL)
        return error_set(err, EXIT_FAILED, "%s: out of host memory for %u examples", key, header[2]);
    int64_t longest = 0;
    for (; cursor.example < header[2]; cursor.example++) {
        const uint16_t *begin = cursor.at;
        if (read_example_(evaluation, &cursor, err) != 0) return -1;
        if ((cursor.at - begin) * 2 > longest) longest = (cursor.at - begin) * 2;
    }
    if (cursor.at != cursor.end || bytes % 2 != 0 || longest != header[3])
        return error_set(err, EXIT_USAGE, "%s: %s is not as its header says (%u examples, the longest %u bytes): %s",
                         key, path, header[2], header[3], longest != header[3] ? "another is longest" : "more follows");
    if (evaluation->example_count > 0) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s: all %u examples of %s are longer than model.seq_len %lld; use a longer one, or leave it out",
                     key, header[2], path, (long long)evaluation->seq_len);
}

// Reads the whole file into memory. Returns its bytes, or -1 with err.
static int64_t read_file_(Evaluation *evaluation, const char *key, const char *path, Error *err) {
    int64_t bytes = 0;
    Error wrong = {0};
    evaluation->file = file_read_whole(path, MOST_BYTES, &bytes, &wrong);
    if (evaluation->file == NULL) return error_set(err, EXIT_USAGE, "%s: %s", key, wrong.text);
    if (bytes >= HEADER_BYTES) return bytes;
    return error_set(err, EXIT_USAGE, "%s: %s has not the size of an evaluation file; make one with %s", key, path,
                     "scripts/prepare_eval.py");
}

Evaluation *evaluation_open(const char *key, const char *path, int64_t seq_len, int64_t vocab, Error *err) {
    Evaluation *evaluation = calloc(1, sizeof *evaluation);
    if (evaluation == NULL) {
        error_set(err, EXIT_FAILED, "%s: out of host memory", key);
        return NULL;
    }
    evaluation->seq_len = seq_len;
    evaluation->vocab = vocab;
    int64_t bytes = read_file_(evaluation, key, path, err);
    if (bytes >= 0 && read_examples_(evaluation, key, path, bytes, err) == 0) return evaluation;
    evaluation_close(evaluation);
    return NULL;
}

void evaluation_close(Evaluation *evaluation) {
    if (evaluation == NULL) return;
    free(evaluation->file);
    free(evaluation->rows);
    free(evaluation->examples);
    free(evaluation);
}

int64_t evaluation_examples(const Evaluation *evaluation) {
    return evaluation->example_count;
}

int64_t evaluation_left_out(const Evaluation *evaluation) {
    return evaluation->left_out;
}

int64_t evaluation_rows(const Evaluation *evaluation) {
    return evaluation->row_count;
}

static int32_t row_token_(const Row *row, int64_t i) {
    if (i < row->context_tokens) return row->context[i];
    return i < row->context_tokens + row->completion_tokens ? row->completion[i - row->context_tokens] : 0;
}

void evaluation_fetch(const Evaluation *evaluation, int64_t row, int32_t *inputs, int32_t *targets, int64_t stride) {
    static const Row none = {NULL, NULL, 0, 0};
    const Row *from = row < evaluation->row_count ? &evaluation->rows[row] : &none;
    for (int64_t i = 0; i < evaluation->seq_len; i++) {
        inputs[i * stride] = row_token_(from, i);
        targets[i * stride] = row_token_(from, i + 1);
    }
}

double evaluation_mean(const Evaluation *evaluation, int64_t row, const float *losses, int64_t stride) {
    const Row *of = &evaluation->rows[row];
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
