// CRC-64/XZ with tables for sixteen bytes at a time, and the polynomial arithmetic that joins the checksums of pieces.
// Appending n zero bytes multiplies a raw checksum by x^(8n). A piece with n bytes after it therefore contributes its
// raw checksum times x^(8n). The raw checksum of a sequence is the sum of these contributions.
#include "crc64.h"

// Polynomials over GF(2), reflected: the highest bit is the coefficient of x^0.
static const uint64_t POLYNOMIAL = 0xC96C5795D7870F42u;
static const uint64_t ONE = 1ull << 63;

static uint64_t times_x_(uint64_t a) { return (a >> 1) ^ (a & 1 ? POLYNOMIAL : 0); }

uint64_t crc64_times(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    for (; a != 0; a <<= 1, b = times_x_(b))
        if (a & ONE) product ^= b;
    return product;
}

Crc64 crc64_make(void) {
    Crc64 crc;
    for (int byte = 0; byte < 256; byte++) {
        uint64_t value = (uint64_t)byte;
        for (int bit = 0; bit < 8; bit++) value = times_x_(value);
        crc.table[0][byte] = value;
    }
    for (int k = 1; k < 16; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint64_t before = crc.table[k - 1][byte];
            crc.table[k][byte] = crc.table[0][before & 0xFF] ^ (before >> 8);
        }
    uint64_t power = ONE;
    for (int bit = 0; bit < 8; bit++) power = times_x_(power);
    for (int k = 0; k < 64; k++, power = crc64_times(power, power)) crc.power[k] = power;
    return crc;
}

uint64_t crc64_add(const Crc64 *crc, uint64_t raw, const void *data, size_t bytes) {
    const uint8_t *at = data;
    // Sixteen bytes are read one by one, so that the result does not depend on the machine's byte order.
    for (; bytes >= 16; bytes -= 16, at += 16) {
        uint64_t out = 0;
        for (int i = 0; i < 8; i++) out ^= crc->table[15 - i][at[i] ^ (raw >> (8 * i) & 0xFF)];
        for (int i = 8; i < 16; i++) out ^= crc->table[15 - i][at[i]];
        raw = out;
    }
    for (; bytes > 0; bytes--, at++) raw = crc->table[0][(raw ^ *at) & 0xFF] ^ (raw >> 8);
    return raw;
}

uint64_t crc64_shift(const Crc64 *crc, int64_t bytes) {
    uint64_t factor = ONE;
    for (int k = 0; bytes >> k != 0; k++)
        if (bytes >> k & 1) factor = crc64_times(factor, crc->power[k]);
    return factor;
}

uint64_t crc64_finish(const Crc64 *crc, uint64_t raw, int64_t bytes) {
    return ~(raw ^ crc64_times(~0ull, crc64_shift(crc, bytes)));
}
