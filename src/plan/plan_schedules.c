// Asks the planner about every choice of schedule_choices.h in each of the three ways to keep bundles (none evicted, to
// the partner, to the host). A row that a configuration would refuse is left out, as is one that evicts nothing.
#include "plan_schedules.h"

#include "schedule_choices.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the rows

static ScheduleRow *new_row_(ScheduleTable *table) {
    if (table->count == table->capacity) {
        table->capacity = 2 * table->capacity + 8;
        table->rows = xrealloc(table->rows, (size_t)table->capacity * sizeof *table->rows);
    }
    return &table->rows[table->count++];
}

static int add_row_(ScheduleTable *table, const Planner *planner, Config *config, int64_t slots, int64_t load_ahead,
                    Error *err) {
    ScheduleConfig *schedule = &config->schedule;
    Forecast forecast;
    schedule->slots = slots;
    schedule->load_ahead = load_ahead;
    if (planner_forecast_config(planner, config, true, &forecast, err) != 0) return -1;
    if (!forecast.possible || (slots > 0 && table->rows[table->count - 1].forecast.slots == forecast.slots)) return 0;
    schedule->slots = forecast.slots;
    schedule->load_ahead = forecast.load_ahead;
    *new_row_(table) = (ScheduleRow){config->schedule, config->attention, forecast};
    return 0;
}

// Returns whether the configuration that was given evicts in this schedule to this target, with slots of its own.
static bool gives_slots_(const Planner *planner, const Config *config) {
    const ScheduleConfig *asked = &planner->config->schedule, *is = &config->schedule;
    return asked->slots > 0 && asked->bpipe != BPIPE_OFF && asked->evict_to == is->evict_to &&
           asked->name == is->name && config_chunks(planner->config) == is->chunks &&
           (asked->group <= 0 || asked->group == is->group) &&
           (asked->split_backward == SPLIT_AUTO || asked->split_backward == is->split_backward);
}

// Tries one schedule with one target of evictions, with the fewest slots, and with those that are given for it. evict:
// -1 none, else EvictTarget.
static int try_row_(ScheduleTable *table, const Planner *planner, Config *config, int evict, Error *err) {
    ScheduleConfig *schedule = &config->schedule;
    const ScheduleKind *kind = config_schedule_kind(config);
    int rows = table->count;
    if (evict == EVICT_TO_PEER && (!kind->pairs || config->parallel.pipeline == 1)) return 0;
    schedule->bpipe = evict < 0 ? BPIPE_OFF : BPIPE_ON;
    schedule->evict_to = evict < 0 ? EVICT_TO_PEER : evict;
    if (add_row_(table, planner, config, 0, 0, err) != 0) return -1;
    if (evict < 0 || table->count == rows || !gives_slots_(planner, config)) return 0;
    return add_row_(table, planner, config, planner->config->schedule.slots, planner->config->schedule.load_ahead, err);
}

// Returns whether every stage, of one chunk each, recomputes all of its layers.
static bool recomputes_all_(const Config *config) {
    int p = (int)config->parallel.pipeline, s = 0;
    while (s < p && config_recompute(config, s) >= config_layers(config, p, s)) s++;
    return s == p;
}

// Tries what also saves memory without evicting: recomputing whole layers, or the attention.
static int schedules_try_recompute_(ScheduleTable *table, const Planner *planner, Config *config, Error *err) {
    int status = 0;
    if (!recomputes_all_(config)) {
        config->schedule.recompute_given = 1;
        config->schedule.recompute_of_stage[0] = config->model.layers;
        status = try_row_(table, planner, config, -1, err);
    }
    config->schedule.recompute_given = planner->config->schedule.recompute_given;
    config->schedule.recompute_of_stage[0] = planner->config->schedule.recompute_of_stage[0];
    if (status != 0 || planner->config->attention.mode != ATTENTION_NONE) return status;
    config_set_attention(config, ATTENTION_RECOMPUTE);
    status = try_row_(table, planner, config, -1, err);
    config->attention = planner->config->attention;
    return status;
}

// Spreads layers over p * chunks virtual stages: as given if the list has as many entries, else evenly. Returns false
// if the list is for another number.
static bool spread_layers_(const Planner *planner, Config *config) {
    int64_t given = planner->config->parallel.layers_given, count = config->parallel.pipeline * config_chunks(config);
    config->parallel = planner->config->parallel;
    if (given > 0 && given != count) return false;
    if (config->parallel.layers_count != count) config_spread_layers(config, count);
    return true;
}

// Tries one choice in all ways to keep bundles.
static int try_choice_(ScheduleTable *table, const Planner *planner, const ScheduleChoice *choice, Config *config,
                       Error *err) {
    config->schedule = planner->config->schedule;
    schedule_choose(choice, config);
    if (!spread_layers_(planner, config)) return 0;
    for (int evict = -1; evict <= EVICT_TO_HOST; evict++)
        if (try_row_(table, planner, config, evict, err) != 0) return -1;
    return config_chunks(config) == 1 ? schedules_try_recompute_(table, planner, config, err) : 0;
}

