// SipHash-2-4: two rounds for each word of eight bytes, four at the end. test_siphash.c has the paper's test vectors.
#include "siphash.h"

#include <string.h>

static uint64_t siphash_rotate_(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void siphash_round_(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = siphash_rotate_(v[1], 13) ^ v[0], v[3] = siphash_rotate_(v[3], 16) ^ v[2];
    v[0] = siphash_rotate_(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = siphash_rotate_(v[1], 17) ^ v[2], v[3] = siphash_rotate_(v[3], 21) ^ v[0];
    v[2] = siphash_rotate_(v[2], 32);
}

static void siphash_word_(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    siphash_round_(v), siphash_round_(v);
    v[0] ^= word;
}

uint64_t siphash(SipKey key, const void *bytes, size_t count) {
    uint64_t v[4] = {key.word[0] ^ 0x736f6d6570736575u, key.word[1] ^ 0x646f72616e646f6du,
                     key.word[0] ^ 0x6c7967656e657261u, key.word[1] ^ 0x7465646279746573u};
    const unsigned char *at = bytes;
    uint64_t word;
    for (size_t left = count; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word); // hosts of one job have one byte order
        siphash_word_(v, word);
    }
    word = (uint64_t)count << 56;
    for (size_t i = 0; i < count % sizeof word; i++) word |= (uint64_t)at[i] << 8 * i;
    siphash_word_(v, word);
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) siphash_round_(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
