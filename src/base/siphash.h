// SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): a keyed hash of short messages. Without the key
// its value cannot be told for a message that was not seen, so that it signs datagrams.
#ifndef SIPHASH_H
#define SIPHASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct SipKey {
    uint64_t word[2]; // the 16 bytes of the paper, read as little endian
} SipKey;

uint64_t siphash(SipKey key, const void *bytes, size_t count);

#endif
