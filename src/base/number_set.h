// A set of numbers 0 .. n-1. Finding the next member above or below a number takes a few steps at any distance. The
// BPipe pass keeps bundles in such sets.
//
// Level 0 has a bit per number. Each further level has a bit per word of the level below, set if the word is not 0:
//
//   level 1   ...0101                            a search for the member after 2 finds no bit above 2 in word 0,
//   level 0   word 0 ...0110  word 2 ...1000     climbs, finds word 2, and descends to its lowest bit: 131
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { NUMBER_SET_LEVELS = 6 }; // enough for every int

typedef struct NumberSet {
    uint64_t *words; // bits of all levels
    uint64_t *level[NUMBER_SET_LEVELS];
    int levels, count; // count: words
} NumberSet;

// Makes an empty set for 0 .. numbers-1.
void number_set_create(NumberSet *set, int numbers);
void number_set_free(NumberSet *set);
void number_set_clear(NumberSet *set);

void number_set_add(NumberSet *set, int number);
void number_set_remove(NumberSet *set, int number);
bool number_set_has(const NumberSet *set, int number);

// Return the largest member below `number`, and the smallest above it; -1 if not found. number_set_before also accepts
// the `numbers` of number_set_create, and number_set_after accepts -1.
int number_set_before(const NumberSet *set, int number);
int number_set_after(const NumberSet *set, int number);
