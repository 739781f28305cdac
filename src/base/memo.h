// Remembers values by keys, both compared and copied as bytes: a key may have no bytes that are not set. Several
// threads may share a memo. It only grows.
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct Memo Memo;

// size: bytes of a key, a multiple of 8.
Memo *memo_create(size_t size);
void memo_free(Memo *memo);

// Copies the value of a key, of as many bytes as were kept. Returns false if there is none.
bool memo_find(Memo *memo, const void *key, void *value);
// Keeps a value, unless another thread has kept one for this key meanwhile.
void memo_keep(Memo *memo, const void *key, const void *value, size_t bytes);
