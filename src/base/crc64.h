// CRC-64/XZ: the polynomial of ECMA-182, reflected, with initial value and final xor all ones (.xz, `7z h -scrcCRC64`).
// It detects every flipped byte and all damage within 64 neighbouring bits; other damage passes once in 2^64.
//
// A CRC is linear: the checksum of a file is the exclusive or of the checksums of its pieces, each shifted to its
// place. So ranks that write one file together need not read the file again, and may join pieces in any order.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Crc64 {
    uint64_t table[16][256]; // [k][byte]: raw checksum of the byte followed by k zero bytes
    uint64_t power[64];      // x^(8 * 2^k): factor that appends 2^k zero bytes to a checksum
} Crc64;

Crc64 crc64_make(void);

// Extends `raw`, the checksum of the bytes so far, by `bytes` more. Raw checksums start at 0 and are not inverted.
uint64_t crc64_add(const Crc64 *crc, uint64_t raw, const void *data, size_t bytes);

// Returns x^(8 * bytes): multiplying a raw checksum by it with crc64_times appends `bytes` zero bytes.
uint64_t crc64_shift(const Crc64 *crc, int64_t bytes);
uint64_t crc64_times(uint64_t a, uint64_t b);

// Returns the CRC-64/XZ of `bytes` bytes that have the raw checksum `raw`.
uint64_t crc64_finish(const Crc64 *crc, uint64_t raw, int64_t bytes);
