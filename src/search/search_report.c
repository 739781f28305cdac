// The answer in sentences, then the front and the ten best as tables.
#include "search_command.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/units.h"
#include "plan/budget.h"
#include "plan/plan_schedules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Writes a schedule in words: "ZB-V", "interleaved, host".
static char *list_text_(const Config *config, char text[SCHEDULE_TEXT]) {
    RunLayout layout = layout_of(config);
    // rest_text_ writes these settings.
    layout.recompute = 0;
    layout.attention = ATTENTION_FLASH;
    layout.pointwise = RECOMPUTE_NONE;
    return schedule_text(&layout, text);
}

// Writes the other settings that distinguish a configuration: "flash, seq, 3 again, by time".
static char *rest_text_(const SearchSpace *space, const Config *config, char text[SCHEDULE_TEXT]) {
    char again[48] = "", overlap[24] = "", experts[24] = "";
    const char *nccl = config->parallel.collectives == COLLECTIVES_NCCL ? ", NCCL" : "";
    const char *dealt = config->parallel.layers_given == 0       ? ""
                        : space_fixes(space, LAYOUT_BIT(layers)) ? ", by list"
                                                                 : ", by time";
    int64_t layers = 0;
    for (int s = 0; s < config->parallel.pipeline; s++) layers += config_recompute(config, s);
    layers = min_i64(layers, config->model.layers); // the key may be larger than a stage's layers
    if (layers > 0) snprintf(again, sizeof again, ", %lld again", (long long)layers);
    if (config->parallel.overlap != OVERLAP_AUTO)
        snprintf(overlap, sizeof overlap, ", overlap %s", config_word("parallel.overlap", config->parallel.overlap));
    if (config->parallel.expert > 1) snprintf(experts, sizeof experts, ", e=%lld", (long long)config->parallel.expert);
    snprintf(text, SCHEDULE_TEXT, "%s%s%s%s%s%s%s%s%s", config_word("attention.mode", config->attention.mode),
             config_pointwise(config, 0) ? ", pointwise" : "", config->parallel.sequence ? ", seq" : "", experts, nccl,
             overlap, dealt, again, config->parallel.placement == PLACEMENT_ADJACENT ? ", adjacent" : "");
    return text;
}

static char *time_text_(const Forecast *found, char text[SCHEDULE_TEXT]) {
    char mfu[32] = "", bytes[32], step[32];
    if (found->time.mfu > 0) snprintf(mfu, sizeof mfu, ", MFU %.1f %%", 100 * found->time.mfu);
    snprintf(text, SCHEDULE_TEXT, "%s a step%s, %s on the ranks of stage %d", grid_seconds(found->time.step, step), mfu,
             grid_bytes(found->peak_bytes, bytes), found->fullest);
    return text;
}

// Writes a cut in words: "pipeline 8 x tensor 4 x data 1, micro-batch 1, ZB-V, chunks 2".
static char *cut_text_(const Config *config, char text[2 * SCHEDULE_TEXT]) {
    char schedule[SCHEDULE_TEXT], cut[CONFIG_CUT];
    snprintf(text, 2 * SCHEDULE_TEXT, "%s, micro-batch %lld, %s, chunks %d", config_cut_text(config, cut),
             (long long)config->schedule.micro_batch, list_text_(config, schedule), config_chunks(config));
    return text;
}

// ---------------------------------------------------------------- tables

static int64_t host_bytes_(const SearchSpace *space, const Config *config) {
    Error ignored = {0};
    int64_t most = 0;
    ScheduleLoan loan = planner_schedule(space->planner, config, &ignored);
    if (loan.schedule == NULL) return 0;
    Plan plan = planner_plan(space->planner, config, loan.schedule);
    for (int s = 0; s < plan.stages; s++)
        if (plan_host_bytes(&plan.stage[s]) > most) most = plan_host_bytes(&plan.stage[s]);
    plan_free(&plan);
    schedule_cache_return(&loan);
    return most;
}

static void table_row_(Grid *grid, const SearchSpace *space, const Candidate *candidate) {
    const Forecast *found = &candidate->forecast;
    Config config;
    const RunLayout *at = &found->layout;
    char schedule[SCHEDULE_TEXT], rest[SCHEDULE_TEXT], step[32];
    space_config(space, at, &config);
    char context[16] = "";
    if (at->context > 1) snprintf(context, sizeof context, "x%d", at->context);
    grid_cell(grid, "%dx%dx%d%s", at->pipeline, at->tensor, at->data, context);
    grid_cell(grid, "%d", at->micro_batch);
    grid_cell(grid, "%s", list_text_(&config, schedule));
    grid_cell(grid, "%d", config_chunks(&config));
    grid_cell(grid, "%s", rest_text_(space, &config, rest));
    grid_cell(grid, "%.2f", (double)found->peak_bytes / GIB);
    grid_cell(grid, "%.1f", (double)host_bytes_(space, &config) / GIB);
    grid_cell(grid, "%s", grid_seconds(found->time.step, step));
    grid_cell(grid, found->time.mfu > 0 ? "%.1f%%" : "-", 100 * found->time.mfu);
    grid_cell(grid, candidate->robust < 1 ? "%.1f%%" : "-", 100 * candidate->robust);
}

