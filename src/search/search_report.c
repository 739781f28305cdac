// Prints the answer in sentences, then a table of the fastest candidates and of candidates that take less memory.
#include "search_command.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/units.h"
#include "plan/budget.h"
#include "plan/foreign.h"
#include "plan/pays.h"
#include "plan/plan_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Writes a schedule in words: "ZB-V", "interleaved, host".
static char *list_text_(RunLayout layout, char text[SCHEDULE_TEXT]) {
    // rest_text_ writes these settings.
    layout.recompute = 0;
    layout.attention = ATTENTION_FLASH;
    layout.pointwise = RECOMPUTE_NONE;
    return schedule_text(&layout, text);
}

typedef enum RestForm { REST_SENTENCE, REST_ROW, REST_SHORT_ROW, REST_OTHER } RestForm;

// Writes the other settings that distinguish a configuration. Example:
//
//     sentence   flash, seq, expert 8, by time, 3 recomputed, adjacent
//     row        flash, seq, e=8, by time, 3 again, adjacent
//     short row  seq, e=8, 3 again
//     other      seq, e=8, by time, 3 again, adjacent
static char *rest_text_(const SearchSpace *space, const Config *config, RestForm form, char text[SCHEDULE_TEXT]) {
    bool brief = form != REST_SENTENCE, all = form != REST_SHORT_ROW;
    bool plain = form >= REST_SHORT_ROW && config->attention.mode == ATTENTION_FLASH; // the usual attention
    static const char *const kinds[] = {"", ", experts", ", pointwise"};
    char again[48] = "", overlap[24] = "", experts[40] = "";
    const char *nccl = config->parallel.collectives == COLLECTIVES_NCCL ? ", NCCL" : "";
    bool listed = space_fixes(space, LAYOUT_BIT(layers)) || foreign_deals(config);
    const char *dealt = config->parallel.layers_given == 0 || !all ? "" : listed ? ", by list" : ", by time";
    int64_t layers = 0;
    for (int s = 0; s < config->parallel.pipeline; s++) layers += config_recompute(config, s);
    layers = min_i64(layers, config->model.layers); // the key may be larger than a stage's layers
    if (layers > 0) snprintf(again, sizeof again, brief ? ", %lld again" : ", %lld recomputed", (long long)layers);
    if (config->parallel.overlap != OVERLAP_AUTO)
        snprintf(overlap, sizeof overlap, ", overlap %s", config_word("parallel.overlap", config->parallel.overlap));
    if (config->parallel.expert > 1)
        snprintf(experts, sizeof experts, brief ? ", e=%lld" : ", expert %lld", (long long)config->parallel.expert);
    bool adjacent = all && config->parallel.pipeline > 1 && config->parallel.placement == PLACEMENT_ADJACENT;
    const char *attention = plain ? "" : config_word("attention.mode", config->attention.mode);
    snprintf(text, SCHEDULE_TEXT, "%s%s%s%s%s%s%s%s%s", attention, kinds[config_recompute_kind(config, 0)],
             config->parallel.sequence ? ", seq" : "", experts, nccl, overlap, dealt, again,
             adjacent ? ", adjacent" : "");
    if (plain && text[0] == ',') memmove(text, text + 2, strlen(text + 2) + 1);
    return text;
}

// Writes a candidate for a sentence: "2x4x8 b2 interleaved, 2 slices, host, v4".
static char *short_text_(const RunLayout *at, char text[2 * SCHEDULE_TEXT]) {
    char schedule[SCHEDULE_TEXT], context[24] = "", chunks[16] = "";
    if (at->context > 1) snprintf(context, sizeof context, "x%d", at->context);
    if (at->chunks > 1) snprintf(chunks, sizeof chunks, ", v%d", at->chunks);
    snprintf(text, 2 * SCHEDULE_TEXT, "%dx%dx%d%s b%d %s%s", at->pipeline, at->tensor, at->data, context,
             at->micro_batch, list_text_(*at, schedule), chunks);
    return text;
}

// Writes a candidate that the table lacks, with its other settings: "2x4x8 b2 1F1B, e=8, 3 again".
static char *whole_text_(const SearchSpace *space, const RunLayout *at, char text[3 * SCHEDULE_TEXT]) {
    char cut[2 * SCHEDULE_TEXT], rest[SCHEDULE_TEXT];
    Config config;
    space_config(space, at, &config);
    rest_text_(space, &config, REST_OTHER, rest);
    snprintf(text, 3 * SCHEDULE_TEXT, "%s%s%s", short_text_(at, cut), rest[0] != '\0' ? ", " : "", rest);
    return text;
}

// ---------------------------------------------------------------- tables

