// The grid of ranks: the coordinates of a rank, and the inverse. Pure arithmetic.
//   linear:   rank = ((data * p + stage) * c + context) * t + tensor
//   adjacent: rank = (((data * p/2 + k) * 2 + half) * c + context) * t + tensor, so that stages k and p-1-k of BPipe
//             pair k are neighbours; with odd p the middle stage comes last of its data rank.
// Ranks that hold the same part of the model are replicas of it, and sum their gradients: the data ranks, which read
// other sequences, and the context ranks of each, which read other pieces of the same sequences.
//   replica = data * c + context
#pragma once

#include "config/config.h"

typedef struct Coordinates {
    int replica, stage, tensor;
} Coordinates;

Coordinates topology_coordinates(const ParallelConfig *parallel, int rank);
int topology_rank(const ParallelConfig *parallel, Coordinates at);
