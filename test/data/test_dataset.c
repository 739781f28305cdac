// Token files are read exactly, refused with a message if they are malformed, and visited in a permuted order.
#include "data/dataset.h"
#include "scratch_folder.h"
#include "unit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

UNIT_END(Dataset, dataset_close)
#define AutoDataset UNIT_ENDS(dataset_close) Dataset

enum { GPT2 = SHARD_GPT2, LLAMA3 = SHARD_LLAMA3 };

static uint32_t counted_(int64_t i, const void *start) { return (uint32_t)((*(const int64_t *)start + i) % 251); }

// Writes a shard of `count` tokens with a header that claims `promised`: token i is (start + i) % 251.
static void write_shard(const char *name, int magic, int version, int64_t promised, int64_t count, int64_t start) {
    test_shard_write(name, (ShardHeader){magic, version, promised}, count, counted_, &start);
}

static void poke_token(const char *name, int64_t index, uint16_t token) {
    test_file_poke(name, 1024 + 2 * index, &token, sizeof token);
}

static void expect_refused(const char *name, int64_t seq_len, int64_t need, const char *const *words) {
    assert_refused(dataset_open("data.train", test_path(name), seq_len, 257, need, &unit_error), EXIT_USAGE,
                   "data.train: ");
    for (int i = 0; words[i] != NULL; i++) assert_contains(unit_error.text, words[i]);
}
#define EXPECT_REFUSED(name, seq_len, need, ...)                                                                       \
    expect_refused(name, seq_len, need, (const char *const[]){__VA_ARGS__, NULL})

static Dataset *opened(const char *name, int64_t seq_len, int64_t vocab, int64_t need) {
    return assert_made(dataset_open("data.train", test_path(name), seq_len, vocab, need, &unit_error));
}

TEST(shards_come_in_name_order_and_never_mix_in_a_sample) {
    write_shard("order_b.bin", GPT2, 1, 30, 30, 100);
    write_shard("order_a.bin", GPT2, 1, 20, 20, 0);
    write_shard("order_aa.bin", GPT2, 1, 5, 5, 50); // too short for a sample of 8
    write_shard("order_c.bin", GPT2, 1, 0, 0, 0);
    AutoDataset *dataset = opened("order_*.bin", 8, 257, 5);
    assert_int_equal(dataset->samples, 2 + 3); // 19 / 8 and 29 / 8
    const int32_t first[] = {0, 8, 100, 108, 116};
    for (int sample = 0; sample < 5; sample++) {
        int32_t inputs[8];
        assert_int_equal(dataset_fetch(dataset, sample, inputs, NULL, 1, NULL), 0);
        for (int i = 0; i < 8; i++) assert_int_equal(inputs[i], first[sample] + i);
    }
}

TEST(a_file_that_is_there_is_found_whatever_its_name) {
    static const char *const names[] = {"odd[1].bin", "odd\\2.bin", "odd{3}.bin", "-odd 4.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        write_shard(names[i], GPT2, 1, 20, 20, 0);
        AutoDataset *dataset = opened(names[i], 8, 257, 1);
        assert_int_equal(dataset->samples, 2);
    }
}

TEST(a_stride_makes_the_batch_sequence_major) {
    write_shard("stride.bin", GPT2, 1, 100, 100, 0);
    AutoDataset *dataset = opened("stride.bin", 4, 257, 1);
    int32_t inputs[4 * 3], targets[4 * 3];
    for (int j = 0; j < 3; j++) assert_int_equal(dataset_fetch(dataset, 5 * j, inputs + j, targets + j, 3, NULL), 0);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++) {
            assert_int_equal(inputs[i * 3 + j], 20 * j + i);
            assert_int_equal(targets[i * 3 + j], 20 * j + i + 1);
        }
}

