// Writes JSON: the commas follow from the order of the calls. `key` names a member of an object; it is NULL for an
// entry of an array and for the outermost value.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// Initialize it as {.file = file}, or for a file that people read also with .tall.
typedef struct JsonOut {
    FILE *file;
    int tall;         // entries nested up to this depth have an indented line each, 1: those of the outermost; 0: none
    int depth;        // brackets that are open
    bool comma, line; // a comma, and a new line, precede the next value, key or bracket
} JsonOut;

// Begins an object ('{') or an array ('['), and ends it.
void json_begin(JsonOut *out, const char *key, char bracket);
void json_end(JsonOut *out, char bracket);
// Starts a new line after the comma of the next value, or before the next json_end.
void json_line(JsonOut *out);

void json_put_text(JsonOut *out, const char *key, const char *text); // NULL: null
void json_put_integer(JsonOut *out, const char *key, int64_t value);
void json_put_truth(JsonOut *out, const char *key, bool value);
void json_put_null(JsonOut *out, const char *key);
// Writes the fewest digits that read back as the same double; null for inf and nan, which JSON lacks.
void json_put_number(JsonOut *out, const char *key, double value);

// Write several members, "rank %d bytes %jd fits? %d name %s share %g rate %.4g", or an object of them: %d int, with a
// ? a truth; %jd int64_t; %s text, or null for NULL; %g numbers, as json_put_number; %.Ng with at most N digits.
void json_members(JsonOut *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void json_object(JsonOut *out, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Writes the key and returns the file, to which the caller writes the value.
FILE *json_put(JsonOut *out, const char *key);
