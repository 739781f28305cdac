// Conversion of text to tokens and back without a library, and the choice of the tokenizer.
#include "data/tokenizer.h"
#include "scratch_folder.h"
#include "unit.h"

#include <string.h>
#include <unistd.h>

static Config config;
static Tokenizer tokenizer_;

static void configure(const char *tokenizer, int64_t vocab) {
    memset(&config, 0, sizeof config);
    config.model.vocab = vocab;
    snprintf(config.sample.tokenizer, sizeof config.sample.tokenizer, "%s", tokenizer);
    config.data.train_sources = 1;
    snprintf(config.data.train[0].path, CONFIG_TEXT, "%s", test_path("mine_train_*.bin"));
}

// Writes the side file, and a shard next to it; with NULL, removes both.
static void write_side(const char *text) {
    static const char *const names[] = {"mine.json", "mine_train_000.bin"};
    for (int i = 0; i < 2; i++)
        if (text == NULL) assert_int_equal(unlink(test_path(names[i])), 0);
        else test_file_write(names[i], text, strlen(text));
}

static const Tokenizer *opened(const char *name, int64_t vocab) {
    configure(name, vocab);
    assert_succeeds(tokenizer_open(&tokenizer_, &config, &unit_error));
    return &tokenizer_;
}

static void check_ids(const Tokenizer *tokenizer, const char *text, const char *expected) {
    char said[200] = "";
    Tokens tokens;
    assert_succeeds(tokenizer_encode(tokenizer, "--generate", text, &tokens, &unit_error));
    for (int64_t i = 0; i < tokens.count; i++)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s%d", i > 0 ? " " : "", tokens.ids[i]);
    assert_string_equal(said, expected);
    free(tokens.ids);
}

static void check_refused(const Tokenizer *tokenizer, const char *text, const char *why) {
    Tokens tokens;
    assert_refused(tokenizer_encode(tokenizer, "--generate", text, &tokens, &unit_error), EXIT_USAGE, why);
    assert_null(tokens.ids);
}

static void check_text(const Tokenizer *tokenizer, const int32_t *ids, int64_t count, const char *expected) {
    Tokens tokens = {(int32_t *)ids, count};
    AutoText *text = tokenizer_decode(tokenizer, &tokens);
    assert_string_equal(text, expected);
}

TEST(a_byte_is_a_token_and_256_begins_a_text) {
    const Tokenizer *bytes = opened("", 257);
    check_ids(bytes, "Ab\n\xC3\xA9", "65 98 10 195 169");
    check_ids(bytes, "", "256");
    assert_int_equal(bytes->end, 256);
    const int32_t ids[] = {256, 65, 98, 10, 195, 169, 256};
    check_text(bytes, ids, 7, "Ab\n\xC3\xA9");
}

TEST(what_a_terminal_could_misread_is_spelt_out) {
    const Tokenizer *bytes = opened("bytes", 257);
    const int32_t ids[] = {'a',  27,   '[',  9,    0,    127,  0xC3, 'b',  0xC2,
                           0x9B, 0xED, 0xA0, 0x80, 0xE2, 0x82, 0xAC, 0xE2, 0x82};
    check_text(bytes, ids, 18, "a\\x1B[\t\\x00\\x7F\\xC3b\\xC2\\x9B\\xED\\xA0\\x80\xE2\x82\xAC\\xE2\\x82");
    check_text(bytes, ids, 0, "");
}

TEST(without_a_tokenizer_a_text_is_its_numbers) {
    const Tokenizer *numbers = opened("", 1000);
    check_ids(numbers, " 1, 999\t0 ", "1 999 0");
    const int32_t ids[] = {5, 0, 999};
    check_text(numbers, ids, 3, "5 0 999");
    check_refused(numbers, "1 1000", "--generate: token 1000 is outside the vocabulary of 1000");
    check_refused(numbers, "-1", "token -1 is outside");
    check_refused(numbers, "99999999999999999999", "is outside");
    check_refused(numbers, "1 In 2", "not In 2");
    check_refused(numbers, "12x", "not 12x");
    check_refused(numbers, "", "the beginning-of-text token is unknown");
}

TEST(text_outside_the_vocabulary_is_refused) {
    const Tokenizer *bytes = opened("bytes", 100);
    check_ids(bytes, "abc", "97 98 99");
    check_refused(bytes, "abcd", "byte 100 (token 100) is outside the vocabulary of 100");
    check_refused(bytes, "", "give a prompt");
}

TEST(the_side_file_says_which_tokenizer_it_was) {
    write_side("{\"tokenizer\": \"bytes\", \"tokenizer_file\": null, \"vocab\": 257, \"eot\": 256}");
    const Tokenizer *bytes = opened("", 300);
    check_ids(bytes, "A", "65");
    assert_int_equal(bytes->end, 256);
    write_side("{\"tokenizer\": \"tokenizers\", \"tokenizer_file\": \"x.json\", \"vocab\": 300, \"eot\": 7}");
    Error missing = {0};
    configure("", 300);
    assert_int_equal(tokenizer_open(&tokenizer_, &config, &missing), -1);
    assert_non_null(strstr(missing.text, "/x.json: no such file"));
    const Tokenizer *numbers = opened("ids", 257);
    check_ids(numbers, "65", "65");
    write_side("{");
    configure("", 257);
    assert_refused(tokenizer_open(&tokenizer_, &config, &unit_error), EXIT_FAILED, "mine.json");
    write_side(NULL);
}

TEST(a_file_that_is_not_there_is_refused) {
    static const char *const names[] = {"x.model", "x.json", "x.vocab"};
    for (int i = 0; i < 3; i++) {
        configure(names[i], 1000);
        assert_refused(tokenizer_open(&tokenizer_, &config, &unit_error), EXIT_USAGE, names[i]);
    }
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