static bool recomputes_(const ScheduleRow *row) {
    for (int64_t i = 0; i < row->schedule.recompute_given; i++)
        if (row->schedule.recompute_of_stage[i] > 0) return true;
    return false;
}

static PlanRank schedules_rank_of_(const ScheduleRow *row) {
    bool evicts = row->schedule.bpipe == BPIPE_ON;
    return (PlanRank){.compared = planner_compared_step(row->forecast.time.step, evicts),
                      .recomputes = recomputes_(row),
                      .evicts = evicts,
                      .split = row->schedule.split_backward == SPLIT_ON,
                      .peak_bytes = row->forecast.peak_bytes,
                      .kind = row->schedule.name};
}

int schedule_table_best(const ScheduleTable *table, ScheduleRowMay *may, const void *argument) {
    PlanRank best = {0};
    int at = -1;
    for (int i = 0; i < table->count; i++) {
        const ScheduleRow *row = &table->rows[i];
        if (!row->forecast.fits || !row->forecast.time.known || (may != NULL && !may(row, argument))) continue;
        PlanRank rank = schedules_rank_of_(row);
        if (at >= 0 && !planner_prefers(&rank, &best)) continue;
        best = rank;
        at = i;
    }
    return at;
}

bool schedule_table_too_long(const Config *config) {
    enum { FEW_STAGES = 32, MOST_FORWARDS = 8192 };
    int64_t p = config->parallel.pipeline;
    return p > FEW_STAGES && p * config_microbatches(config) > MOST_FORWARDS;
}

// The rows of one choice.
typedef struct Part {
    ScheduleTable table;
    int status;
    Error err;
} Part;

static void make_part_(Part *part, const Planner *planner, const ScheduleChoice *choice) {
    Config *config = xmalloc(sizeof *config);
    *config = *planner->config;
    part->status = try_choice_(&part->table, planner, choice, config, &part->err);
    free(config);
}

// Moves the rows of a part to the end of the table; err is that of the first part that failed.
static int take_part_(ScheduleTable *table, Part *part, int status, Error *err) {
    if (status == 0 && part->status != 0) *err = part->err;
    if (part->status != 0) status = part->status;
    for (int i = 0; i < part->table.count; i++) *new_row_(table) = part->table.rows[i];
    free(part->table.rows);
    return status;
}

// Choices depend on nothing of each other, so threads may share them.
int schedule_table_make(ScheduleTable *table, const Planner *planner, bool threads, Error *err) {
    *table = (ScheduleTable){.best = -1};
    if (schedule_table_too_long(planner->config)) return 0;
    ScheduleChoice choices[SCHEDULE_CHOICES];
    int count = schedule_choices(planner->config, choices), status = 0;
    Part *parts = xcalloc((size_t)count, sizeof *parts);
#pragma omp parallel for schedule(dynamic, 1) if (threads)
    for (int i = 0; i < count; i++) make_part_(&parts[i], planner, &choices[i]);
    for (int i = 0; i < count; i++) status = take_part_(table, &parts[i], status, err);
    free(parts);
    table->best = schedule_table_best(table, NULL, NULL);
    return status;
}

void schedule_table_free(ScheduleTable *table) {
    free(table->rows);
    *table = (ScheduleTable){0};
}

// ---------------------------------------------------------------- for people

static const char *recomputed_text_(const ScheduleRow *row) {
    if (recomputes_(row)) return row->schedule.recompute_given > 1 ? ", some layers recomputed" : ", layers recomputed";
    if (row->attention.modes_given > 1) return "";
    return row->attention.mode == ATTENTION_RECOMPUTE ? ", attention recomputed" : "";
}

char *schedule_row_text(const ScheduleRow *row, char text[SCHEDULE_ROW_TEXT]) {
    const ScheduleConfig *schedule = &row->schedule;
    const ScheduleKind *kind = &schedule_kinds[schedule->name];
    char group[24] = "";
    if (kind->grouped) snprintf(group, sizeof group, ", g=%lld", (long long)schedule->group);
    snprintf(text, SCHEDULE_ROW_TEXT, "%s%s%s%s%s", kind->title, group,
             !kind->splits && schedule->split_backward == SPLIT_ON ? ", split" : "",
             schedule->bpipe != BPIPE_ON           ? ""
             : schedule->evict_to == EVICT_TO_PEER ? ", BPipe"
                                                   : ", host",
             recomputed_text_(row));
    return text;
}

static void table_heading_(Grid *grid) {
    const char *cells[] = {"schedule", "chunks", "bundles", "fullest rank", "fits",
                           "bubble",   "xfer",   "step",    "MFU",          ""};
    grid->columns = 10;
    for (int i = 0; i < 10; i++) grid_cell(grid, "%s", cells[i]);
}