static void table_(const SearchSpace *space, const SearchResult *result, const int *rows, int count, bool verbose,
                   FILE *file) {
    Grid grid = {.columns = verbose ? 11 : 8};
    Config config = *space->keys.base;
    bool shared = false;
    for (int i = 0; i < count; i++) shared |= result->found.items[rows[i]].forecast.layout.context > 1;
    const char *ranks = shared ? "p x t x d x c" : "p x t x d";
    const char *cells[] = {ranks,    "b",    "schedule", "v",     verbose ? "attention, layers" : "also", "GiB", "step",
                           "unsure", "host", "MFU",      "regret"};
    for (int i = 0; i < grid.columns; i++) grid_cell(&grid, "%s", cells[i]);
    for (int i = 0; i < count; i++) {
        const Candidate *candidate = &result->found.items[rows[i]];
        const Forecast *found = &candidate->forecast;
        const RunLayout *at = &found->layout;
        char schedule[SCHEDULE_TEXT], rest[SCHEDULE_TEXT], step[32], context[16] = "";
        space_set(space, at, &config);
        if (at->context > 1) snprintf(context, sizeof context, "x%d", at->context);
        grid_cell(&grid, "%dx%dx%d%s", at->pipeline, at->tensor, at->data, context);
        grid_cell(&grid, "%d", at->micro_batch);
        grid_cell(&grid, "%s", list_text_(*at, schedule));
        grid_cell(&grid, "%d", at->chunks);
        rest_text_(space, &config, verbose ? REST_ROW : REST_SHORT_ROW, rest);
        grid_cell(&grid, "%s", rest);
        grid_cell(&grid, "%.2f", (double)found->peak_bytes / GIB);
        grid_cell(&grid, "%s", grid_seconds(found->time.step, step));
        bool best = rows[i] == result->best, known = !isnan(candidate->robust);
        bool survives = known && candidate->fails == DOUBTS;
        bool slower = candidate->fails == DOUBT_RESERVE && candidate->robust < 1; // it fits with more in reserve
        grid_cell(&grid, "%s%s%s", best ? "best" : "", best && !survives ? ": " : "",
                  !known || survives ? ""
                  : slower           ? "slower"
                                     : unsure_words(candidate->fails, true));
        if (!verbose) continue;
        int64_t host = 0; // bytes of the rank with the most
        Error ignored = {0};
        ScheduleLoan loan = planner_schedule(space->planner, &config, &ignored);
        Plan plan = loan.schedule != NULL ? planner_plan(space->planner, &config, loan.schedule) : (Plan){0};
        for (int s = 0; s < plan.stages; s++) host = max_i64(host, plan_host_bytes(&plan.stage[s]));
        plan_free(&plan);
        schedule_cache_return(&loan);
        grid_cell(&grid, "%.1f", (double)host / GIB);
        grid_cell(&grid, found->time.mfu > 0 ? "%.1f%%" : "-", 100 * found->time.mfu);
        grid_cell(&grid, candidate->robust < 1 ? "%.1f%%" : "-", 100 * candidate->robust);
    }
    grid_print(&grid, file);
    grid_free(&grid);
}

// Prints the table of a short answer: the best, the fastest candidate of each other cut, micro-batch size and schedule,
// and rows of the front with less memory; at most `most` rows, fastest first.
static void print_table_(const SearchSpace *space, const SearchResult *result, int most, FILE *file) {
    enum { MOST = 10, FASTEST = 5 };
    int rows[MOST] = {result->best}, count = 1;
    int fastest = result->ten_count < FASTEST ? result->ten_count : FASTEST;
    for (int i = 0; i < fastest + result->front_count && count < MOST && count < most; i++) {
        int index = i < fastest ? result->ten[i] : result->front[i - fastest], same = 0;
        const Forecast *row = &result->found.items[index].forecast;
        while (same < count && rows[same] != index) same++;
        int64_t leanest = INT64_MAX;
        for (int j = 0; j < count; j++) leanest = min_i64(leanest, result->found.items[rows[j]].forecast.peak_bytes);
        // Skip rows of the front that save little memory.
        if (same < count || (i >= fastest && (double)row->peak_bytes > 0.9 * (double)leanest)) continue;
        rows[count++] = index;
    }
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            double step = result->found.items[rows[j]].forecast.time.step;
            if (result->found.items[rows[j - 1]].forecast.time.step <= step) break;
            int swap = rows[j];
            rows[j] = rows[j - 1], rows[j - 1] = swap;
        }
    fprintf(file,
            "the fastest, then leaner rows; v: chunks; unsure: why a row may fail; -v prints all, and explains\n");
    table_(space, result, rows, count, false, file);
}

