// A set of numbers from 0 on, in which the next member on either side of a number is found at once, however far it is:
// the BPipe pass keeps the turns of its bundles in such sets.
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum { TURNS_LEVELS = 6 }; // 64^6 numbers

// Level 0 has a bit for every number, each further level a bit for every word of the one below that has a member.
typedef struct Turns {
    uint64_t *words; // of all levels
    uint64_t *level[TURNS_LEVELS];
    int levels, count; // words
} Turns;

// Makes an empty set for 0 .. numbers-1. -1: memory ran out. turns_free may be called in any case.
int turns_create(Turns *set, int numbers);
void turns_free(Turns *set);
void turns_clear(Turns *set);

void turns_add(Turns *set, int number);
void turns_remove(Turns *set, int number);
bool turns_has(const Turns *set, int number);

// Return the largest member below `number`, and the smallest above it; -1: none. `number` may also be the `numbers` of
// turns_create (turns_before) or -1 (turns_after).
int turns_before(const Turns *set, int number);
int turns_after(const Turns *set, int number);

#endif
