// What the program's MPI calls tell the virtual GPU: see messages.c. Ranks are those of MPI_COMM_WORLD.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct VirtualMessages {
    void (*sent)(int to);                                      // before a message goes
    void (*received)(int from);                                // after one has come
    void (*touched)(void *memory, int64_t bytes, bool writes); // MPI reads or writes this memory now
} VirtualMessages;
