// A group with one real rank; its other ranks do not exist. Messages to and from them complete at once, or after the
// time their bytes take at a given rate. So one device can run one stage's list of a schedule with a real run's engine.
#pragma once

#include "backend/backend.h"
#include "comm.h"

typedef struct EmulatedPeers {
    double rate;    // bytes/s of messages, one after the other; 0: messages take no time
    double latency; // seconds per message, if rate is not 0
    void *scratch;  // device memory that messages are copied to and from, to load memory as real messages do; or NULL
} EmulatedPeers;

// Collectives complete at once. A gather copies this rank's part to its place; the first gather into a buffer also
// copies the part to the other ranks' places. The result of a sum is this rank's input. Without scratch, the first
// receive into a buffer fills it with random numbers, and so does an exchange. The experts of other ranks get as many
// rows as this rank's. So compute takes the usual time and power, with wrong results.
// The caller owns backend and scratch.
Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers);