static void schedules_table_row_(Grid *grid, const ScheduleTable *table, int i) {
    const ScheduleRow *row = &table->rows[i];
    const PlanTime *time = &row->forecast.time;
    char text[SCHEDULE_ROW_TEXT], bytes[32];
    grid_cell(grid, "%s", schedule_row_text(row, text));
    grid_cell(grid, "%lld", (long long)row->schedule.chunks);
    grid_cell(grid, "%.4g", (double)row->schedule.slots / (double)row->schedule.chunks);
    grid_cell(grid, "%s", grid_bytes(row->forecast.peak_bytes, bytes));
    grid_cell(grid, row->forecast.fits ? "yes" : "no");
    grid_cell(grid, time->known ? "%.1f%%" : "-", 100 * time->bubble);
    grid_cell(grid, time->known ? "%.1f ms" : "-", 1e3 * time->exposed);
    grid_cell(grid, time->known ? "%.1f ms" : "-", 1e3 * time->step);
    grid_cell(grid, time->mfu > 0 ? "%.1f%%" : "-", 100 * time->mfu);
    grid_cell(grid, "%s", i == table->best ? "best" : "");
}

void schedule_table_print(const ScheduleTable *table, const Planner *planner, FILE *file) {
    Grid grid = {0};
    table_heading_(&grid);
    for (int i = 0; i < table->count; i++) schedules_table_row_(&grid, table, i);
    fprintf(file, "schedules at micro-batch %lld that can run here; bundles: slots of a rank over chunks\n",
            (long long)planner->config->schedule.micro_batch);
    grid_print(&grid, file);
    grid_free(&grid);
}

// ---------------------------------------------------------------- JSON

static void json_time_(FILE *file, const char *key, const PlanTime *time, double value) {
    fprintf(file, ",\"%s\":", key);
    if (time->known)
        json_write_number(file, value);
    else
        fputs("null", file);
}

// A number or word for all stages, or a list with one for each.
static void json_layers_(FILE *file, const ScheduleConfig *schedule) {
    fprintf(file, ",\"recompute_layers\":%s", schedule->recompute_given > 1 ? "[" : "");
    for (int64_t i = 0; i < schedule->recompute_given; i++)
        fprintf(file, "%s%lld", i > 0 ? "," : "", (long long)schedule->recompute_of_stage[i]);
    fputs(schedule->recompute_given > 1 ? "]" : "", file);
}

static void json_attention_(FILE *file, const AttentionConfig *attention) {
    bool list = attention->modes_given > 1;
    fprintf(file, ",\"attention\":%s", list ? "[" : "");
    for (int64_t i = 0; i < (list ? attention->modes_given : 1); i++)
        fprintf(file, "%s\"%s\"", i > 0 ? "," : "",
                config_word("attention.mode", list ? attention->mode_of_stage[i] : attention->mode));
    fputs(list ? "]" : "", file);
}

static void json_row_(FILE *file, const ScheduleRow *row) {
    const ScheduleConfig *schedule = &row->schedule;
    const PlanTime *time = &row->forecast.time;
    fprintf(file, "{\"name\":\"%s\",\"chunks\":%lld,\"group\":%lld,\"delay\":%lld,\"split_backward\":\"%s\"",
            schedule_kinds[schedule->name].name, (long long)schedule->chunks, (long long)schedule->group,
            (long long)schedule->delay, config_word("schedule.split_backward", schedule->split_backward));
    json_layers_(file, schedule);
    json_attention_(file, &row->attention);
    fprintf(file, ",\"slots\":%lld,\"load_ahead\":%lld", (long long)schedule->slots, (long long)schedule->load_ahead);
    fprintf(file, ",\"bpipe\":\"%s\",\"evict_to\":\"%s\",\"peak_bytes\":%lld,\"fits\":%s",
            config_word("schedule.bpipe", schedule->bpipe), config_word("schedule.evict_to", schedule->evict_to),
            (long long)row->forecast.peak_bytes, row->forecast.fits ? "true" : "false");
    json_time_(file, "step_ms", time, 1e3 * time->step);
    fputs(",\"mfu\":", file);
    if (time->known && time->mfu > 0)
        json_write_number(file, time->mfu);
    else
        fputs("null", file);
    json_time_(file, "bubble", time, time->bubble);
    json_time_(file, "transfer_exposed_ms", time, 1e3 * time->exposed);
    fputc('}', file);
}

void schedule_table_write_json(const ScheduleTable *table, FILE *file) {
    fputs("\"schedules\":[", file);
    for (int i = 0; i < table->count; i++) {
        if (i > 0) fputc(',', file);
        json_row_(file, &table->rows[i]);
    }
    if (table->best >= 0)
        fprintf(file, "],\"best\":%d", table->best);
    else
        fputs("],\"best\":null", file);
}
