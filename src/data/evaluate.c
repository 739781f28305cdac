// Reads and checks a multiple-choice file once, keeps its words in memory, and hands out its rows. In the file, words
// have 16 bits in version 1 and 32 bits in version 2; in memory all have 32 bits.
#include "evaluate.h"

#include "base/alloc.h"
#include "base/files.h"
#include "base/units.h"

#include <stdlib.h>

enum { HEADER_BYTES = 256 * 4, MAGIC = 20240522, VERSION_16 = 1, VERSION_32 = 2, MOST_BYTES = 1 << 30 };
enum { BEGIN_EXAMPLE = 65535, MOST_EXAMPLES = 65536 };

// Reads example `number`; `left` words of the file remain. Leaves the example out if a row is too long. Returns its
// number of words; 0 if it is damaged; -1 with err if a token is outside the vocabulary.
static int64_t read_example_(Evaluation *evaluation, const uint32_t *fields, int64_t left, int64_t width,
                             int64_t number, Error *err) {
    enum { START, BYTES, NUMBER, LABEL, COMPLETIONS, FIELDS };
    if (left < FIELDS || fields[START] != BEGIN_EXAMPLE || fields[NUMBER] != number) return 0;
    if (fields[COMPLETIONS] < 2 || fields[LABEL] >= fields[COMPLETIONS] || fields[BYTES] % width != 0) return 0;
    int64_t words = fields[BYTES] / width;
    if (words < FIELDS || words > left) return 0;
    const uint32_t *at = fields + FIELDS, *end = fields + words;
    Example example = {evaluation->rows, fields[COMPLETIONS], fields[LABEL]};
    ExampleRow row = {0};
    bool fits = true;
    for (int64_t text = -1; text < example.rows; text++) { // -1: the context
        int64_t count = at < end ? *at++ : 0;
        if (count == 0 || count > end - at) return 0;
        for (int64_t i = 0; i < count; i++)
            if (at[i] >= evaluation->vocab)
                return error_set(err, EXIT_USAGE,
                                 "example %lld has token %u, outside a vocabulary of %lld; make the file with the "
                                 "model's tokenizer",
                                 (long long)number, at[i], (long long)evaluation->vocab);
        if (text < 0) {
            row.context = at, row.context_tokens = count;
        } else {
            row.completion = at, row.completion_tokens = count;
            xpush(evaluation->row, evaluation->rows, row);
            fits = fits && row.context_tokens + count <= evaluation->seq_len + 1;
        }
        at += count;
    }
    if (at != end) return 0;
    if (fits) {
        evaluation->example[evaluation->examples++] = example;
    } else {
        evaluation->rows = example.first_row;
        evaluation->left_out++;
    }
    return words;
}

// Reads the contents of the file, `bytes` bytes. Errors do not name the file; the caller does.
static int read_examples_(Evaluation *evaluation, const char *file, int64_t bytes, Error *err) {
    const uint32_t *header = (const uint32_t *)(const void *)file;
    const void *words = file + HEADER_BYTES;
    const uint16_t *narrow = words;
    if (bytes < HEADER_BYTES || header[0] != MAGIC || (header[1] != VERSION_16 && header[1] != VERSION_32) ||
        header[2] < 1 || header[2] > MOST_EXAMPLES)
        return error_set(err, EXIT_USAGE,
                         "is not an evaluation file of version 1 or 2 with 1 to %d examples; make one with "
                         "scripts/prepare_eval.py",
                         (int)MOST_EXAMPLES);
    int64_t width = header[1] == VERSION_16 ? 2 : 4, count = (bytes - HEADER_BYTES) / width, at = 0, longest = 0, read;
    evaluation->words = xmalloc((size_t)(count + 1) * sizeof *evaluation->words);
    for (int64_t i = 0; i < count; i++) evaluation->words[i] = width == 2 ? narrow[i] : header[HEADER_BYTES / 4 + i];
    evaluation->example = xcalloc(header[2], sizeof *evaluation->example);
    for (int64_t i = 0; i < header[2]; i++, at += read) {
        read = read_example_(evaluation, evaluation->words + at, count - at, width, i, err);
        longest = max_i64(longest, read * width);
        if (read < 0) return -1;
        if (read == 0)
            return error_set(err, EXIT_USAGE,
                             "example %lld is damaged; make the file again with scripts/prepare_eval.py", (long long)i);
    }
    if (at != count || bytes % width != 0 || longest != header[3])
        return error_set(err, EXIT_USAGE,
                         "does not match its header (%u examples, the longest %u bytes); make it again with "
                         "scripts/prepare_eval.py",
                         header[2], header[3]);
    if (evaluation->examples > 0) return 0;
    return error_set(err, EXIT_USAGE,
                     "all %u examples are longer than model.seq_len %lld; increase it, or remove the key", header[2],
                     (long long)evaluation->seq_len);
}

Evaluation *evaluation_open(const char *key, const char *path, int64_t seq_len, int64_t vocab, Error *err) {
    Evaluation *evaluation = xcalloc(1, sizeof *evaluation);
    *evaluation = (Evaluation){.seq_len = seq_len, .vocab = vocab};
    int64_t bytes = 0;
    Error unread = {0}, wrong = {0};
    char *file = file_read_whole(path, MOST_BYTES, &bytes, &unread);
    int status = file == NULL ? -1 : read_examples_(evaluation, file, bytes, &wrong);
    free(file);
    if (status == 0) return evaluation;
    evaluation_close(evaluation);
    if (wrong.code == 0) return error_null(err, EXIT_USAGE, "%s: %s", key, unread.text);
    return error_null(err, EXIT_USAGE, "%s: %s: %s", key, path, wrong.text);
}

void evaluation_close(Evaluation *evaluation) {
    if (evaluation != NULL) free_all(evaluation->words, evaluation->row, evaluation->example, evaluation);
}

static int32_t row_token_(const ExampleRow *row, int64_t i) {
    if (i < row->context_tokens) return (int32_t)row->context[i];
    return i < row->context_tokens + row->completion_tokens ? (int32_t)row->completion[i - row->context_tokens] : 0;
}

void evaluation_fetch(const Evaluation *evaluation, int64_t row, int32_t *inputs, int32_t *targets, int64_t stride) {
    static const ExampleRow none = {NULL, NULL, 0, 0};
    const ExampleRow *from = row < evaluation->rows ? &evaluation->row[row] : &none;
    for (int64_t i = 0; i < evaluation->seq_len; i++) {
        inputs[i * stride] = row_token_(from, i);
        targets[i * stride] = row_token_(from, i + 1);
    }
}

double evaluation_mean(const Evaluation *evaluation, int64_t row, const float *losses, int64_t stride) {
    const ExampleRow *of = &evaluation->row[row];
    double sum = 0.0;
    // The last token of the context predicts the first one of the completion.
    for (int64_t i = 0; i < of->completion_tokens; i++) sum += losses[(of->context_tokens - 1 + i) * stride];
    return sum / (double)of->completion_tokens;
}

int64_t evaluation_correct(const Evaluation *evaluation, const double *means) {
    int64_t correct = 0;
    for (int64_t i = 0; i < evaluation->examples; i++) {
        const Example *example = &evaluation->example[i];
        const double *of = means + example->first_row;
        int64_t best = 0;
        for (int64_t k = 1; k < example->rows; k++)
            if (of[k] < of[best]) best = k;
        correct += best == example->label;
    }
    return correct;
}
