// The arithmetic of topology.h.
#include "topology.h"

// Returns the position of a stage in the order of ranks. The second function is its inverse.
static int place_of_stage_(const ParallelConfig *parallel, int stage) {
    int p = (int)parallel->pipeline;
    if (parallel->placement == PLACEMENT_LINEAR) return stage;
    if (p % 2 == 1 && stage == p / 2) return p - 1;
    return stage < p / 2 ? 2 * stage : 2 * (p - 1 - stage) + 1;
}

static int stage_at_place_(const ParallelConfig *parallel, int place) {
    int p = (int)parallel->pipeline;
    if (parallel->placement == PLACEMENT_LINEAR) return place;
    if (p % 2 == 1 && place == p - 1) return p / 2;
    return place % 2 == 0 ? place / 2 : p - 1 - place / 2;
}

Coordinates topology_coordinates(const ParallelConfig *parallel, int rank) {
    int t = (int)parallel->tensor, p = (int)parallel->pipeline, c = (int)parallel->context;
    Coordinates at = {rank / t / c / p * c + rank / t % c, stage_at_place_(parallel, rank / t / c % p), rank % t};
    return at;
}

int topology_rank(const ParallelConfig *parallel, Coordinates at) {
    int t = (int)parallel->tensor, p = (int)parallel->pipeline, c = (int)parallel->context;
    return ((at.replica / c * p + place_of_stage_(parallel, at.stage)) * c + at.replica % c) * t + at.tensor;
}
