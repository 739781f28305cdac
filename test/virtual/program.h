// The interface between the program and the virtual GPU's library: MPI messages (messages.c and device.cc), and dry
// runs, VIRTUAL_DRY=1 (dry.c and clock.cc).
#pragma once

#include "device/cost.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns a rank's node. Each node has a contiguous block of ranks: one for each of its GPUs if the ranks fill all
// nodes but the last (6 ranks on two nodes of 4: 4 and 2), else equal blocks.
static inline int virtual_node(int rank, int ranks, int nodes, int gpus) {
    if (nodes <= 1 || ranks < nodes) return 0;
    bool full = gpus > 0 && (ranks + gpus - 1) / gpus == nodes;
    return rank / (full ? gpus : (ranks + nodes - 1) / nodes);
}

// Calls that report the program's MPI messages. Ranks are ranks of MPI_COMM_WORLD.
typedef struct VirtualMessages {
    void (*sent)(int to);                                      // before a message is sent
    void (*received)(int from);                                // after a message has arrived
    void (*touched)(void *memory, int64_t bytes, bool writes); // MPI reads or writes this memory now
} VirtualMessages;

// Filled by the program before it asks for a GPU, if the run is dry or its configuration names a GPU; else zero.
// on: this is a rank of a dry run.
typedef struct VirtualDry {
    bool on;
    char gpu[64]; // its name, as a driver reports it
    int64_t memory_bytes;
    int multiprocessors, capability; // 80, 90, 100
    Cost cost;
    int64_t experts; // > 0: matrix products are those of a loop over so many experts
} VirtualDry;

// Filled by the library: `join` when it is loaded, the other members when this process has joined virtual time. A
// message of hosts is called by its sender and left by its receiver, a collective by all its ranks; both have a channel
// (of a message: its group, tag and two ranks) and a number in the channel, and take a latency for each hop.
typedef struct VirtualClock {
    void (*join)(void);
    double (*now)(void);
    // Waits until a query that was answered no would be answered yes. False: there is no such query.
    bool (*pause)(void);
    void (*called)(uint64_t channel, uint64_t number, int ranks, int hops);
    bool (*met)(uint64_t channel, uint64_t number);
    void (*left)(uint64_t channel, uint64_t number);
    void (*unfinished)(void);              // MPI itself has work left that takes no virtual time
    void (*progress_with)(void (*)(void)); // called now and then in a pause
} VirtualClock;

#ifdef __cplusplus
}
#endif
