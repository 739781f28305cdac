// Messages for users, and the errors that lead to them.
//
// A function that can fail for a reason a user can act on takes an `Error *`, fills it once, and returns -1 or NULL.
// Only the top of the program prints: status lines and errors go to stderr, results to stdout. --quiet and --verbose
// choose how many status lines are printed; errors and results always are.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_STOPPED = 3 };

// One error: the exit code it leads to and one sentence that names the place and the remedy.
typedef struct Error {
    int code;
    bool everywhere; // all ranks found the same error at the same time, so one of them reports it for all
    double when;     // clock_seconds at the error: the earliest error of several ranks is the cause
    char text[1024];
} Error;

// Fills err (which may be NULL) and returns -1. The first error wins: a second call keeps the first text.
int error_set(Error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define error_null(...) (error_set(__VA_ARGS__), NULL) // for functions that return a pointer
// error_set for an error that all ranks find at the same time. err must not be NULL.
#define error_on_all(err, ...) ((err)->everywhere = true, error_set(err, __VA_ARGS__))

typedef enum LogLevel { LOG_SILENT = -2, LOG_QUIET, LOG_NORMAL, LOG_VERBOSE } LogLevel; // silent: not even errors

// The sender of messages. Lines read `program: text`, or `program: [rank 3 stage 1] text` if rank >= 0.
typedef struct Log {
    const char *program;
    int rank;  // -1 before ranks exist
    int stage; // -1 if no stage is known
    LogLevel level;
} Log;

// Returns a copy of the log without rank and stage, for messages on behalf of all ranks.
Log log_of_all(const Log *log);

// Writes a stderr line by one write(), so ranks' lines never mix. Control characters become '?' (text_make_printable).
void log_at(const Log *log, LogLevel level, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define log_line(log, ...)   log_at(log, LOG_QUIET, __VA_ARGS__)   // errors and warnings
#define log_status(log, ...) log_at(log, LOG_NORMAL, __VA_ARGS__)  // unless --quiet
#define log_detail(log, ...) log_at(log, LOG_VERBOSE, __VA_ARGS__) // only with --verbose

// Appends to a text in memory of `size` bytes, at least 4. A text that does not fit is cut and ends with "...".
void text_add(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Returns the length in bytes of the UTF-8 character at `text` and sets *code; 0 if the character is invalid: overlong,
// a surrogate, above U+10FFFF or cut off. length: bytes of text from `text` on.
int text_decode(const char *text, size_t length, uint32_t *code);

// Writes '?', in place, over every character that could move the cursor, forge a line or reorder the text: control
// characters (C0, DEL, C1), marks of writing direction, line and paragraph separators, and bytes that are not UTF-8.
// `keep` lists control characters to leave unchanged, such as "\n\t". Returns the new length, which is never larger.
size_t text_make_printable(char *text, size_t length, const char *keep);

__END_DECLS
