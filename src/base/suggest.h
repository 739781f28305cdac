// "Did you mean ...": which known word is near a misspelt one. Used for configuration keys, words and options.
#pragma once

#include <stdbool.h>

// Returns how many letters to insert, delete, replace or swap with a neighbour (optimal string alignment distance) to
// turn one word into the other. Case is ignored. INT_MAX if either word is longer than 63 bytes.
int suggest_distance(const char *a, const char *b);

// Returns whether `known` is near enough to `typed` to be a likely correction, and nearer than *best, which it updates.
// Start with *best = INT_MAX and go through all candidates.
bool suggest_nearer(const char *typed, const char *known, int *best);
