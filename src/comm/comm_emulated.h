// A group whose other ranks do not exist: their messages are available at once, and messages to them are complete at
// once or after the time its bytes take at a given rate. It lets one device run one stage's list of a schedule alone,
// through the same engine.
#pragma once

#include "backend/backend.h"
#include "comm.h"

typedef struct EmulatedPeers {
    double rate;    // bytes/s of messages, one after the other; 0: messages take no time
    double latency; // seconds per message, if rate is not 0
    void *scratch;  // device memory that messages are copied to and from, to load memory as real ones do; may be NULL
} EmulatedPeers;

// Collectives take no time: a gather copies this rank's part, at a buffer's first use to the others' places too, and a
// sum takes only this rank's. Without scratch, memory is filled with random numbers at its first receive. So computing
// on either takes the usual time and power, on other numbers than in a run. The caller keeps backend and scratch.
Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers);