// ---------------------------------------------------------------- sentences

static void line_of_changes_(const Config *from, const Config *to, const char *label, const char *format, FILE *file) {
    char *text;
    size_t length;
    FILE *changes = xmemstream(&text, &length);
    int count = layout_write_changes(from, to, changes);
    if (count > 0 && budget_taken(from) < 0.99) fputs(" -o train.steps=auto", changes);
    xmemstream_close(changes);
    grid_line(file, label, format, count == 0 ? "nothing: this is the given configuration" : text);
    free(text);
}

static const char *loses_text_(const Candidate *candidate) {
    if (candidate->fails == DOUBT_RESERVE && candidate->robust < 1) // it fits with more in reserve
        return "slower than others if 4 GiB more are needed";
    return unsure_words(candidate->fails, false);
}

static void print_best_(const SearchSpace *space, const SearchResult *result, bool verbose, FILE *file) {
    const Candidate *items = result->found.items, *safest = NULL;
    const Forecast *best = &items[result->best].forecast;
    char cut[CONFIG_CUT], schedule[SCHEDULE_TEXT], rest[SCHEDULE_TEXT], head[PLAN_HEAD_TEXT], text[2 * SCHEDULE_TEXT];
    char bytes[32], step[32], format[2 * SCHEDULE_TEXT + 64];
    Config config;
    space_config(space, &best->layout, &config);
    grid_line(file, "search", "%s", plan_head_text(space->planner, &config, head));
    plan_print_replaced(&config, file);
    if (config.program != 0)
        grid_line(file, "for", "%s: its schedules, recomputation and defaults, and its bytes, %.0f %% added",
                  foreign_row(config.program)->title, 100 * (foreign_row(config.program)->error - 1));
    grid_line(file, "best", "%s, micro-batch %lld, %s, chunks %d, %s: %s a step, %s on the ranks of stage %d",
              config_cut_text(&config, cut), (long long)config.schedule.micro_batch, list_text_(best->layout, schedule),
              best->layout.chunks, rest_text_(space, &config, REST_SENTENCE, rest), grid_seconds(best->time.step, step),
              grid_bytes(best->peak_bytes, bytes), best->fullest);
    line_of_changes_(space->keys.asked, &config, "set", "%s", file);
    if (config.program != 0)
        grid_line(file, "flags",
                  config.model.kv_lora > 0 && !foreign_row(config.program)->latent
                      ? "scripts/export.py cannot write latent attention for %1$s yet; with --write best.yaml, -c "
                        "best.yaml --plan --for %1$s says what each setting would change"
                      : "with --write best.yaml, scripts/export.py best.yaml --to %1$s prints its settings, and -c "
                        "best.yaml --plan --for %1$s says what each would change",
                  foreign_row(config.program)->word);
    plan_print_time(space->planner, &config, &best->time, verbose, file);
    if (!isnan(items[result->best].robust)) unsure_print(&result->unsure, best->time.step, file);
    for (int64_t i = 0; i < result->found.count; i++)
        if (items[i].robust >= 0 && items[i].fails == DOUBTS &&
            (safest == NULL || items[i].forecast.time.step < safest->forecast.time.step))
            safest = &items[i];
    if (items[result->best].robust >= 0 && items[result->best].fails < DOUBTS && safest != NULL) {
        Config safer;
        config.train.tokens = 0; // `set` has train.steps
        space_config(space, &safest->forecast.layout, &safer);
        snprintf(format, sizeof format, "%s: %.1f %%%% longer, %.2f GiB: as set, then %%s",
                 short_text_(&safest->forecast.layout, text), 100 * (safest->forecast.time.step / best->time.step - 1),
                 (double)safest->forecast.peak_bytes / GIB);
        line_of_changes_(&config, &safer, "safer", format, file);
    }
    if (space->planner->measured)
        grid_line(file, "profile",
                  "stage times come from %s; only its tensor and expert ranks, attention and kinds of stages are "
                  "searched, and neither slices nor context ranks",
                  space->keys.base->hardware.profile);
}

