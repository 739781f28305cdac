// What the program and the virtual GPU's library tell each other in a dry run (VIRTUAL_DRY=1): see dry.c and clock.cc.
#pragma once

#include "device/cost.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Filled by the program before it asks for a GPU. on: this is a rank of a dry run.
typedef struct VirtualDry {
    bool on;
    char gpu[64]; // its name, as a driver reports it
    int64_t memory_bytes;
    int multiprocessors, capability; // 80, 90, 100
    Cost cost;
} VirtualDry;

// Filled by the library: `join` when it is loaded, the others when this process has joined virtual time. Host messages
// are known by the pair of ranks, a channel (group and tag) and their number in it.
typedef struct VirtualClock {
    void (*join)(void);
    double (*now)(void);
    // Waits until something that was asked for and not there yet is there. False: nothing was asked for.
    bool (*pause)(void);
    void (*sent)(int to, uint64_t channel, uint64_t number);
    bool (*arrived)(int from, uint64_t channel, uint64_t number);
    void (*taken)(int from, uint64_t channel, uint64_t number);
    void (*called)(uint64_t channel, uint64_t number, int ranks); // a collective of the host's
    bool (*met)(uint64_t channel, uint64_t number);
    void (*left)(uint64_t channel, uint64_t number);
    void (*unfinished)(void);              // MPI itself has work left that takes no virtual time
    void (*progress_with)(void (*)(void)); // called now and then in a pause
} VirtualClock;

#ifdef __cplusplus
}
#endif
