// The keys that other programs support, for configurations and searches; and the table of --plan --for.
#include "foreign.h"
#include "base/grid.h"
#include "base/units.h"
#include "config/config_schema.h"
#include "config/gpus.h"
#include "plan_report.h"

#include <math.h>
#include <string.h>

uint32_t foreign_schedules(int program) {
    const ForeignProgram *row = foreign_row(program);
    uint32_t schedules = 0;
    for (int i = 0; i < schedule_kind_count; i++) {
        size_t length = strlen(schedule_kinds[i].name);
        for (const char *at = row->schedules; *at != '\0'; at += strcspn(at, " "), at += strspn(at, " "))
            if (strcspn(at, " ") == length && strncmp(at, schedule_kinds[i].name, length) == 0)
                schedules |= (uint32_t)1 << i;
    }
    return schedules;
}

int foreign_take(Config *config, const char *word, bool searched, Error *err) {
    int program = FOREIGN_PROGRAMS;
    while (program > 0 && strcmp(word, foreign_programs[program - 1].word) != 0) program--;
    if (program == 0)
        return error_set(err, EXIT_USAGE, "--for: unknown program %s; use megatron, torchtitan or nanotron", word);
    const ForeignProgram *row = foreign_row(program);
    const ScheduleConfig *schedule = &config->schedule;
    bool named = schedule->name < schedule_kind_count && config->parallel.pipeline > 1;
    LayoutMask asked = searched ? layout_decided(config, true) : ~(LayoutMask)0;
    Recompute kind = config_recompute_kind(config, 0);
    bool flash = true;
    for (int64_t i = 0; i < config->attention.modes_given; i++)
        flash = flash && config->attention.mode_of_stage[i] == ATTENTION_FLASH;
    bool again = (kind == RECOMPUTE_EXPERTS && !row->modules) || (kind == RECOMPUTE_POINTWISE && row->selective == 0);
    bool split = schedule->split_backward == SPLIT_ON && named && !schedule_kinds[schedule->name].splits;
    const struct {
        const char *key;
        bool lacking;
        LayoutMask searched; // unless -o fixes this key, a search chooses a value that the program supports
    } lacks[] = {
        {"schedule.file", schedule->file[0] != '\0', 0},
        {"schedule.name", named && (foreign_schedules(program) >> schedule->name & 1) == 0, LAYOUT_BIT(name)},
        {"schedule.bpipe", schedule->bpipe == BPIPE_ON, LAYOUT_BIT(bpipe)},
        {"schedule.slices", schedule->slices > 1, LAYOUT_BIT(slices)},
        {"schedule.split_backward", split, LAYOUT_BIT(split)},
        {"schedule.recompute", schedule->pointwise_given > 1 || again, LAYOUT_BIT(pointwise)},
        {"attention.mode", !row->scores && !flash, LAYOUT_BIT(attention)},
        {"model.family", !row->gpt && strcmp(family_words[config->model.family], "gpt") == 0, 0},
        {"parallel.context", config->parallel.context > 1 && !row->context, 0},
        {"model.experts", config->model.experts > 0 && !row->experts, 0},
        {"train.optimizer", config->train.optimizer == OPTIMIZER_MUON && !row->muon, 0},
        {"train.fp8", config->train.fp8 != FP8_OFF && !row->fp8, 0},
    };
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++)
        if (lacks[i].lacking && (lacks[i].searched & ~asked) == 0)
            return config_error(config, lacks[i].key, err, "%s does not support this; change it, or leave out --for",
                                row->title);
    if (config->schedule.split_backward == SPLIT_AUTO && schedule->name < schedule_kind_count &&
        !schedule_kinds[schedule->name].splits)
        config->schedule.split_backward = SPLIT_OFF; // other programs split a backward only if the schedule requires it
    // Other programs evict nothing, and by default overlap nothing. foreign_fix fixes both for a search.
    if (!searched && schedule->bpipe == BPIPE_AUTO) config->schedule.bpipe = BPIPE_OFF;
    if (!searched && config->place[config_find("parallel.overlap") - config_keys] == CONFIG_DEFAULT)
        config->parallel.overlap = OVERLAP_OFF;
    config->program = program;
    if (!searched) foreign_deal(config);
    if (config->hardware.trainer != TRAINER_THIS) return 0;
    const Gpu *gpu = gpu_row(config->hardware.gpu);
    bool first = gpu_band(row->trainers[0], gpu, config->model.experts > 0, config->train.fp8).runs > 0;
    config->hardware.trainer = row->trainers[first ? 0 : 1];
    return 0;
}

void foreign_fix(int program, Config *base, LayoutSpace *space) {
    LayoutMask asked = space->fixed; // keys with -o, which keep their values where foreign_take permits others
    bool overlap = base->place[config_find("parallel.overlap") - config_keys] != CONFIG_DEFAULT; // also `auto`
    RunLayout *at = &space->given;
    at->bpipe = BPIPE_OFF;
    at->slices = 1;
    if ((asked & LAYOUT_BIT(pointwise)) == 0) at->pointwise = RECOMPUTE_NONE;
    if (!foreign_row(program)->modules) space->fixed |= LAYOUT_BIT(pointwise);
    if ((asked & LAYOUT_BIT(attention)) == 0) at->attention = ATTENTION_FLASH;
    if ((asked & LAYOUT_BIT(placement)) == 0) at->placement = PLACEMENT_STAGES;     // default of all other programs
    if (!overlap) at->overlap = OVERLAP_OFF;                                        // default of all other programs
    if ((asked & LAYOUT_BIT(collectives)) == 0) at->collectives = COLLECTIVES_AUTO; // as import.py converts settings
    if (!foreign_row(program)->context) at->context = 1, space->fixed |= LAYOUT_BIT(context);
    space->fixed |= LAYOUT_BIT(bpipe) | LAYOUT_BIT(slices) | LAYOUT_BIT(attention) | LAYOUT_BIT(placement) |
                    LAYOUT_BIT(overlap) | LAYOUT_BIT(collectives);
    layout_set(at, base);
    space->schedules = foreign_schedules(program);
}

// ---------------------------------------------------------------- the table of --plan --for

// The effect of each setting of the other program by itself. Recomputation and collectives are planned. Sharding, which
// this trainer does not have, is computed by formula, with free latency.

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
    const ForeignProgram *row = foreign_row(given->program);
    Recompute kind = config_recompute_kind(given, 0);
    bool off = given->parallel.overlap == OVERLAP_OFF;
    const struct {
        const char *what;
        bool applies;
        int overlap;
        int32_t recompute, pointwise;
    } rows[] = {
        {off ? "async tensor collectives on" : "async tensor collectives off", given->parallel.tensor > 1,
         off ? OVERLAP_AUTO : OVERLAP_OFF, -1, -1},
        {"experts recomputed", row->modules && given->model.experts > 0 && kind == RECOMPUTE_NONE, -1, 0,
         RECOMPUTE_EXPERTS},
        {"selective recomputation", row->selective > 0 && kind != RECOMPUTE_POINTWISE, -1, 0, RECOMPUTE_POINTWISE},
        {"full recomputation", config_recompute(given, 0) == 0, -1, (int32_t)given->model.layers, RECOMPUTE_NONE},
        {"no recomputation", kind != RECOMPUTE_NONE || config_recompute(given, 0) > 0, -1, 0, RECOMPUTE_NONE},
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

// Adds the row of FSDP, or of HSDP if the states are divided among `group` ranks, fewer than all copies. again: weights
// are gathered for each use (ZeRO-3), two layers at a time.
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
    const ForeignProgram *row = foreign_row(config->program);
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
