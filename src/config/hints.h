// Hints for misspelt words and other trainers' keys or options (Megatron-LM, torchtitan, Hugging Face, llm.c, nanoGPT).
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Returns the answer to an unknown key, to follow "no such key; ": the key to set instead, or why this trainer
// lacks it. `name` is "section.key", a key or a section. The part after its last dot is looked up first, then the part
// before it. NULL: neither part is a known name of another trainer.
const char *hint_for_key(const char *name);

// Returns our key that is nearest to a misspelt name. Compares full names first, then the parts after the last dot, to
// find a key that was given in the wrong section. NULL: no key is near.
const char *hint_near_key(const char *name);

// Writes the answer to an unknown option, without the option's name: the -o KEY=VALUE to give instead, or the answer of
// hint_for_key. The option may name our key (`--train.steps 10`, `train.steps=10`) or another trainer's key
// (`--tensor-model-parallel-size 4`). `typed`: the argument, with its dashes; `next`: the argument after it, or NULL.
// Returns false if no key matches.
bool hint_for_option(const char *typed, const char *next, char *out, size_t size);

// Returns our word for another trainer's value of `key` ("schedule.name"), or NULL if that value is unknown.
const char *hint_for_word(const char *key, const char *word);

// --- "did you mean": which known word is near a misspelt one

// Returns how many letters to insert, delete, replace or swap with a neighbour (optimal string alignment distance) to
// turn one word into the other. Case is ignored. INT_MAX if either word is longer than 63 bytes.
int suggest_distance(const char *a, const char *b);

// Returns whether `known` is near enough to `typed` to be a likely correction, and nearer than *best, which it updates.
// Start with *best = INT_MAX and go through all candidates.
bool suggest_nearer(const char *typed, const char *known, int *best);
