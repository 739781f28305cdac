// A group with one real rank; its other ranks do not exist. Messages to and from them complete at once, or after the
// time that their bytes take at a given rate. So one device can run one stage's list of a schedule with the engine of
// a real run.
#pragma once

#include "backend/backend.h"
#include "comm.h"

typedef struct EmulatedPeers {
    double rate;    // bytes/s of messages, one after the other; 0: messages take no time
    double latency; // seconds per message, if rate is not 0
    void *scratch;  // device memory that messages are copied to and from, to load memory as real ones do; may be NULL
} EmulatedPeers;

// Collectives complete at once. A gather copies this rank's part, at a buffer's first use also to the other ranks'
// places; a sum is this rank's input. Without scratch, a buffer is filled with random numbers at its first receive. So
// compute takes the usual time and power, but its numbers differ from a run's. The caller keeps backend and scratch.
Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers);