TEST(wrong_files_are_refused_with_a_sentence) {
    EXPECT_REFUSED("absent_*.bin", 8, 1, "no file matches", "absent_*.bin", "make data");
    EXPECT_REFUSED("*/../*/../*/../*/../a.bin", 8, 1, "/../ after a wildcard", "name the folder");
    EXPECT_REFUSED("*/?/[a-z]*/*/a*.bin", 8, 1, "wildcards in more than 4 parts", "name the folder");
    assert_int_equal(mkdir(test_path("folder.bin"), 0700), 0);
    EXPECT_REFUSED("folder.bin", 8, 1, "folder.bin/ is a directory; name token files, such as", "folder.bin/*.bin");
    write_shard("folder2.bin", GPT2, 1, 100, 100, 0);
    assert_int_equal(mkdir(test_path("folder2.idx"), 0700), 0);
    EXPECT_REFUSED("folder2.bin", 8, 1, "folder2.idx: is not a regular file");
    test_file_write("empty.bin", "", 0);
    EXPECT_REFUSED("empty.bin", 8, 1, "has 0 bytes", "1024");
    write_shard("magic.bin", 42, 1, 100, 100, 0);
    EXPECT_REFUSED("magic.bin", 8, 1, "is not a token file", "begins with 42,", "20240520", "20240801",
                   "prepare_data.py");
    write_shard("version.bin", GPT2, 3, 100, 100, 0);
    EXPECT_REFUSED("version.bin", 8, 1, "version 3", "version 1");
    write_shard("cut.bin", GPT2, 1, 100, 99, 0);
    EXPECT_REFUSED("cut.bin", 8, 1, "truncated", "100 tokens", "1224 bytes", "has 1222");
    write_shard("longer.bin", GPT2, 1, 100, 101, 0);
    EXPECT_REFUSED("longer.bin", 8, 1, "too long", "100 tokens", "1226");
    write_shard("huge.bin", GPT2, 1, 0xffffffff, 10, 0);
    EXPECT_REFUSED("huge.bin", 8, 1, "truncated", "4294967295 tokens", "8589935614 bytes"); // beyond 32 bits
}

// Writes a file as Megatron-LM's megatron/core/datasets/indexed_dataset.py does: sequences of 1, 2, ... tokens, two
// sequences per document. code: 8 for uint16, 4 for int32. Returns the number of sequences.
static int64_t write_megatron(const char *name, int code, int64_t tokens, int64_t start, bool modes) {
    char path[64];
    int32_t lengths[64];
    int64_t offsets[64], documents[64], sequences = 0, bounds = 0, width = code == 8 ? 2 : 4;
    for (int64_t left = tokens, at = 0; left > 0; left -= lengths[sequences], at += lengths[sequences++] * width) {
        lengths[sequences] = (int32_t)(left > sequences + 1 ? sequences + 1 : left);
        offsets[sequences] = at;
    }
    for (int64_t i = 0; i < sequences; i += 2) documents[bounds++] = i;
    documents[bounds++] = sequences;
    snprintf(path, sizeof path, "%s.bin", name);
    FILE *file = fopen(test_path(path), "wb");
    for (int64_t i = 0; i < tokens; i++) {
        uint32_t token = counted_(i, &start);
        fwrite(&token, (size_t)width, 1, file); // little-endian
    }
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof path, "%s.idx", name);
    file = fopen(test_path(path), "wb");
    int64_t version = 1;
    unsigned char type = (unsigned char)code;
    fwrite("MMIDIDX\0", 9, 1, file);
    fwrite(&version, 8, 1, file);
    fwrite(&type, 1, 1, file);
    fwrite(&sequences, 8, 1, file);
    fwrite(&bounds, 8, 1, file);
    fwrite(lengths, 4, (size_t)sequences, file);
    fwrite(offsets, 8, (size_t)sequences, file);
    fwrite(documents, 8, (size_t)bounds, file);
    for (int64_t i = 0; modes && i < sequences; i++) fputc(0, file);
    assert_int_equal(fclose(file), 0);
    return sequences;
}

