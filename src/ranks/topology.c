// The arithmetic of topology.h, and the table of all ranks.
#include "topology.h"

#include "base/alloc.h"
#include "base/grid.h"

#include <stdlib.h>
#include <string.h>

Coordinates topology_coordinates(const ParallelConfig *parallel, int rank) {
    int t = (int)parallel->tensor, p = (int)parallel->pipeline, c = (int)parallel->context;
    int replicas = c * (int)parallel->data;
    if (parallel->placement == PLACEMENT_STAGES)
        return (Coordinates){rank / t % replicas, rank / t / replicas, rank % t};
    int place = rank / t / c % p, stage = place; // place: index of the stage in rank order
    if (parallel->placement != PLACEMENT_LINEAR) // pairs from the ends inward; with odd p, the middle stage is last
        stage = p % 2 == 1 && place == p - 1 ? p / 2 : place % 2 == 0 ? place / 2 : p - 1 - place / 2;
    return (Coordinates){rank / t / c / p * c + rank / t % c, stage, rank % t};
}

int topology_rank(const ParallelConfig *parallel, Coordinates at) {
    int t = (int)parallel->tensor, p = (int)parallel->pipeline, c = (int)parallel->context;
    if (parallel->placement == PLACEMENT_STAGES)
        return (at.stage * c * (int)parallel->data + at.replica) * t + at.tensor;
    int place = at.stage;
    if (parallel->placement != PLACEMENT_LINEAR)
        place = p % 2 == 1 && at.stage == p / 2 ? p - 1 : at.stage < p / 2 ? 2 * at.stage : 2 * (p - 1 - at.stage) + 1;
    return ((at.replica / c * p + place) * c + at.replica % c) * t + at.tensor;
}

// --- the roster

enum { ROSTER_PRINTED = 64 };

int roster_make(Roster *roster, World *world, const char *device, Error *err) {
    RosterEntry mine;
    memset(&mine, 0, sizeof mine);
    snprintf(mine.host, sizeof mine.host, "%.63s", world_place(world)->host);
    mine.host[strcspn(mine.host, "\"\\")] = '\0'; // it is written to JSON without escapes
    snprintf(mine.device, sizeof mine.device, "%s", device);
    mine.node = world_place(world)->node;
    roster->count = world_size(world);
    roster->ranks = xcalloc((size_t)roster->count, sizeof *roster->ranks);
    return world_gather_all(world, roster->ranks, &mine, sizeof mine, err);
}

void roster_free(Roster *roster) {
    free(roster->ranks);
    memset(roster, 0, sizeof *roster);
}

void roster_count(const Roster *roster, const ParallelConfig *parallel, int node, int64_t *of_stage) {
    memset(of_stage, 0, (size_t)parallel->pipeline * sizeof *of_stage);
    for (int r = 0; r < roster->count; r++)
        if (roster->ranks[r].node == node) of_stage[topology_coordinates(parallel, r).stage]++;
}

int roster_pairs_apart(const Roster *roster, const ParallelConfig *parallel, int *pairs) {
    int apart = 0;
    *pairs = 0;
    for (int r = 0; r < roster->count; r++) {
        Coordinates evictor = topology_coordinates(parallel, r), at = evictor;
        at.stage = bpipe_partner((int)parallel->pipeline, evictor.stage);
        if (at.stage <= evictor.stage) continue; // an acceptor, or a middle stage without a partner
        apart += roster->ranks[topology_rank(parallel, at)].node != roster->ranks[r].node;
        ++*pairs;
    }
    return apart;
}

void roster_print(const Roster *roster, const ParallelConfig *parallel, FILE *file) {
    int contexts = (int)parallel->context;
    Grid grid = {.columns = contexts > 1 ? 7 : 6};
    static const char *const heading[] = {"rank", "stage", "tensor", "context", "data", "host", "device"};
    for (int i = 0; i < 7; i++)
        if (i != 3 || contexts > 1) grid_cell(&grid, "%s", heading[i]);
    int printed = roster->count < ROSTER_PRINTED ? roster->count : ROSTER_PRINTED;
    for (int r = 0; r < printed; r++) {
        Coordinates at = topology_coordinates(parallel, r);
        grid_cell(&grid, "%d", r);
        grid_cell(&grid, "%d", at.stage);
        grid_cell(&grid, "%d", at.tensor);
        if (contexts > 1) grid_cell(&grid, "%d", at.replica % contexts);
        grid_cell(&grid, "%d", at.replica / contexts);
        grid_cell(&grid, "%s", roster->ranks[r].host);
        grid_cell(&grid, "%s", roster->ranks[r].device);
    }
    grid_print(&grid, file);
    if (printed < roster->count) fprintf(file, "... and %d more ranks\n", roster->count - printed);
    grid_free(&grid);
}
