// Bits in levels of 64: one word of a level says which words of the level below have members, so a search climbs until
// it finds a word with a member on its side and descends from there. Adding and removing touch one word a level.
#include "turns.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = 64 };

int turns_create(Turns *set, int numbers) {
    int size[TURNS_LEVELS], of = numbers;
    *set = (Turns){0};
    do {
        of = size[set->levels++] = of / WORD + 1;
        set->count += of;
    } while (of > 1);
    set->words = calloc((size_t)set->count, sizeof *set->words);
    if (set->words == NULL) return -1;
    for (int l = 0, at = 0; l < set->levels; at += size[l++]) set->level[l] = set->words + at;
    return 0;
}

void turns_free(Turns *set) {
    free(set->words);
    *set = (Turns){0};
}

void turns_clear(Turns *set) {
    memset(set->words, 0, (size_t)set->count * sizeof *set->words);
}

static uint64_t bit_(int number) {
    return (uint64_t)1 << (number % WORD);
}

void turns_add(Turns *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) set->level[l][number / WORD] |= bit_(number);
}

void turns_remove(Turns *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) {
        set->level[l][number / WORD] &= ~bit_(number);
        if (set->level[l][number / WORD] != 0) return;
    }
}

bool turns_has(const Turns *set, int number) {
    return (set->level[0][number / WORD] & bit_(number)) != 0;
}

static int lowest_(uint64_t word) {
    return __builtin_ctzll(word);
}

static int highest_(uint64_t word) {
    return WORD - 1 - __builtin_clzll(word);
}

int turns_before(const Turns *set, int number) {
    for (int l = 0; l < set->levels; l++, number /= WORD) {
        uint64_t below = set->level[l][number / WORD] & (bit_(number) - 1);
        if (below == 0) continue;
        number = number / WORD * WORD + highest_(below);
        while (l-- > 0) number = number * WORD + highest_(set->level[l][number]);
        return number;
    }
    return -1;
}

int turns_after(const Turns *set, int number) {
    number++; // the first that may be found
    for (int l = 0; l < set->levels; l++, number = number / WORD + 1) {
        uint64_t from = set->level[l][number / WORD] & ~(bit_(number) - 1);
        if (from == 0) continue;
        number = number / WORD * WORD + lowest_(from);
        while (l-- > 0) number = number * WORD + lowest_(set->level[l][number]);
        return number;
    }
    return -1;
}
