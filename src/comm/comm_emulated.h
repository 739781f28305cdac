// A group whose other ranks are not there: what they would send is there when it is asked for, what is sent to them is
// gone at once or after the time its bytes take at a given rate. With it one device runs one stage's list of a schedule
// by itself, through the same engine.
#ifndef COMM_EMULATED_H
#define COMM_EMULATED_H

#include "backend/backend.h"
#include "comm.h"

typedef struct EmulatedPeers {
    double rate;    // bytes/s of a message; 0: no time at all
    double latency; // seconds of a message, where rate is not 0
    void *scratch;  // device memory that messages are copied to and from, to load memory as real ones do; NULL: none
} EmulatedPeers;

// Collectives take no time and leave the values of the other ranks' parts as they are, with this rank's in its place:
// real numbers, though no longer the right ones. Without scratch, memory that is received into for the first time is
// filled with random numbers, so that what is computed from them takes as long, and as much power, as usual. The
// backend and the scratch stay the caller's.
Comm *comm_emulated_create(const char *name, int rank, int size, Backend *be, const EmulatedPeers *peers, Error *err);

#endif
