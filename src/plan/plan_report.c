// Prints the plan for people.
#include "budget.h"
#include "base/units.h"
#include "base/grid.h"
#include "base/alloc.h"
#include "config/gpus.h"
#include "counted.h"
#include "foreign.h"
#include "pays.h"
#include "plan_report.h"
#include "space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double report_gib_(int64_t bytes) { return (double)bytes / GIB; }

// Returns one unit for all tables.
static GridUnit unit_(const PlanAnswer *answer) {
    const Plan *plain = &answer->plan_1f1b;
    return grid_unit(memory_total(&plain->stage[plan_fullest(plain)].memory));
}

// ---------------------------------------------------------------- memory

// Lists the bytes of each stage's ranks, in brackets if they do not fit.
static void print_peaks_(const PlanAnswer *answer, const Plan *plan, const char *label, const char *heading, bool all,
                         FILE *file) {
    enum { FEW = 24 };
    GridUnit unit = unit_(answer);
    int first = plan_fullest(plan), least = 0;
    for (int s = 1; s < plan->stages; s++)
        if (memory_total(&plan->stage[s].memory) < memory_total(&plan->stage[least].memory)) least = s;
    if (!all && plan->stages > FEW) {
        grid_line(file, label, "%s: %.*f %s on stage %d, %.*f on stage %d", heading, unit.digits,
                  (double)memory_total(&plan->stage[first].memory) / unit.bytes, unit.name, first, unit.digits,
                  (double)memory_total(&plan->stage[least].memory) / unit.bytes, least);
        return;
    }
    char *list;
    size_t length;
    FILE *stream = xmemstream(&list, &length);
    for (int s = 0; s < plan->stages; s++) {
        int64_t bytes = memory_total(&plan->stage[s].memory);
        fprintf(stream, plan_answer_holds(answer, bytes) ? " %.*f" : " (%.*f)", unit.digits,
                (double)bytes / unit.bytes);
    }
    xmemstream_close(stream);
    grid_line(file, label, "%s in %s, by stage:%s", heading, unit.name, list);
    free(list);
}

// Prints the planned configuration and whether it fits; on a terminal in bold, and in red if it does not fit.
static void print_answer_(const PlanAnswer *answer, bool terminal, FILE *file) {
    const Config *config = &answer->config;
    const Plan *plan = &answer->plan;
    const Hardware *hardware = &answer->planner.hardware;
    int fullest = plan_fullest(plan);
    int64_t peak = memory_total(&plan->stage[fullest].memory);
    double left = ((double)hardware->memory_bytes - (double)peak) / GIB - config->hardware.reserve_gib;
    bool fits = plan_answer_holds(answer, peak);
    char schedule[SCHEDULE_TEXT], head[PLAN_HEAD_TEXT], cut[CONFIG_CUT];
    RunLayout layout = layout_of(config);
    if (terminal) fputs(fits ? "\033[1m" : "\033[1;31m", file);
    grid_line(file, "plan", "%s: %s, micro-batch %lld, %s", plan_head_text(&answer->planner, config, head),
              config_cut_text(config, cut), (long long)config->schedule.micro_batch,
              config->schedule.file[0] != '\0' ? config->schedule.file : schedule_text(&layout, schedule));
    char whose[64] = "";
    if (config->program != 0) snprintf(whose, sizeof whose, ", by %s's bytes", foreign_row(config->program)->title);
    if (hardware->memory_bytes > 0)
        grid_line(file, "fits", "%s: %.2f GiB %s on the ranks of stage %d (%.2f of %.2f, %.4g in reserve)%s",
                  fits ? "yes" : "no", fabs(left), fits ? "left" : "too much", fullest, report_gib_(peak),
                  report_gib_(hardware->memory_bytes), config->hardware.reserve_gib, whose);
    else
        grid_line(file, "fits", "%s, %.2f GiB on the ranks of stage %d", fits ? "yes" : "no", report_gib_(peak),
                  fullest);
    if (terminal) fputs("\033[0m", file);
    const TrainerMemory *theirs = gpu_trainer_memory(config->hardware.trainer);
    double all = (double)hardware->memory_bytes;
    if (theirs != NULL && all > 0 && config->program == 0) // --for counts that program's own bytes
        grid_line(file, "",
                  "runs of %s took %.2f to %.2f times the planned bytes (%d runs, median %.2f), here %.1f to %.1f GiB; "
                  "hardware.reserve_gib: %.0f allows for the median",
                  trainer_words[theirs->trainer], theirs->low, theirs->high, theirs->runs, theirs->middle,
                  theirs->low * (double)peak / GIB, theirs->high * (double)peak / GIB,
                  ceil(all / GIB * (1 - 1 / theirs->middle)));
}

