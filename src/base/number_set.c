// Words of 64 bits, the lowest number in the lowest bit of the first word.
#include "number_set.h"
#include "alloc.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = 64 };

void number_set_create(NumberSet *set, int numbers) {
    set->count = numbers / WORD + 1;
    set->words = xcalloc((size_t)set->count, sizeof *set->words);
}

void number_set_free(NumberSet *set) { free(set->words); }

void number_set_clear(NumberSet *set) { memset(set->words, 0, (size_t)set->count * sizeof *set->words); }

int number_set_before(const NumberSet *set, int number) {
    int at = number / WORD;
    uint64_t below = set->words[at] & (number_set_bit(number) - 1);
    while (below == 0 && at > 0) below = set->words[--at];
    return below == 0 ? -1 : at * WORD + WORD - 1 - __builtin_clzll(below);
}

int number_set_after(const NumberSet *set, int number) {
    int at = ++number / WORD; // from the smallest number that can be returned
    uint64_t from = set->words[at] & ~(number_set_bit(number) - 1);
    while (from == 0 && ++at < set->count) from = set->words[at];
    return from == 0 ? -1 : at * WORD + __builtin_ctzll(from);
}
