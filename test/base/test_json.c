// JSON to the letter: what is read, and that everything else is refused with a place.
#include "base/json.h"
#include "base/json_out.h"
#include "unit.h"

#include <malloc.h>
#include <math.h>
#include <string.h>

#define AutoJson __attribute__((cleanup(json_free))) Json

static int parse(Json *json, const char *text) {
    unit_error = (Error){0};
    return json_parse(json, text, (int64_t)strlen(text), "x.json", &unit_error);
}

static Json parsed(const char *text) {
    Json json;
    assert_succeeds(parse(&json, text));
    return json;
}

static int parse_python(Json *json, const char *text) {
    return json_parse_python(json, text, (int64_t)strlen(text), "x.json", &unit_error);
}

TEST(every_kind_of_value_is_read) {
    const char *text =
        " { \"a\" : [ 1 , -2.5e1, true, false, null ] ,\n\t\"b\": {\"c\": \"d\"}, \"e\": {}, \"f\": [], \"\": 0 }\r\n";
    AutoJson json = parsed(text);
    const JsonValue *a = json_find(json.root, "a"), *at = a->first;
    assert_int_equal(json.root->count, 5);
    assert_int_equal(a->count, 5);
    assert_true(at->whole && at->integer == 1);
    at = at->next;
    assert_true(!at->whole && at->number == -25.0);
    at = at->next;
    assert_true(at->type == JSON_BOOL && at->truth);
    at = at->next;
    assert_true(at->type == JSON_BOOL && !at->truth);
    assert_true(at->next->type == JSON_NULL && at->next->next == NULL);
    assert_string_equal(json_text(json_find(json.root, "b"), "c", ""), "d");
    assert_null(json_find(json.root, "e")->first);
    assert_null(json_find(json.root, "absent"));
    assert_null(json_find(json_find(json.root, "absent"), "c"));
    assert_int_equal(json_integer(json.root, "", 7), 0);
    assert_int_equal(json_integer(json.root, "b", 7), 7);
    assert_string_equal(json_text(json.root, "a", "other"), "other");
}

TEST(integers_are_exact_to_64_bits) {
    AutoJson json = parsed("[9223372036854775807, -9223372036854775808, 9223372036854775808, 1e3, 1.0]");
    const JsonValue *at = json.root->first;
    assert_true(at->whole && at->integer == INT64_MAX);
    at = at->next;
    assert_true(at->whole && at->integer == INT64_MIN);
    at = at->next;
    assert_true(!at->whole && at->number == 0x1p63);
    assert_true(!at->next->whole && at->next->number == 1000.0);
    assert_true(!at->next->next->whole);
}

TEST(texts_are_decoded) {
    AutoJson json =
        parsed("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e4\\u20AC\\ud83d\\ude00\\ue000 \xc3\xa4 \xf0\x9f\x98\x80\"");
    assert_string_equal(json.root->text,
                        "\"\\/\b\f\n\r\tA\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xee\x80\x80 \xc3\xa4 \xf0\x9f\x98\x80");
}

TEST(what_is_written_reads_back) {
    const char *texts[] = {"", "plain", "\"quoted\\\"", "\x01\x1f\x7f\n\t", "\xc3\xa4\xf0\x9f\x98\x80"};
    const double numbers[] = {0.0, 1.0, 0.1, 1e-5, 1.0 / 3.0, -2.5e300, 9007199254740993.0};
    AutoText *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    fputs("[0", file);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) fputc(',', file), json_write_text(file, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) fputc(',', file), json_write_number(file, numbers[i]);
    fputc(']', file);
    fclose(file);
    AutoJson json = parsed(text);
    const JsonValue *at = json.root->first->next;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, at = at->next) assert_string_equal(at->text, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++, at = at->next) assert_true(at->number == numbers[i]);
    assert_null(at);
}

// A variable of the environment with such a byte is in training.json, from which a run resumes.
TEST(text_that_is_not_utf_8_is_written_as_valid_json) {
    AutoText *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    json_write_text(file, "caf\xe9 \xe2\x82\xac \xe2\x82");
    fclose(file);
    AutoJson json = parsed(text);
    assert_string_equal(json.root->text, "caf\xef\xbf\xbd \xe2\x82\xac \xef\xbf\xbd\xef\xbf\xbd");
}