// ---------------------------------------------------------------- micro-batch sizes

// Writes the bytes, in brackets if they do not fit; "-" if the variant is impossible.
static void peak_cell_(Grid *grid, const Forecast *forecast, GridUnit unit) {
    double peak = (double)forecast->peak_bytes / unit.bytes;
    if (forecast->possible) grid_cell(grid, forecast->fits ? "%.*f" : "(%.*f)", unit.digits, peak);
    else grid_cell(grid, "-");
}

// Prints the table of micro-batch sizes: powers of two up to twice the largest that fits, and the configured size. A
// row has peak bytes without and with evictions, and times without BPipe, or with it if only that fits. Other programs
// (foreign.h) have no evictions.
static int print_sizes_(const PlanAnswer *answer, FILE *file, Error *err) {
    enum { MOST_ROWS = 8 };
    const Planner *planner = &answer->planner;
    const Config *config = &answer->config;
    const Verdict *verdict = &answer->verdict;
    const char *name = plan_plain_name(config);
    const char *cells[] = {"b",    "m",      name,        "BPipe", "+recompute", "must gain",
                           "step", "bubble", "MFU stage", "MFU",   "with"};
    bool evicts = config->program == 0;
    GridUnit unit = unit_(answer);
    Grid grid = {.columns = evicts ? 11 : 9};
    for (int i = 0; i < 11; i++)
        if (evicts || (i != 3 && i != 4)) grid_cell(&grid, "%s", cells[i]);
    int64_t here = config->schedule.micro_batch, batch = config->train.global_batch / config->parallel.data;
    int64_t best = verdict->largest[PLAN_PLAIN], most = max_i64(here, 2 * max_i64(best, verdict->largest[PLAN_BPIPE]));
    int status = 0, rows = 0;
    for (int64_t b = 1; b <= most && status == 0; b++) {
        bool shown = b == here || ((b & (b - 1)) == 0 && rows < MOST_ROWS);
        Forecast plain, bpipe = {0}, recompute = {0};
        char step[32];
        if (!shown || batch % b != 0 || batch / b * config_slices(config) < config->parallel.pipeline) continue;
        rows++;
        status = verdict_forecast(planner, b, PLAN_PLAIN, true, &plain, err);
        if (status == 0 && evicts) status = verdict_forecast(planner, b, PLAN_BPIPE, false, &bpipe, err);
        if (status == 0 && evicts) status = verdict_forecast(planner, b, PLAN_RECOMPUTE, false, &recompute, err);
        bool with = status == 0 && bpipe.possible && bpipe.fits && !plain.fits;
        if (with) status = verdict_forecast(planner, b, PLAN_BPIPE, true, &bpipe, err);
        if (status != 0) break;
        grid_cell(&grid, "%lld", (long long)b);
        grid_cell(&grid, "%lld", (long long)(batch / b));
        peak_cell_(&grid, &plain, unit);
        if (evicts) peak_cell_(&grid, &bpipe, unit);
        if (evicts) peak_cell_(&grid, &recompute, unit);
        bool possible = plain.possible || bpipe.possible, gains = best > 0 && possible;
        double gain = gains ? estimate_required_gain(batch, best, b, config->parallel.pipeline) : 0;
        grid_cell(&grid, gains ? "%+.1f%%" : "-", 100 * gain);
        const PlanTime *time = with ? &bpipe.time : &plain.time;
        grid_cell(&grid, "%s", time->known ? grid_seconds(time->step, step) : "-");
        grid_cell(&grid, time->known ? "%.1f%%" : "-", 100 * time->bubble);
        grid_cell(&grid, time->stage_mfu > 0 ? "%.1f%%" : "-", 100 * time->stage_mfu);
        grid_cell(&grid, time->mfu > 0 ? "%.1f%%" : "-", 100 * time->mfu);
        grid_cell(&grid, "%s", plain.fits ? name : with ? "BPipe" : possible ? "does not fit" : "cannot run");
    }
    fprintf(file,
            "micro-batch sizes: peak of the fullest rank in %s, in brackets if it does not fit; must gain: by\n"
            "how much a stage's MFU has to rise over that of the largest size that fits %s, for the\n"
            "pipeline to break even; then the prediction\n",
            unit.name, name);
    if (status == 0) grid_print(&grid, file);
    grid_free(&grid);
    return status;
}

