// The grid of ranks: the coordinates of a rank, and the inverse.
//   linear:   rank = ((data * p + stage) * c + context) * t + tensor
//   adjacent: rank = (((data * p/2 + k) * 2 + half) * c + context) * t + tensor, so that stages k and p-1-k of BPipe
//             pair k are neighbours; with odd p the middle stage is the last one of its data rank.
//   stages:   rank = ((stage * d + data) * c + context) * t + tensor, so that a stage's expert ranks are neighbours,
//             also beyond its tensor and context ranks.
// Ranks that hold the same part of the model are replicas and sum their gradients. Data ranks read different sequences.
// The context ranks of a data rank read different pieces of the same sequences.
//   replica = data * c + context
#pragma once

#include "config/config.h"
#include "world.h"

typedef struct Coordinates {
    int replica, stage, tensor;
} Coordinates;

Coordinates topology_coordinates(const ParallelConfig *parallel, int rank);
int topology_rank(const ParallelConfig *parallel, Coordinates at);

// --- the roster: host and device of every rank, known to all after start-up

typedef struct RosterEntry {
    char host[64], device[96];
    int node;
} RosterEntry;

typedef struct Roster {
    RosterEntry *ranks; // [world]
    int count;
} Roster;

// Fills the roster on every rank. Collective.
int roster_make(Roster *roster, World *world, const char *device, Error *err);
void roster_free(Roster *roster);

// Counts the ranks of each stage on one host into of_stage[parallel->pipeline].
void roster_count(const Roster *roster, const ParallelConfig *parallel, int node, int64_t *of_stage);

// Returns the number of evictors with a partner on another host: their bundles cross the network. *pairs: the number of
// all evictors.
int roster_pairs_apart(const Roster *roster, const ParallelConfig *parallel, int *pairs);

// Prints the start-up table; for a large job, only the first ranks and the number of the other ranks.
void roster_print(const Roster *roster, const ParallelConfig *parallel, FILE *file);
