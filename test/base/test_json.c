// JSON to the letter: what is read, and that everything else is refused with a place.
#include "base/json.h"
#include "base/json_out.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static int parse(Json *json, const char *text, Error *err) {
    *err = (Error){0};
    return json_parse(json, text, (int64_t)strlen(text), "x.json", err);
}

TEST(every_kind_of_value_is_read) {
    Json json;
    Error err;
    const char *text =
        " { \"a\" : [ 1 , -2.5e1, true, false, null ] ,\n\t\"b\": {\"c\": \"d\"}, \"e\": {}, \"f\": [], \"\": 0 }\r\n";
    assert_int_equal(parse(&json, text, &err), 0);
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
    json_free(&json);
}

TEST(integers_are_exact_to_64_bits) {
    Json json;
    Error err;
    assert_int_equal(parse(&json, "[9223372036854775807, -9223372036854775808, 9223372036854775808, 1e3, 1.0]", &err),
                     0);
    const JsonValue *at = json.root->first;
    assert_true(at->whole && at->integer == INT64_MAX);
    at = at->next;
    assert_true(at->whole && at->integer == INT64_MIN);
    at = at->next;
    assert_true(!at->whole && at->number == 0x1p63);
    assert_true(!at->next->whole && at->next->number == 1000.0);
    assert_true(!at->next->next->whole);
    json_free(&json);
}

TEST(texts_are_decoded) {
    Json json;
    Error err;
    assert_int_equal(
        parse(&json, "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e4\\u20AC\\ud83d\\ude00 \xc3\xa4 \xf0\x9f\x98\x80\"",
              &err),
        0);
    assert_string_equal(json.root->text,
                        "\"\\/\b\f\n\r\tA\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa4 \xf0\x9f\x98\x80");
    json_free(&json);
}

TEST(what_is_written_reads_back) {
    const char *texts[] = {"", "plain", "\"quoted\\\"", "\x01\x1f\x7f\n\t", "\xc3\xa4\xf0\x9f\x98\x80"};
    const double numbers[] = {0.0, 1.0, 0.1, 1e-5, 1.0 / 3.0, -2.5e300, 9007199254740993.0};
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    fputs("[0", file);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) fputc(',', file), json_write_text(file, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) fputc(',', file), json_write_number(file, numbers[i]);
    fputc(']', file);
    fclose(file);
    Json json;
    Error err;
    assert_int_equal(parse(&json, text, &err), 0);
    const JsonValue *at = json.root->first->next;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, at = at->next) assert_string_equal(at->text, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++, at = at->next) assert_true(at->number == numbers[i]);
    assert_null(at);
    json_free(&json);
    free(text);
}

TEST(members_are_written_by_their_kinds) {
    char *text = NULL;
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
    free(text);
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
        Json json;
        Error err;
        if (parse(&json, garbage[i], &err) == 0) fail_msg("read as JSON: %s", garbage[i]);
        assert_int_equal(err.code, EXIT_FAILED);
        assert_ptr_equal(strstr(err.text, "x.json: byte "), err.text);
        json_free(&json);
    }
    Json json;
    Error err = {0};
    assert_int_equal(json_parse(&json, "1\0002", 3, "x.json", &err), -1); // a NUL is no end
    json_free(&json);
}

TEST(pythons_infinities_are_numbers_only_where_they_are_asked_for) {
    static const char text[] = "{\"a\": [Infinity, -Infinity, NaN, -1], \"b\": Infinit}";
    Json json;
    Error err = {0};
    int64_t length = (int64_t)(strchr(text, ']') - text) + 1;
    char whole[sizeof text];
    snprintf(whole, sizeof whole, "%.*s}", (int)length, text);
    assert_int_equal(json_parse_python(&json, whole, (int64_t)strlen(whole), "x.json", &err), 0);
    const JsonValue *at = json_find(json.root, "a")->first;
    assert_true(at->number == INFINITY && !at->whole && at->type == JSON_NUMBER);
    assert_true(at->next->number == -INFINITY && isnan(at->next->next->number));
    assert_int_equal(at->next->next->next->integer, -1);
    json_free(&json);
    assert_int_equal(parse(&json, whole, &err), -1);
    json_free(&json);
    assert_int_equal(json_parse_python(&json, text, (int64_t)strlen(text), "x.json", &err), -1);
    json_free(&json);
}

TEST(depth_is_bounded) {
    char text[2 * JSON_MAX_DEPTH + 8];
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        Json json;
        Error err;
        assert_int_equal(parse(&json, text, &err), depth <= JSON_MAX_DEPTH ? 0 : -1);
        json_free(&json);
    }
    size_t length = 10 << 20;
    AutoText *deep = malloc(length);
    assert_non_null(deep);
    for (size_t i = 0; i < length; i += 4) memcpy(deep + i, "{\"\":", 4);
    Json json;
    Error err = {0};
    assert_int_equal(json_parse(&json, deep, (int64_t)length, "x.json", &err), -1);
    assert_non_null(strstr(err.text, "nested too deeply"));
    json_free(&json);
}

TEST(a_file_that_is_not_there_is_named) {
    Json json;
    Error err = {0};
    assert_int_equal(json_read_file(&json, "no/such/file.json", &err), -1);
    assert_non_null(strstr(err.text, "no/such/file.json: cannot be read: No such file"));
    json_free(&json);
    err = (Error){0};
    assert_int_equal(json_read_file(&json, "/dev/zero", &err), -1); // does not end
    assert_string_equal(err.text, "/dev/zero: is not a regular file; use a regular file");
    json_free(&json);
}
