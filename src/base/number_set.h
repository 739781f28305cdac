// A set of numbers 0 .. n-1, one bit each. Finding the next member above or below a number looks at 64 at a time. The
// BPipe pass keeps bundles in such sets.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct NumberSet {
    uint64_t *words;
    int count; // words
} NumberSet;

// Makes an empty set for 0 .. numbers-1.
void number_set_create(NumberSet *set, int numbers);
void number_set_free(NumberSet *set);
void number_set_clear(NumberSet *set);

static inline uint64_t number_set_bit(int number) { return (uint64_t)1 << (number % 64); }
static inline void number_set_add(NumberSet *set, int number) { set->words[number / 64] |= number_set_bit(number); }
static inline void number_set_remove(NumberSet *set, int number) { set->words[number / 64] &= ~number_set_bit(number); }
static inline bool number_set_has(const NumberSet *set, int number) {
    return (set->words[number / 64] & number_set_bit(number)) != 0;
}

// Return the largest member below `number`, and the smallest above it; -1 if not found. number_set_before also accepts
// the `numbers` of number_set_create, and number_set_after accepts -1.
int number_set_before(const NumberSet *set, int number);
int number_set_after(const NumberSet *set, int number);
