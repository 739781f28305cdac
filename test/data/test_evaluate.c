// Evaluation files: the rows of a valid file, and the messages for damaged ones.
#include "data/evaluate.h"
#include "scratch_folder.h"
#include "unit.h"

#include <string.h>
#include <unistd.h>

UNIT_END(Evaluation, evaluation_close)
#define AutoEvaluation UNIT_ENDS(evaluation_close) Evaluation

enum { SEQ = 6, VOCAB = 50 };

static const char *path(void) { return test_path("evaluation.bin"); }

static uint32_t header[256];
static uint16_t words[64];
static int word_count;

// Two examples: a context of two tokens with completions of one, three and two tokens, and a context of one token with
// completions of six tokens and one.
static void make_good(void) {
    static const uint16_t good[] = {
        65535, 34, 0, 2, 3, 2, 11, 12, 1, 21, 3, 22, 23, 24, 2, 25, 26, //
        65535, 32, 1, 1, 2, 1, 13, 6,  1, 2,  3, 4,  5,  6,  1, 7,      //
    };
    memset(header, 0, sizeof header);
    header[0] = 20240522, header[1] = 1, header[2] = 2, header[3] = 34;
    word_count = sizeof good / sizeof good[0];
    memcpy(words, good, sizeof good);
}

static void write_file(int bytes_less) {
    char bytes[sizeof header + sizeof words];
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + sizeof header, words, sizeof words);
    test_file_write("evaluation.bin", bytes, sizeof header + (size_t)(word_count * 2 - bytes_less));
}

// Writes the same words as version 2, with 32 bits each; `token` replaces the value 26.
static void write_wide(int bytes_less, uint32_t token) {
    uint32_t file[256 + 64], *wide = file + 256;
    for (int i = 0; i < word_count; i++) wide[i] = words[i] == 26 ? token : words[i];
    wide[1] *= 2, wide[18] *= 2;
    header[1] = 2, header[3] = 68;
    memcpy(file, header, sizeof header);
    test_file_write("evaluation.bin", file, sizeof header + (size_t)(word_count * 4 - bytes_less));
}

static Evaluation *opened(int64_t seq_len) {
    return assert_made(evaluation_open("data.hellaswag", path(), seq_len, VOCAB, &unit_error));
}

static void refused(const char *why) {
    assert_refused(evaluation_open("data.hellaswag", path(), SEQ, VOCAB, &unit_error), EXIT_USAGE, why);
    assert_contains(unit_error.text, "data.hellaswag: ");
}

TEST(rows_are_context_and_completion) {
    make_good();
    write_file(0);
    AutoEvaluation *evaluation = opened(SEQ);
    assert_true(evaluation->examples == 2 && evaluation->left_out == 0);
    assert_int_equal(evaluation->rows, 5);
    int32_t inputs[2 * SEQ], targets[2 * SEQ];
    const int32_t row_1[] = {11, 12, 22, 23, 24, 0, 0};
    evaluation_fetch(evaluation, 1, inputs, targets, 2);
    for (int i = 0; i < SEQ; i++) assert_true(inputs[2 * i] == row_1[i] && targets[2 * i] == row_1[i + 1]);
    // The longest possible row: its last token is only a target.
    const int32_t row_3[] = {13, 1, 2, 3, 4, 5, 6};
    evaluation_fetch(evaluation, 3, inputs, targets, 1);
    for (int i = 0; i < SEQ; i++) assert_true(inputs[i] == row_3[i] && targets[i] == row_3[i + 1]);
    evaluation_fetch(evaluation, 5, inputs, targets, 1);
    for (int i = 0; i < SEQ; i++) assert_true(inputs[i] == 0 && targets[i] == 0);
}

