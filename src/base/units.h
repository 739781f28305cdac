// Units and small arithmetic that several modules share.
#pragma once

#include <stdint.h>

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * 1024.0 * 1024.0)

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
// Unlike fmin and fmax, these are not calls, and NaN is not skipped.
static inline double min_double(double a, double b) { return a < b ? a : b; }
static inline double max_double(double a, double b) { return a > b ? a : b; }

// Orders doubles for qsort, smallest first.
static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the greatest common divisor of two non-negative integers; gcd(a, 0) = a.
static inline int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
