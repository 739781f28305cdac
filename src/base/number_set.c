// Levels of 64-bit words; number_set.h explains them. Insert and remove change at most one word per level.
#include "number_set.h"
#include "alloc.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = 64 };

void number_set_create(NumberSet *set, int numbers) {
    int size[NUMBER_SET_LEVELS], of = numbers;
    *set = (NumberSet){0};
    do {
        of = size[set->levels++] = of / WORD + 1;
        set->count += of;
    } while (of > 1);
    set->words = xcalloc((size_t)set->count, sizeof *set->words);
    for (int l = 0, at = 0; l < set->levels; at += size[l++]) set->level[l] = set->words + at;
}

void number_set_free(NumberSet *set) {
    free(set->words);
    *set = (NumberSet){0};
}

void number_set_clear(NumberSet *set) { memset(set->words, 0, (size_t)set->count * sizeof *set->words); }

static uint64_t bit_(int number) { return (uint64_t)1 << (number % WORD); }

void number_set_add(NumberSet *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) set->level[l][number / WORD] |= bit_(number);
}

void number_set_remove(NumberSet *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) {
        set->level[l][number / WORD] &= ~bit_(number);
        if (set->level[l][number / WORD] != 0) return;
    }
}

bool number_set_has(const NumberSet *set, int number) { return (set->level[0][number / WORD] & bit_(number)) != 0; }

static int lowest_(uint64_t word) { return __builtin_ctzll(word); }

static int highest_(uint64_t word) { return WORD - 1 - __builtin_clzll(word); }

int number_set_before(const NumberSet *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) {
        uint64_t below = set->level[l][number / WORD] & (bit_(number) - 1);
        if (below == 0) continue;
        number = number / WORD * WORD + highest_(below);
        while (l-- > 0) number = number * WORD + highest_(set->level[l][number]);
        return number;
    }
    return -1;
}

int number_set_after(const NumberSet *set, int number) {
    number++; // the smallest number that can be returned
    for (int l = 0; l < set->levels; l++, number = number / WORD + 1) {
        uint64_t from = set->level[l][number / WORD] & ~(bit_(number) - 1);
        if (from == 0) continue;
        number = number / WORD * WORD + lowest_(from);
        while (l-- > 0) number = number * WORD + lowest_(set->level[l][number]);
        return number;
    }
    return -1;
}