TEST(the_lowest_mean_over_the_completion_is_the_choice) {
    make_good();
    write_file(0);
    AutoEvaluation *evaluation = opened(SEQ);
    const float losses[2 * SEQ] = {9, 0, 1, 0, 2, 0, 6, 0, 9, 0, 9, 0};
    assert_true(evaluation_mean(evaluation, 0, losses, 2) == 1.0); // the token after a context of two
    assert_true(evaluation_mean(evaluation, 1, losses, 2) == 3.0);
    assert_true(evaluation_mean(evaluation, 2, losses, 2) == 1.5);
    assert_true(evaluation_mean(evaluation, 3, losses, 2) == 6.0);
    const double both[] = {3, 2, 1, 2, 1}, first[] = {3, 2, 1, 1, 2}, none[] = {1, 2, 1, 1, 1};
    assert_int_equal(evaluation_correct(evaluation, both), 2);
    assert_int_equal(evaluation_correct(evaluation, first), 1);
    assert_int_equal(evaluation_correct(evaluation, none), 0); // ties go to the first completion
}

TEST(an_example_that_is_too_long_is_left_out) {
    make_good();
    write_file(0);
    Evaluation *evaluation = opened(SEQ - 1);
    assert_true(evaluation->examples == 1 && evaluation->left_out == 1);
    assert_int_equal(evaluation->rows, 3);
    evaluation_close(evaluation);
    assert_refused(evaluation_open("data.hellaswag", path(), 3, VOCAB, &unit_error), EXIT_USAGE, "all 2 examples");
}

typedef struct Damage {
    int word, value; // index and new value of a word of the examples
    const char *why;
} Damage;

TEST(every_damage_to_an_example_is_named) {
    const Damage damages[] = {
        {0, 65534, "example 0 is damaged"},
        {1, 33, "example 0 is damaged"},
        {1, 4, "example 0 is damaged"},
        {1, 300, "example 0 is damaged"},
        {1, 32, "example 0 is damaged"},
        {1, 36, "example 0 is damaged"},
        {2, 1, "example 0 is damaged"},
        {3, 3, "example 0 is damaged"},
        {4, 1, "example 0 is damaged"},
        {4, 4, "example 0 is damaged"},
        {5, 0, "example 0 is damaged"},
        {5, 999, "example 0 is damaged"},
        {7, 50, "example 0 has token 50, outside a vocabulary of 50"},
        {17, 0, "example 1 is damaged"},
        {26, 999, "example 1 has token 999"},
        {31, 2, "example 1 is damaged"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        make_good();
        words[damages[i].word] = (uint16_t)damages[i].value;
        write_file(0);
        refused(damages[i].why);
    }
}

TEST(every_damage_to_the_header_is_named) {
    const Damage damages[] = {
        {0, 20240520, "is not an evaluation file"}, {1, 3, "is not an evaluation file"},
        {2, 0, "is not an evaluation file"},        {2, 65537, "is not an evaluation file"},
        {2, 1, "does not match its header"},        {2, 3, "example 2 is damaged"},
        {3, 36, "does not match its header"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        make_good();
        header[damages[i].word] = (uint32_t)damages[i].value;
        write_file(0);
        refused(damages[i].why);
    }
}

TEST(a_file_that_is_cut_anywhere_is_refused) {
    make_good();
    for (int less = 1; less <= word_count * 2; less++) {
        write_file(less);
        refused("data.hellaswag: ");
    }
    assert_int_equal(truncate(path(), 1000), 0);
    refused("is not an evaluation file");
    assert_int_equal(unlink(path()), 0);
    refused("cannot be read: No such file");
}

TEST(tokens_above_65535_are_in_files_of_version_2) {
    make_good();
    for (int less = 1; less <= word_count * 4; less++) {
        write_wide(less, 26);
        refused("data.hellaswag: ");
    }
    write_wide(0, 100000);
    refused("example 0 has token 100000, outside a vocabulary of 50");
    AutoEvaluation *evaluation = assert_made(evaluation_open("data.hellaswag", path(), SEQ, 100001, &unit_error));
    int32_t inputs[SEQ], targets[SEQ];
    const int32_t row_2[] = {11, 12, 25, 100000, 0, 0, 0};
    assert_int_equal(evaluation->rows, 5);
    evaluation_fetch(evaluation, 2, inputs, targets, 1);
    for (int i = 0; i < SEQ; i++) assert_true(inputs[i] == row_2[i] && targets[i] == row_2[i + 1]);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
