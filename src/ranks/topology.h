// The grid of ranks: the (data, stage, tensor) coordinates of a rank, and the inverse. Pure arithmetic.
//   linear:   rank = (data * p + stage) * t + tensor
//   adjacent: rank = ((data * p/2 + k) * 2 + half) * t + tensor, so that stages k and p-1-k of BPipe pair k are
//             neighbours; with odd p the middle stage comes last of its data rank.
#pragma once

#include "config/config.h"

typedef struct Coordinates {
    int data, stage, tensor;
} Coordinates;

Coordinates topology_coordinates(const ParallelConfig *parallel, int rank);
int topology_rank(const ParallelConfig *parallel, Coordinates at);