// ---------------------------------------------------------------- time

char *plan_head_text(const Planner *planner, const Config *config, char text[PLAN_HEAD_TEXT]) {
    char parameters[PLAN_PARAMETERS_TEXT], tokens[2][32];
    int64_t count = table_parameters(&planner->table, 0, planner->table.count);
    const Gpu *gpu = planner->hardware.cpu ? NULL : gpu_row(config->hardware.gpu);
    snprintf(text, PLAN_HEAD_TEXT, "%s, %s, %s%s%s, %s tokens a sequence, %s a step, on %lld %s%s",
             config_word("model.family", config->model.family), plan_parameters_text(count, &config->model, parameters),
             config_word("train.precision", config->train.precision), config->train.fp8 != FP8_OFF ? " with fp8: " : "",
             config->train.fp8 != FP8_OFF ? config_word("train.fp8", config->train.fp8) : "",
             grid_count(config->model.seq_len, tokens[0]), grid_count(config_step_tokens(config), tokens[1]),
             (long long)config_world(config), gpu != NULL ? gpu->word : "rank",
             gpu != NULL ? "" : grid_plural(config_world(config)));
    return text;
}

void plan_print_replaced(const Config *config, FILE *file) {
    if (config->replaced[0] != '\0')
        grid_line(file, "replaced", "by -o hardware.gpu=%s: %s; to keep a value, set it with -o",
                  gpu_row(config->hardware.gpu)->word, config->replaced);
}

void plan_print_time(const Planner *planner, const Config *config, const PlanTime *time, bool verbose, FILE *file) {
    Hardware described = planner->hardware, *hardware = &described;
    char step[32], tokens[32], mfu[96] = "", speed[96] = "";
    if (!time->known) {
        grid_line(file, "step", "no performance figures for this device; give hardware.peak_tflops or a profile");
        return;
    }
    described.theirs = planner_theirs(planner, config, time->step);
    GpuBand band = hardware_band(hardware, config, planner->measured);
    hardware_print_band(hardware, config, band, time->step, time->mfu, file);
    PlanSpeed speeds = plan_speed(hardware, config, time);
    if (time->mfu > 0)
        snprintf(mfu, sizeof mfu, "MFU %.1f%% (%.1f%% with causal attention), ", 100 * time->mfu,
                 100 * speeds.mfu_causal);
    if (time->mfu > 0 && !hardware->cpu) snprintf(speed, sizeof speed, " and %.0f TFLOP/s", speeds.tflops);
    grid_line(file, "step", "%s with nothing lost, %sbubble %.1f%%, %s tokens/s%s a %s, %s",
              hardware_seconds_text(time->step, step), mfu, 100 * time->bubble,
              grid_count((int64_t)(speeds.tokens + 0.5), tokens), speed, hardware->cpu ? "rank" : "GPU",
              planner->measured           ? "stages measured"
              : hardware->cost.data_sheet ? "stages by the data sheet"
                                          : "stages counted");
    Budget budget = budget_make(config, time->step, !hardware->cpu, band);
    budget_print(&budget, config, hardware, verbose, file);
}

