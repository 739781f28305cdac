// SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): a keyed hash of short messages. Only
// the holder of the key can compute the value of a new message, so this value can authenticate a datagram.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct SipKey {
    uint64_t word[2]; // the paper's 16-byte key as two little-endian words
} SipKey;

uint64_t siphash(SipKey key, const void *bytes, size_t count);
