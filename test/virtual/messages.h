// Calls that report the program's MPI messages to the virtual GPU (messages.c). Ranks are ranks of MPI_COMM_WORLD.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct VirtualMessages {
    void (*sent)(int to);                                      // before a message is sent
    void (*received)(int from);                                // after a message has arrived
    void (*touched)(void *memory, int64_t bytes, bool writes); // MPI reads or writes this memory now
} VirtualMessages;
