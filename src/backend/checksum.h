// Checksums of device memory for messages between ranks: CRC-64/XZ. crc64.h says which damage it detects.
#pragma once

#include "backend.h"
#include "base/crc64.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct Checksum Checksum;

int64_t checksum_bytes(void); // bytes of host memory that one checksum uses

// Creates a checksum over the caller's backend.
Checksum *checksum_create(Backend *be);
void checksum_destroy(Checksum *checksum); // accepts NULL

// Returns the checksum of memory. Its last write must be complete (event passed), and nothing may write it meanwhile.
uint64_t checksum_of(Checksum *checksum, const void *memory, int64_t bytes);

// Return the raw checksum (crc64.h), the tables for it and the backend, for callers that join checksums of pieces.
uint64_t checksum_raw(Checksum *checksum, const void *memory, int64_t bytes);
const Crc64 *checksum_crc(const Checksum *checksum);
Backend *checksum_backend(const Checksum *checksum);

// Returns 0, or -1 with err if the checksums differ.
int checksum_compare(uint64_t left, uint64_t arrived, Error *err);

__END_DECLS
