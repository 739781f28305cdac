// Gathers host, device and coordinates of every rank at start-up, and answers questions about them.
#include "roster.h"

#include "base/alloc.h"
#include "base/grid.h"

#include <stdlib.h>
#include <string.h>

enum { ROSTER_PRINTED = 64 };

int roster_make(Roster *roster, World *world, Coordinates at, const char *device, Error *err) {
    RosterEntry mine;
    memset(&mine, 0, sizeof mine);
    snprintf(mine.host, sizeof mine.host, "%.63s", world_place(world)->host);
    snprintf(mine.device, sizeof mine.device, "%s", device);
    mine.node = world_place(world)->node;
    mine.stage = at.stage;
    mine.tensor = at.tensor;
    mine.replica = at.replica;
    roster->count = world_size(world);
    roster->ranks = xcalloc((size_t)roster->count, sizeof *roster->ranks);
    int64_t bytes = sizeof mine;
    if (world_gather(world, 0, roster->ranks, &mine, bytes, err) != 0) return -1;
    return world_broadcast(world, 0, roster->ranks, roster->count * bytes, err);
}

void roster_free(Roster *roster) {
    free(roster->ranks);
    memset(roster, 0, sizeof *roster);
}

void roster_count(const Roster *roster, int node, int64_t *of_stage, int stages) {
    memset(of_stage, 0, (size_t)stages * sizeof *of_stage);
    for (int r = 0; r < roster->count; r++)
        if (roster->ranks[r].node == node) of_stage[roster->ranks[r].stage]++;
}

int roster_pairs_apart(const Roster *roster, const ParallelConfig *parallel, int *pairs) {
    int apart = 0;
    *pairs = 0;
    for (int r = 0; r < roster->count; r++) {
        const RosterEntry *evictor = &roster->ranks[r];
        Coordinates at = {evictor->replica, bpipe_partner((int)parallel->pipeline, evictor->stage), evictor->tensor};
        if (at.stage <= evictor->stage) continue; // the acceptor, or a middle stage without partner
        apart += roster->ranks[topology_rank(parallel, at)].node != evictor->node;
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
        const RosterEntry *entry = &roster->ranks[r];
        grid_cell(&grid, "%d", r);
        grid_cell(&grid, "%d", entry->stage);
        grid_cell(&grid, "%d", entry->tensor);
        if (contexts > 1) grid_cell(&grid, "%d", entry->replica % contexts);
        grid_cell(&grid, "%d", entry->replica / contexts);
        grid_cell(&grid, "%s", entry->host);
        grid_cell(&grid, "%s", entry->device);
    }
    grid_print(&grid, file);
    if (printed < roster->count) fprintf(file, "... and %d ranks more\n", roster->count - printed);
    grid_free(&grid);
}
