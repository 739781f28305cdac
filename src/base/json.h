// A small strict reader of JSON (RFC 8259), for files that came from elsewhere: what is not JSON to the letter is an error that says
// where. Stricter than the standard where leniency would hide damage: no key twice in an object, no NUL inside a text, UTF-8 only.
// Depth and size are bounded, so that no file can exhaust the stack or the memory.
#ifndef JSON_H
#define JSON_H

#include "log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_MAX_DEPTH = 64, JSON_MAX_BYTES = 16 << 20 };

typedef enum JsonType { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct JsonValue JsonValue;
struct JsonValue {
    JsonType type;
    bool truth;       // JSON_BOOL
    bool whole;       // JSON_NUMBER without fraction and exponent that fits int64_t
    const char *key;  // of a member of an object, else NULL
    const char *text; // JSON_TEXT, ends with NUL
    double number;    // JSON_NUMBER, finite
    int64_t integer;  // where whole
    int64_t count;    // entries or members
    JsonValue *first; // JSON_ARRAY, JSON_OBJECT; NULL where empty
    JsonValue *next;  // behind this one in the same array or object
};

// Owns the values and their texts.
typedef struct Json {
    const JsonValue *root;
    char *text_;
    struct JsonChunk *chunks_;
} Json;

// Reads `length` bytes; `name` (a path) begins the error: "NAME: byte 17: ...". -1 with err (EXIT_FAILED). json_free in both cases.
int json_parse(Json *json, const char *text, int64_t length, const char *name, Error *err);
// The same with a file's content.
int json_read_file(Json *json, const char *path, Error *err);
void json_free(Json *json);

// Member of an object, NULL where there is none, or where `object` is NULL or no object.
const JsonValue *json_find(const JsonValue *object, const char *key);

// What a member holds if it is there and of that type, else `otherwise`.
int64_t json_integer(const JsonValue *object, const char *key, int64_t otherwise);
const char *json_text(const JsonValue *object, const char *key, const char *otherwise);

// Bytes of the UTF-8 character at `at`, 0 where it is none: overlong forms, surrogates and what lies beyond U+10FFFF are none.
int json_utf8_length(const char *at, const char *end);

// Writes text as a JSON string with its quotes.
void json_write_text(FILE *file, const char *text);
// Writes a finite number with as few digits as read back as the same double.
void json_write_number(FILE *file, double value);

#endif
