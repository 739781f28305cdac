// Unit tests with cmocka. TEST(name) { ... } defines a test; the program of a file runs its tests in their order.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "written.h"

// Fails unless `text`, such as an error, contains `words`.
#define assert_contains(text, words)                                                                                   \
    do                                                                                                                 \
        if (strstr(text, words) == NULL) fail_msg("expected \"%s\" in: %s", words, text);                              \
    while (0)

// For calls of the product that set an error where they fail: they get &unit_error. A call that has to succeed shows
// the error's text if it does not.
__attribute__((unused)) static Error unit_error;
#define assert_succeeds(call)                                                                                          \
    do {                                                                                                               \
        unit_error = (Error){0};                                                                                       \
        if ((call) != 0) fail_msg("%s", unit_error.text);                                                              \
    } while (0)
// The pointer that a call returns.
#define assert_made(call)                                                                                              \
    ({                                                                                                                 \
        unit_error = (Error){0};                                                                                       \
        __typeof__(call) made_ = (call);                                                                               \
        if (made_ == NULL) fail_msg("%s", unit_error.text);                                                            \
        made_;                                                                                                         \
    })
// Fails unless the call returns -1 or NULL with this exit code, and its error contains `words`.
#define assert_refused(call, exit_code, words)                                                                         \
    do {                                                                                                               \
        unit_error = (Error){0};                                                                                       \
        assert_int_equal((intptr_t)(call), _Generic((call), int : -1, long : -1, default : 0));                        \
        assert_int_equal(unit_error.code, exit_code);                                                                  \
        assert_contains(unit_error.text, words);                                                                       \
    } while (0)

// UNIT_ENDS(end) in front of a declaration: at the end of the block `end` gets the variable's pointer. UNIT_END makes
// it known for a type. Aliases such as AutoSchedule contain both.
#define UNIT_END(type, end)                                                                                            \
    static inline void end##_of(type **variable) { end(*variable); }
#define UNIT_ENDS(end) __attribute__((cleanup(end##_of)))

UNIT_END(char, free)
#define AutoText UNIT_ENDS(free) char

// True under a sanitizer, which makes a program several times slower. Tests then use fewer cases.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNIT_SANITIZED = 1 };
#else
enum { UNIT_SANITIZED = 0 };
#endif

static struct CMUnitTest unit_tests[64];
static size_t unit_count;
static CMFixtureFunction unit_before, unit_after;

static inline void unit_add(struct CMUnitTest test) {
    if (unit_count == sizeof unit_tests / sizeof *unit_tests) abort();
    unit_tests[unit_count++] = test;
}

// Returns the number of tests that failed.
static inline int unit_run(void) {
    return _cmocka_run_group_tests("tests", unit_tests, unit_count, unit_before, unit_after);
}

#ifndef UNIT_OWN_MAIN
int main(void) { return unit_run(); }
#endif

// Runs all tests of a file, with a set-up and a tear-down for the complete file.
#define TESTS_BETWEEN(before, after)                                                                                   \
    __attribute__((constructor)) static void unit_between(void) {                                                      \
        unit_before = before;                                                                                          \
        unit_after = after;                                                                                            \
    }

#define TEST(name) TEST_BETWEEN(name, NULL, NULL)
// Defines a test with a set-up and a tear-down, which may be NULL.
#define TEST_BETWEEN(name, before, after)                                                                              \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void add_##name(void) {                                                        \
        unit_add((struct CMUnitTest){#name, name, before, after, NULL});                                               \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)