// If no micro-batch size fits, prints the smallest world that fits. Skips a schedule from a file: its stages are fixed.
static int print_world_(const PlanAnswer *answer, FILE *file, Error *err) {
    const Verdict *verdict = &answer->verdict;
    if (verdict->largest[PLAN_PLAIN] > 0 || verdict->largest[PLAN_BPIPE] > 0 || answer->config.schedule.file[0] != '\0')
        return 0;
    // Changes only tensor and pipeline; uses one data rank and one sequence per microbatch.
    const Config *config = answer->planner.config;
    SearchSpace space = space_make(config, &answer->planner, config_world(config));
    SmallestWorld world;
    RunLayout *given = &space.keys.given;
    given->data = given->context = given->micro_batch = 1;
    bool foreign = config->program != 0; // nothing evicts
    given->bpipe = foreign ? BPIPE_OFF : BPIPE_AUTO;
    space.keys.fixed = layout_decided(config, false) | LAYOUT_BIT(data) | LAYOUT_BIT(context) |
                       LAYOUT_BIT(micro_batch) | LAYOUT_BIT(slices) | LAYOUT_BIT(sequence) | LAYOUT_BIT(attention) |
                       LAYOUT_BIT(pointwise) | LAYOUT_BIT(recompute) | LAYOUT_BIT(evict_to) | LAYOUT_BIT(expert);
    space.keys.fixed &= ~(LAYOUT_BIT(tensor) | LAYOUT_BIT(pipeline) | LAYOUT_BIT(layers) | LAYOUT_BIT(bpipe) |
                          LAYOUT_BIT(slots) | LAYOUT_BIT(load_ahead) | LAYOUT_BIT(placement));
    if (foreign) space.keys.fixed |= LAYOUT_BIT(bpipe);
    if (space_smallest_world(&space, &world, err) != 0) return -1;
    if (world.ranks > 0)
        grid_line(file, "world",
                  "the smallest that fits: %lld rank%s, pipeline %d x tensor %d%s, at micro-batch 1 with %s",
                  (long long)world.ranks, grid_plural(world.ranks), world.at.pipeline, world.at.tensor,
                  layout_evicts(&world.at) ? " with BPipe" : "", plan_plain_name(&answer->config));
    else
        grid_line(
            file, "world", "no number of ranks with this memory fits %s as given%s", plan_plain_name(&answer->config),
            answer->schedules.best >= 0 ? "; another schedule fits here" : "; --search looks for a layout that fits");
    return 0;
}