// Prints the forecast of the given configuration, and to `changes` the fewest changes that bring nine tenths of the
// gain of the best configuration, if they differ from the best's.
static int print_gain_(const SearchSpace *space, const SearchResult *result, FILE *file, FILE *changes, Error *err) {
    double best = result->found.items[result->best].forecast.time.step;
    Config given;
    Forecast forecast;
    Candidate cheapest;
    char bytes[32], seconds[32], cut[2 * SCHEDULE_TEXT], label[] = "given";
    if (answer_given(space, &given, &forecast, err) != 0) return -1;
    double step = forecast.time.known ? forecast.time.step : 0;
    bool counts = forecast.possible && forecast.fits && step > 0;
    if (!forecast.possible)
        grid_line(file, label, "the given configuration cannot run on %lld rank%s", (long long)space->keys.world,
                  grid_plural(space->keys.world));
    else {
        forecast.layout.chunks = config_chunks(&given);
        grid_line(file, label, "%s: %s a step, %s%s", short_text_(&forecast.layout, cut), grid_seconds(step, seconds),
                  grid_bytes(forecast.peak_bytes, bytes), forecast.fits ? "" : ": does not fit");
    }
    // If the given configuration does not fit, a step at most 10 % longer than the best is enough.
    double enough = counts ? step - 0.9 * (step - best) : 1.1 * best;
    bool gains = !counts || step > 1.001 * best;
    if (!gains || !answer_cheapest(result, &given, enough, &cheapest)) return 0;
    if (cheapest.order == result->found.items[result->best].order) return 0;
    char format[160];
    Config config;
    double own = cheapest.forecast.time.step;
    space_config(space, &cheapest.forecast.layout, &config);
    if (counts)
        snprintf(format, sizeof format, "%s a step, %.0f %%%% of the gain, with %%s", grid_seconds(own, seconds),
                 fmin(100, 100 * (step - own) / (step - best)));
    else snprintf(format, sizeof format, "%s a step with %%s", grid_seconds(own, seconds));
    line_of_changes_(space->keys.asked, &config, "cheapest", format, changes);
    return 0;
}

// Names the faster candidate that does not survive, and the faster one that does not fit.
static int print_next_(const SearchSpace *space, const SearchResult *result, FILE *file, FILE *misfits, Error *err) {
    Candidate misfit;
    double step, best = result->best >= 0 ? result->found.items[result->best].forecast.time.step : INFINITY;
    char lacks[SCHEDULE_TEXT], seconds[32], reason[ANSWER_TEXT], cut[3 * SCHEDULE_TEXT];
    const char *label = result->best >= 0 ? "next" : "nearest";
    if (result->tightest >= 0 && result->found.items[result->tightest].forecast.time.step < best) {
        const Candidate *tight = &result->found.items[result->tightest];
        grid_line(file, label, "%s: %s a step, %.1f %% less, %.2f GiB, but %s",
                  whole_text_(space, &tight->forecast.layout, cut), grid_seconds(tight->forecast.time.step, seconds),
                  100 * (1 - tight->forecast.time.step / best), (double)tight->forecast.peak_bytes / GIB,
                  loses_text_(tight));
    }
    if (!answer_next_better(space, result, &misfit, &step, err)) return err->code != 0 ? -1 : 0;
    grid_line(misfits, label, "%s: %s a step, but %s: %s", whole_text_(space, &misfit.forecast.layout, cut),
              grid_seconds(step, seconds), schedule_lacks_text(&misfit.forecast, lacks),
              answer_reason(space, &misfit, reason));
    return 0;
}

static int print_nothing_(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err) {
    SmallestWorld world;
    const Config *given = space->keys.base;
    long long ranks = (long long)space->keys.world;
    if (result->divisions == 0)
        grid_line(
            file, "best",
            "none: %lld rank%s cannot be divided so that tensor ranks divide the %lld heads, data ranks divide the "
            "batch of %lld, and each stage has a layer and a microbatch; raise train.global_batch, or remove an "
            "-o option",
            ranks, grid_plural(ranks), (long long)given->model.heads, (long long)given->train.global_batch);
    else if (result->misfits.count == 0 && !result->stopped)
        grid_line(file, "best",
                  "none: no schedule for %lld rank%s satisfies the -o settings; remove a key of schedule%s", ranks,
                  grid_plural(ranks),
                  given->parallel.shard_gradients == SHARD_ON
                      ? ", or parallel.shard_gradients, for which one stage has to take a data rank's batch at once"
                      : "");
    else if (result->stopped)
        grid_line(file, "best", "none yet: stopped before a configuration that fits was found; let it run longer");
    else grid_line(file, "best", "none: no configuration for %lld rank%s fits", ranks, grid_plural(ranks));
    if (result->stopped || (result->divisions > 0 && result->misfits.count == 0)) return 0;
    if (space_smallest_world(space, &world, err) != 0) return -1;
    char context[32] = "", schedule[SCHEDULE_TEXT];
    if (world.at.context > 1) snprintf(context, sizeof context, " x context %d", world.at.context);
    if (world.ranks > 0)
        grid_line(file, "world", "the smallest that fits: %lld rank%s, pipeline %d x tensor %d x data %d%s, with %s",
                  (long long)world.ranks, grid_plural(world.ranks), world.at.pipeline, world.at.tensor, world.at.data,
                  context, schedule_text(&world.at, schedule));
    else
        grid_line(file, "world", "%sno number of ranks with this memory fits",
                  space_fixes(space, LAYOUT_BIT(recompute)) ? "" : "with all layers recomputed, ");
    return print_next_(space, result, file, file, err);
}

