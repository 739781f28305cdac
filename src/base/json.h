// A small strict reader of JSON (RFC 8259) for untrusted files; every deviation is an error that names its position. It
// is stricter than the standard where leniency would hide damage: no duplicate keys, no NUL inside a string, UTF-8
// only. Depth and size are bounded, so that no file can exhaust the stack or the memory.
#pragma once

#include "log.h"

#include <stddef.h>

enum { JSON_MAX_DEPTH = 64, JSON_MAX_BYTES = 32 << 20 }; // the tokenizer.json of Llama 3.3 has 17 MB

typedef enum JsonType { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct JsonValue JsonValue;
struct JsonValue {
    JsonType type;
    bool truth;       // JSON_BOOL
    bool whole;       // true: a JSON_NUMBER that fits int64_t, written without fraction and exponent
    const char *key;  // name of an object's member, else NULL
    const char *text; // JSON_TEXT, ends with NUL
    double number;    // JSON_NUMBER; finite, except from json_parse_python
    int64_t integer;  // valid if `whole`
    int64_t count;    // entries or members
    JsonValue *first; // JSON_ARRAY, JSON_OBJECT; NULL if empty
    JsonValue *next;  // next entry of the same array or object; NULL after the last
};

// Owns the values and their texts.
typedef struct Json {
    const JsonValue *root;
    char *text_;
    JsonValue *values_;
} Json;

// Parses `length` bytes. Errors begin with `name` (a path): "NAME: byte 17: ...". Returns -1 with err (EXIT_FAILED).
// Call json_free even after an error.
int json_parse(Json *json, const char *text, int64_t length, const char *name, Error *err);
// Also reads Infinity, -Infinity and NaN, which Python writes although JSON lacks them. They are not `whole`.
int json_parse_python(Json *json, const char *text, int64_t length, const char *name, Error *err);
// Reads the file `path` and parses it like json_parse.
int json_read_file(Json *json, const char *path, Error *err);
void json_free(Json *json);

// Returns the member `key` of an object; NULL if it is missing, or if `object` is NULL or not an object.
const JsonValue *json_find(const JsonValue *object, const char *key);

// Return the member `key` of an object if it is an integer (json_integer) or a text (json_text), else `otherwise`.
int64_t json_integer(const JsonValue *object, const char *key, int64_t otherwise);
const char *json_text(const JsonValue *object, const char *key, const char *otherwise);
bool json_true(const JsonValue *object, const char *key); // whether the member is `true`

// Writes text as a JSON string with its quotes. U+FFFD takes the place of bytes that are not UTF-8.
void json_write_text(FILE *file, const char *text);
// Writes a number with the fewest digits that read back as the same double; null for inf and nan, which JSON lacks.
void json_write_number(FILE *file, double value);

// Completes an object in an xmemstream, which lacks only its closing brace: appends its checksum as the last member.
void json_seal(FILE *memory, char *const *text, const size_t *length);
// Returns whether `text` matches the checksum at its end; false if the text is truncated or was changed.
bool json_sealed(const char *text, int64_t length);
