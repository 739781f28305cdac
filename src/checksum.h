// Checksums of device memory, for what travels between ranks: CRC-64/XZ, which notices any flipped bit for certain.
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Checksum Checksum;

// The backend stays the caller's. NULL with err where host memory is out.
Checksum *checksum_create(Backend *be, Error *err);
void checksum_destroy(Checksum *checksum); // takes NULL

// Of memory that nothing writes meanwhile. The host works it out, piece by piece.
uint64_t checksum_of(Checksum *checksum, const void *memory, int64_t bytes);

// 0, or -1 with err where they differ: "it arrived with checksum X and left with Y; ...".
int checksum_compare(uint64_t left, uint64_t arrived, Error *err);

#ifdef __cplusplus
}
#endif

#endif