static void table_(const SearchSpace *space, const SearchResult *result, const int *rows, int count, FILE *file) {
    Grid grid = {.columns = 10};
    bool shared = false;
    for (int i = 0; i < count; i++) shared |= result->found.items[rows[i]].forecast.layout.context > 1;
    const char *ranks = shared ? "p x t x d x c" : "p x t x d";
    const char *cells[] = {ranks, "b", "schedule", "v", "attention, layers", "GiB", "host", "step", "MFU", "regret"};
    for (int i = 0; i < 10; i++) grid_cell(&grid, "%s", cells[i]);
    for (int i = 0; i < count; i++) table_row_(&grid, space, &result->found.items[rows[i]]);
    grid_print(&grid, file);
    grid_free(&grid);
}

// ---------------------------------------------------------------- sentences

static void line_of_changes_(const Config *from, const Config *to, const char *label, const char *format, FILE *file) {
    char *text;
    size_t length;
    FILE *changes = xmemstream(&text, &length);
    int count = layout_write_changes(from, to, changes);
    xmemstream_close(changes);
    grid_line(file, label, format, count == 0 ? "nothing: it is the given configuration" : text);
    free(text);
}

// Prints the worst regret of the best candidate, and the candidate with the smallest worst regret.
static void print_regret_(const SearchSpace *space, const SearchResult *result, FILE *file) {
    const Candidate *items = result->found.items, *best = &items[result->best], *least = best;
    char cut[2 * SCHEDULE_TEXT], step[32];
    Config config;
    if (isnan(best->robust)) return;
    for (int64_t i = 0; i < result->found.count; i++)
        if (items[i].robust < least->robust) least = &items[i];
    space_config(space, &least->forecast.layout, &config);
    if (best->robust < 1)
        grid_line(file, "robust", "at worst %.1f %% longer than the fastest, with %s", 100 * best->robust,
                  robust_assumptions);
    else grid_line(file, "robust", "does not fit, or takes twice as long, with one of %s", robust_assumptions);
    if (least->robust < best->robust)
        grid_line(file, "", "least: %.1f %%, %s, %s a step", 100 * least->robust, cut_text_(&config, cut),
                  grid_seconds(least->forecast.time.step, step));
}

static void print_best_(const SearchSpace *space, const SearchResult *result, FILE *file) {
    const Forecast *best = &result->found.items[result->best].forecast;
    char cut[2 * SCHEDULE_TEXT], rest[SCHEDULE_TEXT], time[SCHEDULE_TEXT], fastest[32];
    Config config;
    space_config(space, &best->layout, &config);
    grid_line(file, "best", "%s, %s: %s", cut_text_(&config, cut), rest_text_(space, &config, rest),
              time_text_(best, time));
    if (result->alike > 0)
        grid_line(file, "alike",
                  "%lld more candidate%s within 1 %% of the fastest, %s; the best is the plainest of them: fewest "
                  "stages, no eviction, no slices, no context ranks, no pointwise, most free memory",
                  (long long)result->alike, result->alike == 1 ? " is" : "s are",
                  grid_seconds(result->found.items[result->fastest].forecast.time.step, fastest));
    print_regret_(space, result, file);
    line_of_changes_(space->keys.base, &config, "set", "%s", file);
    if (space->planner->measured)
        grid_line(file, "profile", "stage times come from %s; only its tensor ranks and attention are searched",
                  space->keys.base->hardware.profile);
    GpuBand band = hardware_band(&space->planner->hardware, &config, space->planner->measured);
    hardware_print_band(&space->planner->hardware, &config, band, best->time.step, best->time.mfu, file);
    Budget budget = budget_make(&config, best->time.step, !space->planner->hardware.cpu, band);
    budget_print(&budget, &config, true, file);
}

