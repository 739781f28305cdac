// Where each rank is: host, device and coordinates, known to all ranks after start-up.
#pragma once

#include "topology.h"
#include "world.h"

typedef struct RosterEntry {
    char host[64], device[96];
    int node, stage, tensor, replica;
} RosterEntry;

typedef struct Roster {
    RosterEntry *ranks; // [world]
    int count;
} Roster;

// Fills the roster on every rank. Collective.
int roster_make(Roster *roster, World *world, Coordinates at, const char *device, Error *err);
void roster_free(Roster *roster);

// Counts the ranks of each stage on one host into of_stage[stages].
void roster_count(const Roster *roster, int node, int64_t *of_stage, int stages);

// Returns the number of evictors whose partner is on another host, so that bundles cross the network; *pairs: all
// evictors.
int roster_pairs_apart(const Roster *roster, const ParallelConfig *parallel, int *pairs);

// Prints the start-up table; for a large job the ranks of the first nodes.
void roster_print(const Roster *roster, const ParallelConfig *parallel, FILE *file);