TEST(every_kind_is_read_and_targets_follow_inputs) {
    write_shard("kind_2.bin", GPT2, 1, 1000, 1000, 7);
    write_shard("kind_4.bin", LLAMA3, 7, 1000, 1000, 7);
    write_megatron("megatron_2", 8, 1000, 7, false);
    write_megatron("megatron_4", 4, 1000, 7, true);
    const char *names[] = {"kind_2.bin",     "kind_4.bin", "megatron_2.bin",
                           "megatron_4.bin", "megatron_2", "megatron_4"}; // the last: by their prefix
    for (int kind = 0; kind < 6; kind++) {
        AutoDataset *dataset = opened(names[kind], 8, 257, 1);
        assert_int_equal(dataset->samples, 124); // 999 / 8: the last target needs a token, too
        int32_t inputs[8], targets[8];
        for (int64_t sample = 0; sample < 124; sample++) {
            assert_int_equal(dataset_fetch(dataset, sample, inputs, targets, 1, NULL), 0);
            for (int i = 0; i < 8; i++) {
                assert_int_equal(inputs[i], (7 + sample * 8 + i) % 251);
                assert_int_equal(targets[i], (7 + sample * 8 + i + 1) % 251);
            }
        }
    }
}

TEST(every_damaged_index_is_refused_with_a_sentence) {
    int64_t s = write_megatron("bad", 8, 100, 0, false);
    static const char *const no_words[] = {NULL};
    const struct {
        int64_t offset;
        int byte;
        const char *words[3];
    } rows[] = {{0, 'X', {"bad.idx is not an index of Megatron-LM", "copy it again"}},
                {9, 2, {"is not an index of Megatron-LM"}},
                {17, 5, {"type code 5", "8 (uint16) or 4 (int32)"}},
                {17, 4, {"or it is damaged"}},
                {18, (int)s + 1, {"or it is damaged"}},
                {18, (int)s - 1, {"or it is damaged"}},
                {25, 1, {"or it is damaged"}},
                {33, 255, {"or it is damaged"}},
                {34, 3, {"or it is damaged"}},
                {37, 255, {"or it is damaged"}},
                {34 + 4 * s, 1, {"or it is damaged"}},
                {34 + 4 * (s - 1), 0, {"describes 182 bytes of tokens, but its .bin has 200"}},
                {34 + 12 * s, 1, {"or it is damaged"}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_megatron("bad", 8, 100, 0, false);
        test_file_poke("bad.idx", rows[i].offset, &(uint8_t){(uint8_t)rows[i].byte}, 1);
        expect_refused("bad.bin", 8, 1, rows[i].words);
        expect_refused("bad", 8, 1, rows[i].words);
    }
    write_megatron("bad", 8, 100, 0, false);
    assert_int_equal(truncate(test_path("bad.bin"), 198), 0);
    EXPECT_REFUSED("bad.bin", 8, 1, "describes 200 bytes", "has 198");
    for (int64_t cut = 0; cut < 34 + 12 * s; cut++) { // at any length
        write_megatron("bad", 8, 100, 0, false);
        assert_int_equal(truncate(test_path("bad.idx"), cut), 0);
        expect_refused("bad.bin", 8, 1, no_words);
    }
    write_megatron("with", 8, 1000, 0, false);
    EXPECT_REFUSED("with.*", 8, 1, "with.idx has ", "a token file's header; name token files alone, such as *.bin");
    write_shard("alone.bin", 42, 1, 100, 900, 0);
    EXPECT_REFUSED("alone.bin", 8, 1, "there is no Megatron-LM .idx next to it");
}

TEST(too_few_samples_says_how_many_tokens_are_needed) {
    write_shard("few.bin", GPT2, 1, 100, 100, 0);
    EXPECT_REFUSED("few.bin", 8, 13, "100 tokens", "enough for 12 sequences of 8", "13 sequences are needed",
                   "105 tokens");
    EXPECT_REFUSED("few.bin", 100, 0, "enough for 0 sequences of 100", "1 sequences are needed", "101 tokens");
    AutoDataset *dataset = opened("few.bin", 99, 257, 1);
}

TEST(a_token_outside_the_vocabulary_is_named_at_start) {
    write_shard("range.bin", GPT2, 1, 1000, 1000, 0);
    poke_token("range.bin", 777, 257);
    EXPECT_REFUSED("range.bin", 8, 1, "range.bin", "token 777 is 257", "vocabulary of 257");
    poke_token("range.bin", 777, 256);
    AutoDataset *dataset = opened("range.bin", 8, 257, 1);
}

// Opening checks only the first part of a file. A bad token after it fails when its own sample is fetched, no other.
TEST(a_token_outside_the_vocabulary_is_named_when_fetched) {
    enum { COUNT = (16 << 20) + 1000, BAD = COUNT - 500 };
    write_shard("late.bin", GPT2, 1, COUNT, 0, 0);
    assert_int_equal(truncate(test_path("late.bin"), 1024 + 2 * (off_t)COUNT), 0); // a hole: all tokens are zero
    poke_token("late.bin", BAD, 300);
    AutoDataset *dataset = opened("late.bin", 100, 257, 1);
    int32_t inputs[100];
    assert_succeeds(dataset_fetch(dataset, BAD / 100 + 1, inputs, NULL, 1, &unit_error));
    char words[64];
    snprintf(words, sizeof words, "late.bin: token %d is 300", (int)BAD);
    assert_refused(dataset_fetch(dataset, BAD / 100, inputs, NULL, 1, &unit_error), EXIT_FAILED, words);
}

static void write_side(const char *name, const char *text) { test_file_write(name, text, strlen(text)); }

TEST(a_side_file_tells_the_vocabulary_before_any_token_does) {
    write_shard("told_train_000.bin", GPT2, 1, 100, 100, 0);
    write_side("told.json", "{\"tokenizer\": \"sentencepiece\", \"tokenizer_sha256\": \"ab\", \"vocab\": 32000}");
    EXPECT_REFUSED("told_train_*.bin", 8, 1, "sentencepiece", "32000", "told.json", "model.vocab 257",
                   "set model.vocab to 32000");
    AutoDataset *dataset = opened("told_train_*.bin", 8, 32000, 1);
    assert_int_equal(dataset->side[0].vocab, 32000);
    assert_string_equal(dataset->side[0].tokenizer, "sentencepiece");
    assert_int_equal(dataset->side[1].vocab, 0);
}

TEST(the_token_that_begins_documents_is_the_side_files_or_that_of_llm_c) {
    write_shard("ends_train_000.bin", GPT2, 1, 100, 100, 0);
    write_side("ends.json", "{\"tokenizer\": \"sentencepiece\", \"vocab\": 257, \"eot\": 2}");
    write_side("mute.json", "{\"tokenizer\": \"sentencepiece\", \"vocab\": 257}");
    write_shard("mute_train_000.bin", GPT2, 1, 100, 100, 0);
    write_shard("plain.bin", GPT2, 1, 100, 100, 0);
    write_shard("wide.bin", LLAMA3, 7, 100, 100, 0);
    static const struct {
        const char *name;
        int64_t vocab, token;
    } cases[] = {{"ends_train_000.bin", 257, 2}, {"mute_train_000.bin", 257, -1}, {"plain.bin", 257, 256},
                 {"plain.bin", 50257, 50256},    {"plain.bin", 300, -1},          {"wide.bin", 128256, 128000},
                 {"wide.bin", 300, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AutoDataset *dataset = opened(cases[i].name, 8, cases[i].vocab, 1);
        assert_int_equal(dataset_end_of_text(dataset), cases[i].token);
    }
}

TEST(a_damaged_side_file_is_named_and_an_absent_one_is_not_missed) {
    static const char *const damaged[] = {"",
                                          "{",
                                          "[]",
                                          "{\"vocab\": 10}",
                                          "{\"tokenizer\": \"bytes\"}",
                                          "{\"tokenizer\": \"bytes\", \"vocab\": -1}",
                                          "{\"tokenizer\": \"bytes\", \"vocab\": 257, \"eot\": 257}",
                                          "{\"tokenizer\": \"bytes\", \"vocab\": \"257\"}"};
    write_shard("hurt_val_000000.bin", GPT2, 1, 100, 100, 0);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        write_side("hurt.json", damaged[i]);
        EXPECT_REFUSED("hurt_val_*.bin", 8, 1, "hurt.json", "or remove this file");
    }
    unlink(test_path("hurt.json"));
    AutoDataset *dataset = opened("hurt_val_*.bin", 8, 257, 1);
    assert_int_equal(dataset->side[0].vocab, 0);
}

TEST(shards_of_two_tokenizers_are_noticed) {
    write_shard("two_a_train_000.bin", GPT2, 1, 100, 100, 0);
    write_shard("two_a_train_001.bin", GPT2, 1, 100, 100, 0);
    write_shard("two_b_train_000.bin", GPT2, 1, 100, 100, 0);
    write_side("two_a.json", "{\"tokenizer\": \"tokenizers\", \"tokenizer_sha256\": \"ab\", \"vocab\": 200}");
    write_side("two_b.json", "{\"tokenizer\": \"tokenizers\", \"tokenizer_sha256\": \"cd\", \"vocab\": 200}");
    Dataset *dataset = opened("two_*_train_*.bin", 8, 257, 1);
    assert_string_equal(dataset->side[0].sha256, "ab");
    assert_string_equal(dataset->side[1].sha256, "cd");
    assert_false(side_file_same_tokenizer(&dataset->side[0], &dataset->side[1]));
    dataset_close(dataset);
    write_side("two_b.json", "{\"tokenizer\": \"tokenizers\", \"tokenizer_sha256\": \"ab\", \"vocab\": 200}");
    dataset = opened("two_*_train_*.bin", 8, 257, 1);
    assert_int_equal(dataset->side[1].vocab, 0);
    dataset_close(dataset);
}

TEST(side_files_are_named_after_their_shards) {
    static const struct {
        const char *shard, *side; // NULL: not set
    } rows[] = {{"data/own_train_000.bin", "data/own.json"},
                {"own_val_000123.bin", "own.json"},
                {"a_train_b/c_val_train_000.bin", "a_train_b/c_val.json"},
                {"x_train_1_val_001.bin", "x_train_1.json"},
                {"data/own.bin", NULL},
                {"data/own_train.bin", NULL},
                {"data/_train_000.bin", NULL},
                {"own_train_000.bin/x", NULL},
                {"own_train_.bin", NULL},
                {"own_train_01.bin.bak", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[SIDE_FILE_PATH] = "";
        assert_int_equal(side_file_path(rows[i].shard, path), rows[i].side != NULL);
        if (rows[i].side != NULL) assert_string_equal(path, rows[i].side);
    }
}

// Offsets beyond 2^31 bytes and beyond 2^31 tokens. The file is sparse and uses no disk space.
TEST(files_beyond_two_gib_are_read) {
    const int64_t count = 3000000000;
    write_shard("big.bin", GPT2, 1, count, 0, 0);
    if (truncate(test_path("big.bin"), 1024 + 2 * count) != 0) skip(); // the file system has no sparse files
    poke_token("big.bin", count - 1, 123);
    Dataset *dataset = opened("big.bin", 1, 257, 1);
    assert_true(dataset->samples == count - 1);
    int32_t input, target;
    assert_int_equal(dataset_fetch(dataset, count - 2, &input, &target, 1, NULL), 0);
    assert_int_equal(input, 0);
    assert_int_equal(target, 123);
    dataset_close(dataset);
    unlink(test_path("big.bin"));
}

static void check_bijection(int64_t count, uint64_t seed, uint64_t epoch) {
    AutoText *seen = calloc((size_t)count, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < count; i++) {
        int64_t image = permute_index(i, count, seed, epoch);
        assert_true(image >= 0 && image < count);
        assert_false(seen[image]);
        seen[image] = 1;
    }
}

TEST(the_permutation_is_a_bijection) {
    for (int64_t count = 1; count <= 2000; count++) check_bijection(count, 1337, (uint64_t)count % 3);
    const int64_t large[] = {4095, 4096, 4097, 65537, 262144, 262145, 1000003};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) check_bijection(large[i], 42, i);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// For counts too large to visit all indices: a million images, half of them of neighbours, are distinct and in range.
TEST(huge_permutations_have_no_two_equal_images) {
    enum { SAMPLES = 1000000 };
    const int64_t counts[] = {3000000000, ((int64_t)1 << 40) + 1, ((int64_t)1 << 62) - 5};
    int64_t *images = malloc(SAMPLES * sizeof *images);
    assert_non_null(images);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t step = counts[c] / (SAMPLES / 2);
        for (int64_t i = 0; i < SAMPLES / 2; i++) {
            images[2 * i] = permute_index(i * step, counts[c], 7, 1);
            images[2 * i + 1] = permute_index(i * step + 1, counts[c], 7, 1);
        }
        qsort(images, SAMPLES, sizeof *images, by_value);
        assert_true(images[0] >= 0 && images[SAMPLES - 1] < counts[c]);
        for (int64_t i = 1; i < SAMPLES; i++) assert_true(images[i] != images[i - 1]);
    }
    free(images);
}

// A random permutation has about one fixed point, and maps an index of the first half into the first half with
// probability 1/2 (bounds: five standard errors). Small counts would reveal a weak round function.
TEST(the_permutation_looks_random) {
    enum { EPOCHS = 200 };
    const int64_t counts[] = {97, 256, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t count = counts[c], fixed = 0, stayed = 0, rising = 0;
        for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
            for (int64_t i = 0; i < count; i++) {
                int64_t image = permute_index(i, count, 1, epoch);
                fixed += image == i;
                if (i < count / 2) stayed += image < count / 2;
                if (i > 0) rising += image > permute_index(i - 1, count, 1, epoch);
            }
        assert_in_range(fixed, EPOCHS - 71, EPOCHS + 71);
        double half = (double)(count / 2) * EPOCHS, expected = half * (double)(count / 2) / (double)count;
        assert_true((double)stayed > expected - 2.5 * __builtin_sqrt(half));
        assert_true((double)stayed < expected + 2.5 * __builtin_sqrt(half));
        double pairs = (double)(count - 1) * EPOCHS;
        assert_true((double)rising > pairs / 2 - 2.5 * __builtin_sqrt(pairs));
        assert_true((double)rising < pairs / 2 + 2.5 * __builtin_sqrt(pairs));
    }
}

static int64_t equal_places(int64_t count, uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b) {
    int64_t equal = 0;
    for (int64_t i = 0; i < count; i++)
        equal += permute_index(i, count, seed_a, epoch_a) == permute_index(i, count, seed_b, epoch_b);
    return equal;
}

TEST(seeds_and_epochs_have_orders_of_their_own) {
    assert_true(equal_places(10000, 1, 0, 1, 1) < 10);
    assert_true(equal_places(10000, 1, 0, 2, 0) < 10);
    assert_int_equal(equal_places(10000, 1, 5, 1, 5), 10000);
}

TEST(more_shards_than_descriptors_are_opened) {
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){16, before.rlim_max};
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "many_%02d.bin", i);
        write_shard(name, GPT2, 1, 21, 21, 20 * i);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    Error err = {0};
    AutoDataset *dataset = dataset_open("data.train", test_path("many_*.bin"), 10, 257, 80, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_string_equal(err.text, "");
    assert_non_null(dataset);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