// Prints the rest of a plan: every figure that the answer is based on.
static int print_rest_(const PlanAnswer *answer, const Waterfall *waterfall, FILE *file, Error *err) {
    static const char *const ways[] = {"", "BPipe", "BPipe and recomputed attention"};
    const Config *config = &answer->config;
    const Verdict *verdict = &answer->verdict;
    const Hardware *hardware = &answer->planner.hardware;
    const PlanTime *time = &answer->time;
    const int64_t *largest = verdict->largest;
    int count = config->program == 0 ? PLAN_WAYS : 1; // other programs have no BPipe
    double plain, bpipe, now = config->hardware.reserve_gib;
    // 1. The micro-batch sizes that fit, and their reserves.
    fputs("largest   micro-batch that fits: ", file);
    for (int way = 0; way < count; way++) {
        fprintf(file, "%s%s", way > 0 ? ", " : "", way == 0 ? plan_plain_name(config) : ways[way]);
        if (largest[way] > 0) fprintf(file, " up to %lld", (long long)largest[way]);
        else fputs(" none", file);
    }
    fputc('\n', file);
    if (verdict_reserves(verdict, &answer->planner, &plain, &bpipe) && count == PLAN_WAYS && verdict->bpipe.possible) {
        int b = verdict->plain.layout.micro_batch;
        if (bpipe < 0) grid_line(file, "reserve", "micro-batch %d does not fit, even with BPipe and no reserve", b);
        else if (plain < 0)
            grid_line(file, "reserve",
                      "micro-batch %d fits with BPipe up to a reserve of %.2f GiB, and never without it (now %.2f)", b,
                      bpipe, now);
        else
            grid_line(file, "reserve",
                      "micro-batch %d fits without BPipe up to a reserve of %.2f GiB, with it up to %.2f (now %.2f)", b,
                      plain, bpipe, now);
    }
    // 2. The parts of a step, and the MFU of a stage.
    bool fp8 = config->train.fp8 != FP8_OFF;
    char text[5][32], mfu[32] = "";
    const char *by = hardware->cpu || config->parallel.tensor == 1 ? ""
                     : config_copies(config)                       ? " by copies"
                     : config->hardware.share_gpu                  ? " through host memory"
                                                                   : " by NCCL";
    if (time->known)
        grid_line(file, "parts",
                  "pipeline %s, gradient sums %s, norm and optimizer %s; compute waits %s for transfers, "
                  "collectives inside layers%s %s on the slowest stage",
                  grid_seconds(time->pipeline, text[0]), grid_seconds(time->reduction, text[1]),
                  grid_seconds(time->optimizer, text[2]), grid_seconds(time->exposed, text[3]), by,
                  grid_seconds(time->tensor, text[4]));
    if (fp8) snprintf(mfu, sizeof mfu, ", %.1f%% of the FP8 one", 50 * time->mfu);
    if (time->mfu > 0)
        grid_line(file, "MFU", "%.1f%% of the %speak%s (attention counted in full); of one stage at work %.1f%%",
                  100 * time->mfu, fp8 ? "bf16 " : "", mfu, 100 * time->stage_mfu);
    if (time->estimate > 0)
        grid_line(file, "", "by the paper's formula, without imbalance, messages, sums and optimizer: %.1f%%",
                  100 * time->estimate);
    // 3. The verdict, where the time goes, and the memory.
    if (config->program == 0) grid_line(file, "verdict", "%s", verdict->reason);
    waterfall_print(waterfall, file);
    plan_print(&answer->plan, config, answer->schedule, file);
    if (hardware->memory_bytes > 0)
        grid_line(file, "memory", "%.2f GiB per rank, of which %.2f are reserved for memory that is not counted:",
                  report_gib_(hardware->memory_bytes), now);
    else if (hardware->host_bytes > 0)
        grid_line(file, "memory",
                  "%.2f GiB free on this host for all %lld rank%s, of which %.2f are reserved for memory that is not "
                  "counted:",
                  report_gib_(hardware->host_bytes), (long long)config_world(config), grid_plural(config_world(config)),
                  now);
    else grid_line(file, "memory", "the limit is unknown: give hardware.memory_gib. Not counted:");
    grid_line(file, "", "%s",
              hardware->cpu ? "the program and its libraries, MPI's buffers, packed operands of matrix products"
                            : "the device's context, libraries and their allocations, NCCL's buffers, fragmentation");
    if (print_sizes_(answer, file, err) != 0) return -1;
    if (time->known && !answer->planner.measured) {
        hardware_print(hardware, file);
        if (config->model.experts > 0)
            grid_line(file, "", "standard deviation of the tokens per expert: %.2g of the mean%s",
                      counted_spread(config),
                      config->hardware.expert_spread == 0 ? ", a guess; set hardware.expert_spread" : "");
    }
    return 0;
}

// Removes a labelled line of `text` and the lines that continue it.
static void leave_out_(char *text, const char *label) {
    char *at = text;
    while (*at != '\0' && strncmp(at, label, strlen(label)) != 0) at += strcspn(at, "\n"), at += *at == '\n';
    char *rest = at;
    do rest += strcspn(rest, "\n"), rest += *rest == '\n';
    while (*rest == ' ');
    memmove(at, rest, strlen(rest) + 1);
}

