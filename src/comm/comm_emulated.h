// A group with one real rank; its other ranks do not exist. Messages to and from them complete at once, or after the
// time that their bytes take at a given rate. So one device can run one stage's list of a schedule with the engine of
// a real run.
#pragma once

#include "backend/backend.h"
#include "comm.h"

typedef struct EmulatedPeers {
    double rate;    // bytes/s of messages, one after the other; 0: messages take no time
    double latency; // seconds per message, if rate is not 0
    void *scratch;  // device memory that messages are copied to and from, to load memory as real messages do; or NULL
} EmulatedPeers;

// Collectives complete at once. A gather copies this rank's part to its place; a buffer's first gather also fills the
// other ranks' places with it. A sum is this rank's input. Without scratch, a buffer's first receive fills it with
// random numbers. So compute takes the usual time and power with wrong results. The caller owns backend and scratch.
Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers);
