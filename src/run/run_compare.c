// Compares planned and allocated bytes of every stage and category after the first step.
#include "run.h"
#include "base/alloc.h"

#include "base/grid.h"

#include <stdlib.h>
#include <string.h>

static int64_t difference_(const MemoryBytes *a, const MemoryBytes *b) {
    int64_t sum = 0;
    for (int c = 0; c < MEMORY_CATEGORIES; c++) sum += llabs((long long)(a->bytes[c] - b->bytes[c]));
    return sum;
}

// Keeps the rank of a stage that is farthest from the plan.
static void merge_(const Plan *plan, const MemoryBytes *rank, int stage, bool first, MemoryBytes *measured) {
    const MemoryBytes *planned = &plan->stage[stage].memory;
    if (first || difference_(rank, planned) > difference_(&measured[stage], planned)) measured[stage] = *rank;
}

static void print_difference_(const Plan *plan, const MemoryBytes *measured, FILE *file) {
    Grid grid = {.columns = 4};
    const char *cells[] = {"stage", "category", "planned bytes", "measured bytes"};
    for (int i = 0; i < 4; i++) grid_cell(&grid, "%s", cells[i]);
    for (int s = 0; s < plan->stages; s++) {
        for (int c = 0; c < MEMORY_CATEGORIES; c++) {
            int64_t planned = plan->stage[s].memory.bytes[c], held = measured[s].bytes[c];
            char first[32], second[32];
            if (planned == held) continue;
            grid_cell(&grid, "%d", s);
            grid_cell(&grid, "%s", memory_name((MemoryCategory)c));
            grid_cell(&grid, "%s", grid_count(planned, first));
            grid_cell(&grid, "%s", grid_count(held, second));
        }
    }
    fprintf(file, "memory is not what was planned:\n");
    grid_print(&grid, file);
    grid_free(&grid);
}

static void compare_print_(const Plan *plan, const MemoryBytes *measured, bool quiet, FILE *file) {
    int64_t off = 0;
    for (int s = 0; s < plan->stages; s++) off += difference_(&plan->stage[s].memory, &measured[s]);
    int fullest = plan_fullest(plan);
    char peak[32];
    if (off != 0)
        print_difference_(plan, measured, file);
    else if (!quiet)
        fprintf(file, "memory    as planned, to the byte, on %s; the fullest, stage %d, has allocated %s\n",
                plan->stages == 1 ? "the one stage" : "all stages", fullest,
                grid_bytes(memory_total(&measured[fullest]), peak));
}

int run_compare_plan(Run *run, Error *err) {
    int world = world_size(run->world);
    MemoryBytes *all = xcalloc((size_t)world, sizeof *all);
    MemoryBytes *measured = xcalloc((size_t)run->plan.stages, sizeof *measured);
    int status = all == NULL || measured == NULL
                     ? error_set(err, EXIT_FAILED, "out of host memory for the figures of %d ranks", world)
                     : world_gather(run->world, 0, all, &run->be->peak, sizeof *all, err);
    if (status == 0 && world_rank(run->world) == 0) {
        for (int r = 0; r < world; r++) {
            Coordinates at = topology_coordinates(&run->config->parallel, r);
            merge_(&run->plan, &all[r], at.stage, at.tensor == 0 && at.data == 0, measured);
        }
        compare_print_(&run->plan, measured, run->log->level == LOG_QUIET, stderr);
    }
    free(all);
    free(measured);
    return status;
}