// The report fits on one screen; the table gets the remaining lines.
int plan_report(const PlanAnswer *answer, bool verbose, FILE *file, Error *err) {
    const ScheduleTable *table = &answer->schedules;
    Forecast run = {.layout = layout_of(&answer->config), .time = answer->time}, own = answer->verdict.plain;
    Waterfall waterfall;
    if (waterfall_make(&waterfall, answer, verbose, err) != 0) return -1;
    bool terminal = isatty(fileno(file)) && getenv("NO_COLOR") == NULL;
    bool foreign = answer->config.program != 0; // the table's schedules are this trainer's
    char *text;
    size_t length;
    FILE *screen = xmemstream(&text, &length);
    hardware_print_cpus(&answer->planner.hardware, screen);
    print_answer_(answer, terminal, screen);
    plan_print_replaced(&answer->config, screen);
    plan_print_time(&answer->planner, &answer->config, &answer->time, verbose, screen);
    unsure_print(&answer->unsure, answer->time.step, screen);
    xmemstream_close(screen);
    char *below;
    screen = xmemstream(&below, &length);
    const char *list = answer->config.schedule.file, *slash = strrchr(list, '/');
    const char *named = list[0] == '\0' ? NULL : slash != NULL ? slash + 1 : list;
    if (answer->time.known && table->best >= 0 && !foreign)
        pays_print(table->rows, sizeof *table->rows, table->count, &run, named, false, "does not fit", screen);
    if (!foreign) grid_line(screen, "BPipe?", "%s", answer->verdict.brief);
    const Forecast *best = table->best >= 0 ? &table->rows[table->best] : &run;
    double less = answer->time.known && !foreign ? 1 - best->time.step / answer->time.step : 0;
    if (less >= 0.005 && named == NULL) { // the options that set the best schedule
        char *set, schedule[SCHEDULE_TEXT];
        Config config = *answer->planner.config;
        layout_set(&best->layout, &config);
        FILE *changes = xmemstream(&set, &length);
        layout_write_changes(&answer->config, &config, changes);
        xmemstream_close(changes);
        grid_line(screen, "better", "%s, %.1f %% less: %s", schedule_text(&best->layout, schedule), 100 * less, set);
        free(set);
    }
    int status = print_world_(answer, screen, err), used = 2; // two lines of headings
    if (status == 0) print_peaks_(answer, &answer->plan, "memory", "peak of a rank", verbose, screen);
    xmemstream_close(screen);
    // If there is no room for two rows of the table, leave out lines whose figures are also in "fits", the table and
    // -v.
    static const char *const rest[] = {"memory ", "better "};
    for (int i = 0; i < 2 && !verbose && used + grid_lines(text) + grid_lines(below) + 2 > PLAN_SCREEN; i++)
        leave_out_(below, rest[i]);
    used += grid_lines(text) + grid_lines(below);
    fputs(text, file);
    for (int i = 0; i < WATERFALL_MOST && waterfall.advice[i][0] != '\0'; i++) { // if two rows of the table still fit
        char *advice;
        screen = xmemstream(&advice, &length);
        grid_line(screen, i == 0 ? "advice" : "", "%s", waterfall.advice[i]);
        xmemstream_close(screen);
        bool shown = verbose || used + grid_lines(advice) + 2 <= PLAN_SCREEN;
        if (shown) fputs(advice, file), used += grid_lines(advice);
        free(advice);
        if (!shown) break;
    }
    fputs(below, file);
    free_all(text, below);
    if (status != 0) return -1;
    if (verbose) print_peaks_(answer, &answer->plan_1f1b, "", "with 1F1B", true, file);
    if (verbose && print_rest_(answer, &waterfall, file, err) != 0) return -1;
    own.layout.chunks = answer->schedule->chunks; // a schedule from a file has its own number
    own.layout.slices = answer->schedule->slices;
    int most = verbose ? 0 : (int)max_i64(PLAN_SCREEN - used, 2);
    if (foreign) return foreign_rows_print(answer, most, file, err);
    schedule_table_print(table, &answer->planner, &answer->config, &own, most, file);
    return 0;
}