int search_report(const Searched *found, const Searched *here, bool verbose, FILE *file, Error *err) {
    const SearchSpace *space = &found->space;
    const SearchResult *result = &found->result;
    enum { FRAME = 4, FEWEST = 3 }; // lines of headings and of the end; least rows of the table
    int status = 0, used = FRAME;
    char *text, *more, evaluated[32], simulated[32], fastest[32];
    size_t length;
    FILE *screen = xmemstream(&text, &length), *extra = xmemstream(&more, &length); // more: printed if there is room
    hardware_print_cpus(&space->planner->hardware, screen);
    if (result->best < 0) {
        status = print_nothing_(space, result, screen, err);
    } else {
        print_best_(space, result, verbose, screen);
        const Candidate *items = result->found.items;
        if (here == NULL)
            pays_print(&items->forecast, sizeof *items, result->found.count, &items[result->best].forecast, NULL, true,
                       "none comes near", screen);
        status = print_gain_(space, result, screen, extra, err);
        if (status == 0) status = print_next_(space, result, screen, extra, err);
    }
    if (here != NULL && status == 0 && here->result.best < 0)
        grid_line(screen, "here", "no configuration of this trainer fits");
    else if (here != NULL && status == 0) { // step and memory of this program
        const Forecast *best = &here->result.found.items[here->result.best].forecast;
        char cut[2 * SCHEDULE_TEXT], step[32], less[48] = "";
        if (result->best >= 0)
            snprintf(less, sizeof less, " (%+.1f %%)",
                     100 * (best->time.step / result->found.items[result->best].forecast.time.step - 1));
        grid_line(screen, "here", "this trainer would take %s: %s%s, %.2f GiB", short_text_(&best->layout, cut),
                  grid_seconds(best->time.step, step), less, (double)best->peak_bytes / GIB);
    }
    xmemstream_close(screen);
    xmemstream_close(extra);
    used += grid_lines(text);
    fputs(text, file);
    if (verbose || used + grid_lines(more) + FEWEST <= SEARCH_SCREEN) {
        used += grid_lines(more);
        fputs(more, file);
    }
    free_all(text, more);
    int left = SEARCH_SCREEN - used;    // rows of the table
    if (result->best >= 0 && verbose) { // all compared candidates
        if (result->alike > 0)
            grid_line(
                file, "alike",
                "%lld more candidate%s within 1 %% of the fastest, %s; best is the simplest of those that survive: "
                "no eviction, fewest stages, no slices, no context ranks, least recomputed, most free memory",
                (long long)result->alike, result->alike == 1 ? " is" : "s are",
                grid_seconds(result->found.items[result->fastest].forecast.time.step, fastest));
        fprintf(file, "front: the fullest rank's memory against the step, up to %.0f %% slower than the best\n",
                100 * (SEARCH_SLOWER - 1));
        table_(space, result, result->front, result->front_count, true, file);
        fprintf(file, "the ten fastest: each the best of its cut, micro-batch size and schedule\n");
        table_(space, result, result->ten, result->ten_count, true, file);
        grid_line(
            file, "",
            "v: chunks; GiB: memory of the fullest rank; host: most GiB of host memory per rank; by time: layers are "
            "split to balance the time with embedding and head; by list: as in -o parallel.layers; again: recomputed "
            "layers; "
            "experts, pointwise: schedule.recompute; seq: parallel.sequence; e: parallel.expert; adjacent: "
            "parallel.placement; unsure: changes after which a row does not fit or is over 5 %% slower than another; "
            "regret: its largest slowdown against the fastest under these changes, - if it may not fit");
    } else if (result->best >= 0 && left >= 0) print_table_(space, result, left, file);
    grid_line(file, "searched", "%s configurations counted, %s simulated, %lld cut%s, %.2f s%s",
              grid_count(result->evaluated, evaluated), grid_count(result->simulated, simulated),
              (long long)result->divisions, grid_plural(result->divisions), result->seconds,
              result->stopped ? "; stopped before it was complete" : "");
    if (result->best >= 0 && (verbose || left != 0)) // docs/published.md
        grid_line(file, "time five",
                  "--write-five DIR: the best of five was within 1 %% of the best measured in 25 of 29 sets");
    return status;
}
