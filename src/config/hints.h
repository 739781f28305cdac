// Hints for misspelt keys and options.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Returns our key that is nearest to a misspelt name. Compares full names first, then the parts after the last dot, to
// find a key that was given in the wrong section. NULL: no key is near.
const char *hint_near_key(const char *name);

// Writes the answer to an unknown option that names one of our keys (`--train.steps 10`, `--steps 10`,
// `train.steps=10`), without the option's name: the -o KEY=VALUE to give instead. `typed`: the argument, with its
// dashes; `next`: the argument after it, or NULL. Returns false if no key matches.
bool hint_for_option(const char *typed, const char *next, char *out, size_t size);

// --- "did you mean": which known word is near a misspelt one

// Returns how many letters to insert, delete, replace or swap with a neighbour (optimal string alignment distance) to
// turn one word into the other. Case is ignored. INT_MAX if either word is longer than 63 bytes.
int suggest_distance(const char *a, const char *b);

// Returns whether `known` is near enough to `typed` to be a likely correction, and nearer than *best, which it updates.
// Start with *best = INT_MAX and go through all candidates.
bool suggest_nearer(const char *typed, const char *known, int *best);
