// Checksums of device memory, for what travels between ranks: CRC-64/XZ, which notices any flipped bit for certain.
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include "backend.h"
#include "base/crc64.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Checksum Checksum;

int64_t checksum_bytes(void); // of host memory that one takes

// The backend stays the caller's. NULL with err where host memory is out.
Checksum *checksum_create(Backend *be);
void checksum_destroy(Checksum *checksum); // takes NULL

// Of memory that nothing writes meanwhile. The host works it out, piece by piece.
uint64_t checksum_of(Checksum *checksum, const void *memory, int64_t bytes);

// The raw checksum of crc64.h, for who puts pieces of a whole together, and its tables.
uint64_t checksum_raw(Checksum *checksum, const void *memory, int64_t bytes);
const Crc64 *checksum_crc(const Checksum *checksum);

// 0, or -1 with err where they differ: "it arrived with checksum X and left with Y; ...".
int checksum_compare(uint64_t left, uint64_t arrived, Error *err);

#ifdef __cplusplus
}
#endif

#endif
