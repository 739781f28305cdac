// Remembers values by keys, both compared and copied as bytes, so every byte of a key must be set, padding included.
// Several threads may share a memo. It only grows.
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct Memo Memo;

// size: bytes of a key, a multiple of 8.
Memo *memo_create(size_t size);
void memo_free(Memo *memo);

// Copies the value of a key, with the length that memo_keep got. Returns false if the key is unknown.
bool memo_find(Memo *memo, const void *key, void *value);
// Keeps a value. Returns false if another thread has meanwhile kept one for this key.
bool memo_keep(Memo *memo, const void *key, const void *value, size_t bytes);
// Calls `visit` with every value.
void memo_each(Memo *memo, void (*visit)(void *value));
