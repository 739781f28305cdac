// The safetensors format: sizes in a header are never trusted. What is written reads back: test_checkpoint.py.
#include "checkpoint/safetensors.h"

#include "base/crc64.h"
#include "scratch_folder.h"
#include "unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static const char *path(void) { return test_path("file.safetensors"); }

// Writes a header, then `data` zero bytes.
static void write_file(const char *header, size_t data) {
    size_t length = strlen(header);
    AutoText *text = calloc(1, 8 + length + data + 1);
    assert_non_null(text);
    for (int i = 0; i < 8; i++) text[i] = (char)(length >> (8 * i) & 0xFF);
    memcpy(text + 8, header, length);
    test_file_write("file.safetensors", text, 8 + length + data);
}

#define DAMAGED "is not a safetensors file, or it is cut off or damaged"

typedef struct Bad {
    const char *header;
    size_t data;
    const char *says;
} Bad;

#define TENSOR(name, shape, begin, end)                                                                                \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static const Bad bad[] = {
    {"[]", 0, DAMAGED},
    {"{", 0, "byte"},
    {"{\"a\":1}", 0, DAMAGED},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, DAMAGED},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, DAMAGED},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, DAMAGED},
    {"{" TENSOR("a", "[-1]", "0", "4") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[\"1\"]", "0", "4") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[2]", "0", "4") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[4]", "0", "16") "}", 12, DAMAGED},
    {"{" TENSOR("a", "[1]", "4", "0") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[1]", "0", "9223372036854775807") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[4611686018427387904,4]", "0", "0") "}", 0, DAMAGED},
    {"{" TENSOR("a", "[9223372036854775807]", "0", "4") "}", 4, DAMAGED},
    {"{" TENSOR("a", "[1]", "4", "8") "}", 8, DAMAGED},
    {"{" TENSOR("a", "[1]", "0", "4") "," TENSOR("b", "[1]", "8", "12") "}", 12, DAMAGED},
    {"{" TENSOR("a", "[2]", "0", "8") "," TENSOR("b", "[1]", "4", "8") "}", 8, DAMAGED},
    {"{" TENSOR("a", "[1]", "0", "4") "," TENSOR("a", "[1]", "4", "8") "}", 8, "appears twice"},
    {"{" TENSOR("a", "[1]", "0", "4") "}", 5, DAMAGED},
    {"{}", 1, DAMAGED},
};

TEST(no_size_in_a_header_is_believed) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        SafeFile file;
        Error err = {0};
        write_file(bad[i].header, bad[i].data);
        if (safetensors_open(&file, path(), &err) == 0) fail_msg("taken: %s", bad[i].header);
        assert_int_equal(err.code, EXIT_FAILED);
        assert_ptr_equal(strstr(err.text, path()), err.text);
        assert_contains(err.text, bad[i].says);
        safetensors_close(&file);
    }
}

TEST(odd_but_right_headers_are_taken) {
    const char *good[] = {"{}", "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"}}   ",
                          "{" TENSOR("b", "[1]", "4", "8") "," TENSOR("a", "[1]", "0", "4") "}",
                          "{" TENSOR("a", "[]", "0", "4") "," TENSOR("b", "[1,1,1]", "4", "8") "}",
                          "{" TENSOR("a", "[0,9223372036854775807]", "0", "0") "," TENSOR("b", "[2]", "0", "8") "}"};
    const size_t data[] = {0, 0, 8, 8, 8};
    for (int i = 0; i < 5; i++) {
        SafeFile file;
        write_file(good[i], data[i]);
        assert_succeeds(safetensors_open(&file, path(), &unit_error));
        safetensors_close(&file);
    }
}

TEST(a_length_word_beyond_the_file_is_refused) {
    const uint64_t lengths[] = {1, 3, 1ull << 20, 1ull << 40, 1ull << 62, 1ull << 63, ~0ull, ~0ull - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char text[10] = {0};
        memcpy(text, &lengths[i], 8);
        memcpy(text + 8, "{}", 2);
        test_file_write("file.safetensors", text, sizeof text);
        SafeFile file;
        assert_refused(safetensors_open(&file, path(), &unit_error), EXIT_FAILED, "");
        safetensors_close(&file);
    }
    for (size_t bytes = 0; bytes < 8; bytes++) {
        test_file_write("file.safetensors", "\0\0\0\0\0\0\0\0", bytes);
        SafeFile file;
        assert_refused(safetensors_open(&file, path(), &unit_error), EXIT_FAILED, DAMAGED);
        safetensors_close(&file);
    }
}

TEST(numbers_become_fp32) {
    const uint16_t halves[] = {0x0000, 0x8000, 0x3C00, 0xC000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x3555};
    const float expected[] = {0.0f,     -0.0f,    1.0f,     -2.0f,     0x1p-24f,   0x1.ff8p-15f,
                              0x1p-14f, 65504.0f, INFINITY, -INFINITY, 0x1.554p-2f};
    float out[11];
    safetensors_to_float(out, halves, SAFE_F16, 11);
    assert_memory_equal(out, expected, sizeof out);
    uint16_t nan = 0x7E00;
    safetensors_to_float(out, &nan, SAFE_F16, 1);
    assert_true(isnan(out[0]));
    const uint16_t brain[] = {0x3F80, 0xC049, 0x0001, 0x7F80};
    const float brains[] = {1.0f, -3.140625f, 0x1p-133f, INFINITY};
    safetensors_to_float(out, brain, SAFE_BF16, 4);
    assert_memory_equal(out, brains, sizeof brains);
    const double wide[] = {1.0 / 3.0, -1e300};
    safetensors_to_float(out, wide, SAFE_F64, 2);
    assert_true(out[0] == (float)(1.0 / 3.0) && isinf(out[1]));
}

// --- checksums

TEST(checksums_of_pieces_add_up_in_any_order) {
    Crc64 crc = crc64_make();
    uint8_t data[1000];
    unsigned random = 3;
    for (int i = 0; i < 1000; i++) data[i] = (uint8_t)((random = random * 1103515245u + 12345u) >> 16);
    uint64_t whole = crc64_add(&crc, 0, data, 1000);
    for (int step = 1; step < 300; step += 7) {
        uint64_t sum = 0;
        for (int end = 1000; end > 0; end -= step) { // backwards from the last byte
            int begin = end > step ? end - step : 0;
            sum ^= crc64_times(crc64_add(&crc, 0, data + begin, (size_t)(end - begin)), crc64_shift(&crc, 1000 - end));
        }
        assert_true(sum == whole);
    }
    int64_t far = (1ll << 40) + 12345;
    assert_true(crc64_times(crc64_shift(&crc, far), crc64_shift(&crc, 7)) == crc64_shift(&crc, far + 7));
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)
