// Arithmetic of whole numbers.
#ifndef DIVISOR_H
#define DIVISOR_H

#include <stdint.h>

// Of two numbers that are not negative; with 0 the other one.
static inline int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
