// The table of --plan --for: the effect of each setting of the other program by itself. Recomputation and collectives
// are planned. Sharding, which this trainer does not have, is computed by formula, with free latency.
#include "base/grid.h"
#include "base/units.h"
#include "foreign.h"
#include "plan_report.h"

#include <math.h>

static void add_row_(Grid *grid, const PlanAnswer *answer, const char *what, double peak, double step,
                     const char *how) {
    char text[32];
    grid_cell(grid, "%s", what);
    grid_cell(grid, "%.2f GiB", peak / GIB);
    grid_cell(grid, plan_answer_holds(answer, (int64_t)peak) ? "yes" : "no");
    grid_cell(grid, "%s", step > 0 ? grid_seconds(step, text) : "-");
    grid_cell(grid, "%s", how);
}

// Rows of the plan with other keys.
static int planned_rows_(const PlanAnswer *answer, Grid *grid, Error *err) {
    const Config *given = &answer->config;
    const ForeignProgram *row = &foreign_programs[given->program - 1];
    bool off = given->parallel.overlap == OVERLAP_OFF, pointwise = config_pointwise(given, 0);
    const struct {
        const char *what;
        bool applies;
        int overlap;
        int32_t recompute, pointwise;
    } rows[] = {
        {off ? "async tensor collectives on" : "async tensor collectives off", given->parallel.tensor > 1,
         off ? OVERLAP_AUTO : OVERLAP_OFF, -1, -1},
        {"selective recomputation", row->selective > 0 && !pointwise, -1, 0, RECOMPUTE_POINTWISE},
        {"full recomputation", config_recompute(given, 0) == 0, -1, (int32_t)given->model.layers, RECOMPUTE_NONE},
        {"no recomputation", pointwise || config_recompute(given, 0) > 0, -1, 0, RECOMPUTE_NONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Config config = *given;
        Forecast forecast;
        RunLayout layout = layout_of(given);
        if (!rows[i].applies) continue;
        if (rows[i].recompute >= 0) layout.recompute = rows[i].recompute, layout.pointwise = rows[i].pointwise;
        layout_set(&layout, &config);
        if (rows[i].overlap >= 0) config.parallel.overlap = rows[i].overlap;
        if (planner_forecast_config(&answer->planner, &config, true, &forecast, err) != 0) return -1;
        if (forecast.possible)
            add_row_(grid, answer, rows[i].what, (double)forecast.peak_bytes,
                     forecast.time.known ? forecast.time.step : 0, "");
    }
    return 0;
}

// Rows of data ranks that share parameters. `group` ranks share a shard's states: all copies, or with HSDP a part of
// them. again: weights are gathered for each use (ZeRO-3), two layers at a time.
static void sharded_row_(const PlanAnswer *answer, Grid *grid, const char *what, int64_t group, bool again) {
    const Config *config = &answer->config;
    const ParallelConfig *at = &config->parallel;
    const Hardware *hardware = &answer->planner.hardware;
    double copies = (double)(at->data * at->context), shards = (double)group, peak = 0, most = 0;
    for (int s = 0; s < answer->plan.stages; s++) {
        const PlanStage *stage = &answer->plan.stage[s];
        const int64_t *bytes = stage->memory.bytes;
        int64_t states = bytes[MEMORY_WEIGHTS] + bytes[MEMORY_GRADIENTS] + bytes[MEMORY_OPTIMIZER];
        int64_t sharded = foreign_states(config, &stage->at, stage->parameters, group, again);
        peak = fmax(peak, (double)(memory_total(&stage->memory) - states + sharded));
        most = fmax(most, (double)stage->parameters / (double)at->tensor);
    }
    // The ranks between two of a group share a node's network.
    int64_t node = hardware_domain(hardware, config), stride = at->pipeline * at->tensor;
    double inside = hardware->cost.tensor, outside = inside, step = answer->time.step;
    if (config_world(config) > node)
        outside = fmin(inside, hardware_network(hardware, config) / (double)(stride < node ? stride : node));
    if (again) { // 16-bit weights twice and fp32 gradients once, for every microbatch
        double moves = 8 * most * (copies - 1) / copies / outside;
        step += (double)config_microbatches(config) * fmax(0, moves - answer->time.slowest);
    } else { // weights and gradients once within a group, then fp32 sums over the groups
        double rate = stride * group <= node ? inside : outside, groups = copies / shards;
        double all = 6 * most * (copies - 1) / copies / outside;
        double parts = 6 * most * (shards - 1) / shards / rate + 8 * most / shards * (groups - 1) / groups / outside;
        step += fmax(parts - all, -answer->time.reduction);
    }
    add_row_(grid, answer, what, peak, answer->time.known ? step : 0, "by formula");
}

int foreign_rows_print(const PlanAnswer *answer, int most, FILE *file, Error *err) {
    enum { COLUMNS = 5 };
    const Config *config = &answer->config;
    const ForeignProgram *row = &foreign_programs[config->program - 1];
    const char *heading[] = {"the plan with", "rank", "fits", "step", ""};
    int64_t copies = config->parallel.data * config->parallel.context;
    int64_t stride = config->parallel.pipeline * config->parallel.tensor;
    int64_t inside = hardware_domain(&answer->planner.hardware, config) / stride, group = copies / 2;
    int64_t peak = memory_total(&answer->plan.stage[plan_fullest(&answer->plan)].memory);
    char what[64];
    Grid grid = {.columns = COLUMNS};
    for (int i = 0; i < COLUMNS; i++) grid_cell(&grid, "%s", heading[i]);
    add_row_(&grid, answer, row->sharded ? "FSDP, as given" : "ZeRO-1, as given", (double)peak,
             answer->time.known ? answer->time.step : 0, "");
    int status = planned_rows_(answer, &grid, err);
    if (row->reshards && !foreign_counted_here(&config->model) && copies > 1) {
        if (inside > 1 && inside < copies && copies % inside == 0) group = inside;
        snprintf(what, sizeof what, "HSDP, %d groups of %d ranks", (int)(copies / group), (int)group);
        if (copies % group == 0 && group > 1) sharded_row_(answer, &grid, what, group, false);
        sharded_row_(answer, &grid, "FSDP, weights gathered at each use (ZeRO-3)", copies, true);
    }
    if (most > 0) grid.count = min_i64(grid.count, COLUMNS * (most + 1));
    fprintf(file, "settings of %s, each alone\n", row->title);
    grid_print(&grid, file);
    grid_free(&grid);
    return status;
}