TEST(members_are_written_by_their_kinds) {
    AutoText *text = NULL;
    const char *volatile nothing = NULL;
    size_t length = 0;
    JsonOut out = {.file = open_memstream(&text, &length)};
    json_begin(&out, NULL, '{');
    json_members(&out, "a %d b %jd c? %d d? %d e %s f %s", -1, INT64_MAX, true, false, "x\"", nothing);
    json_object(&out, "g", "h %g i %.3g j %.17g", 0.1, 1.0 / 3, NAN);
    json_end(&out, '}');
    fclose(out.file);
    assert_string_equal(text, "{\"a\":-1,\"b\":9223372036854775807,\"c\":true,\"d\":false,\"e\":\"x\\\"\",\"f\":null,"
                              "\"g\":{\"h\":0.1,\"i\":0.333,\"j\":null}}");
}

// clang-format off
static const char *const garbage[] = {
    "1e999", "[1, -1e400]", "", " ", "nul", "nulL", "truefalse", "{", "}", "[", "]", "[1,]", "[,1]", "[1 2]", "[1}",
    "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{1:1}", "{\"a\":1 \"b\":2}", "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"\\u0061\":2}", "{\"a\\u0000b\":1}", "1 2", "[] []", "01", "-", "-a", "+1", ".5", "1.", "1e", "1e+",
    "0x10", "NaN", "Infinity", "-Infinity", "'a'", "\"a", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u0000\"",
    "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\ude00\"", "\"a\nb\"", "\"\x01\"", "\"\x80\"", "\"\xc0\xaf\"",
    "\"\xe0\x80\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf0\x9f\x98\"", "// comment\n1",
    "\xef\xbb\xbf" "1",
};
// clang-format on

TEST(garbage_is_refused_with_its_place) {
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        AutoJson json;
        if (parse(&json, garbage[i]) == 0) fail_msg("read as JSON: %s", garbage[i]);
        assert_int_equal(unit_error.code, EXIT_FAILED);
        assert_ptr_equal(strstr(unit_error.text, "x.json: byte "), unit_error.text);
    }
    AutoJson json;
    assert_refused(json_parse(&json, "1\0002", 3, "x.json", &unit_error), EXIT_FAILED, ""); // a NUL is no end
}

TEST(pythons_infinities_are_numbers_only_where_they_are_asked_for) {
    static const char text[] = "{\"a\": [Infinity, -Infinity, NaN, -1], \"b\": Infinit}";
    int64_t length = (int64_t)(strchr(text, ']') - text) + 1;
    char whole[sizeof text];
    snprintf(whole, sizeof whole, "%.*s}", (int)length, text);
    AutoJson json, strict, cut;
    assert_succeeds(parse_python(&json, whole));
    const JsonValue *at = json_find(json.root, "a")->first;
    assert_true(at->number == INFINITY && !at->whole && at->type == JSON_NUMBER);
    assert_true(at->next->number == -INFINITY && isnan(at->next->next->number));
    assert_int_equal(at->next->next->next->integer, -1);
    assert_refused(parse(&strict, whole), EXIT_FAILED, "");
    assert_refused(parse_python(&cut, text), EXIT_FAILED, "");
}

TEST(memory_is_for_values_not_for_what_strings_contain) {
    char text[4096] = "[\"";
    for (size_t at = 2; at < 4000; at += 5) strcpy(text + at, ",[{\\\"");
    strcat(text, "\", 1, {\"\\\\\": [2, 3]}]");
    AutoJson json = parsed(text);
    assert_int_equal(json.root->count, 3);
    assert_int_equal(json_find(json.root->first->next->next, "\\")->count, 2);
    assert_true(malloc_usable_size(json.values_) < 1000);
}

TEST(depth_is_bounded) {
    char text[2 * JSON_MAX_DEPTH + 8];
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        AutoJson json;
        assert_int_equal(parse(&json, text), depth <= JSON_MAX_DEPTH ? 0 : -1);
    }
    size_t length = 10 << 20;
    AutoText *deep = malloc(length);
    assert_non_null(deep);
    for (size_t i = 0; i < length; i += 4) memcpy(deep + i, "{\"\":", 4);
    AutoJson json;
    assert_refused(json_parse(&json, deep, (int64_t)length, "x.json", &unit_error), EXIT_FAILED, "nested too deeply");
}

TEST(a_file_that_is_not_there_is_named) {
    AutoJson absent, endless;
    assert_refused(json_read_file(&absent, "no/such/file.json", &unit_error), EXIT_FAILED,
                   "no/such/file.json: cannot be read: No such file");
    assert_refused(json_read_file(&endless, "/dev/zero", &unit_error), EXIT_FAILED,
                   "/dev/zero: is not a regular file; use a regular file");
}