// Prints the forecast of the given configuration, and the fewest changes that bring nine tenths of the gain of the best
// configuration.
static int print_gain_(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err) {
    double best = result->found.items[result->best].forecast.time.step;
    Config given;
    Forecast forecast;
    Candidate cheapest;
    char bytes[32], seconds[32], label[] = "given";
    if (answer_given(space, &given, &forecast, err) != 0) return -1;
    double step = forecast.time.known ? forecast.time.step : 0;
    bool counts = forecast.possible && forecast.fits && step > 0;
    if (!forecast.possible)
        grid_line(file, label, "the given configuration cannot run on %lld ranks", (long long)space->keys.world);
    else
        grid_line(file, label, "%s a step, %s%s", grid_seconds(step, seconds), grid_bytes(forecast.peak_bytes, bytes),
                  forecast.fits ? "" : ": does not fit");
    // If the given configuration does not fit, a step at most 10 % longer than the best is enough.
    double enough = counts ? step - 0.9 * (step - best) : 1.1 * best;
    bool gains = !counts || step > 1.001 * best;
    if (!gains || !answer_cheapest(result, &given, enough, &cheapest)) return 0;
    char format[160];
    Config config;
    double own = cheapest.forecast.time.step;
    space_config(space, &cheapest.forecast.layout, &config);
    if (counts)
        snprintf(format, sizeof format, "%s a step, %.0f %%%% of the gain, with %%s", grid_seconds(own, seconds),
                 100 * (step - own) / (step - best));
    else snprintf(format, sizeof format, "%s a step with %%s", grid_seconds(own, seconds));
    line_of_changes_(space->keys.base, &config, "cheapest", format, file);
    return 0;
}

static int print_next_(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err) {
    Candidate misfit;
    double step;
    char lacks[SCHEDULE_TEXT], seconds[32], reason[ANSWER_TEXT], cut[2 * SCHEDULE_TEXT];
    Config config;
    if (!answer_next_better(space, result, &misfit, &step, err)) return err->code != 0 ? -1 : 0;
    space_config(space, &misfit.forecast.layout, &config);
    grid_line(file, result->best >= 0 ? "next" : "nearest", "%s: %s a step, but %s: %s", cut_text_(&config, cut),
              grid_seconds(step, seconds), schedule_lacks_text(&misfit.forecast, lacks),
              answer_reason(space, &misfit, reason));
    return 0;
}

static int print_nothing_(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err) {
    SmallestWorld world;
    const Config *given = space->keys.base;
    long long ranks = (long long)space->keys.world;
    if (result->divisions == 0)
        grid_line(file, "best",
                  "none: %lld ranks cannot be cut so that tensor ranks divide the %lld heads, data ranks divide the "
                  "batch of %lld, and each stage has a layer and a microbatch; raise train.global_batch, or remove an "
                  "-o option",
                  ranks, (long long)given->model.heads, (long long)given->train.global_batch);
    else if (result->misfits.count == 0 && !result->stopped)
        grid_line(file, "best", "none: no schedule for %lld ranks satisfies the -o settings; remove a key of schedule",
                  ranks);
    else grid_line(file, "best", "none: no configuration for %lld ranks fits", ranks);
    if (result->divisions > 0 && result->misfits.count == 0) return 0;
    if (answer_smallest_world(space, &world, err) != 0) return -1;
    char context[32] = "";
    if (world.context > 1) snprintf(context, sizeof context, " x context %lld", (long long)world.context);
    if (world.ranks > 0)
        grid_line(file, "world", "the smallest that fits: %lld ranks, pipeline %lld x tensor %lld x data %lld%s",
                  (long long)world.ranks, (long long)world.pipeline, (long long)world.tensor, (long long)world.data,
                  context);
    else grid_line(file, "world", "no number of ranks with this memory is enough");
    return print_next_(space, result, file, err);
}

int search_report(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err) {
    int status = 0;
    hardware_print_cpus(&space->planner->hardware, file);
    if (result->best < 0) {
        status = print_nothing_(space, result, file, err);
    } else {
        print_best_(space, result, file);
        status = print_gain_(space, result, file, err);
        if (status == 0) status = print_next_(space, result, file, err);
        fprintf(file, "front: the fullest rank's memory against the step, up to %.0f %% slower than the best\n",
                100 * (SEARCH_SLOWER - 1));
        table_(space, result, result->front, result->front_count, file);
        fprintf(file, "the ten fastest: each the best of its cut, micro-batch size and schedule\n");
        table_(space, result, result->ten, result->ten_count, file);
        fprintf(
            file,
            "v: chunks; GiB: memory of the fullest rank; host: most GiB of host memory per rank; by time: layers are\n"
            "split to balance the time with embedding and head; by list: as in -o parallel.layers; again: recomputed\n"
            "layers; pointwise: schedule.recompute; seq: parallel.sequence; e: parallel.expert; adjacent:\n"
            "parallel.placement; regret: as in robust, - if it may not fit\n");
    }
    char evaluated[32], simulated[32];
    grid_line(file, "searched", "%s configurations counted, %s simulated, %lld cuts, %.2f s%s",
              grid_count(result->evaluated, evaluated), grid_count(result->simulated, simulated),
              (long long)result->divisions, result->seconds, result->stopped ? "; stopped before it was complete" : "");
    return status;
}
