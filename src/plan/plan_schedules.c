// Enumerates the rows of schedule_kinds, their chunks and groups, fused and split backwards, and the three ways to keep
// bundles (none evicted, to the partner, to the host), and asks the planner about each. A row that a configuration
// would refuse is left out, as is one that evicts nothing.
#include "plan_schedules.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the rows

static void add_row_(ScheduleTable *table, const Config *config, const Forecast *forecast) {
    if (table->count == table->capacity) {
        table->capacity = 2 * table->capacity + 32;
        table->rows = xrealloc(table->rows, (size_t)table->capacity * sizeof *table->rows);
    }
    table->rows[table->count++] = (ScheduleRow){config->schedule, config->attention, *forecast};
}

// One schedule in one way of keeping its bundles. evict: -1 none, else EvictTarget.
static int try_row_(ScheduleTable *table, const Planner *planner, Config *config, int evict, Error *err) {
    ScheduleConfig *schedule = &config->schedule;
    const ScheduleKind *kind = config_schedule_kind(config);
    Forecast forecast;
    if (evict == EVICT_TO_PEER && (!kind->pairs || config->parallel.pipeline == 1)) return 0;
    schedule->bpipe = evict < 0 ? BPIPE_OFF : BPIPE_ON;
    schedule->evict_to = evict < 0 ? EVICT_TO_PEER : evict;
    schedule->slots = 0;
    schedule->load_ahead = 0;
    if (planner_forecast_config(planner, config, true, &forecast, err) != 0) return -1;
    if (!forecast.possible) return 0;
    schedule->slots = forecast.slots;
    schedule->load_ahead = forecast.load_ahead;
    add_row_(table, config, &forecast);
    return 0;
}

// Whole layers recomputed, or the attention: what also saves memory, without evicting anything.
static int try_recompute_(ScheduleTable *table, const Planner *planner, Config *config, Error *err) {
    config->schedule.recompute_given = 1;
    config->schedule.recompute_of_stage[0] = config->model.layers;
    int status = try_row_(table, planner, config, -1, err);
    config->schedule.recompute_given = planner->config->schedule.recompute_given;
    config->schedule.recompute_of_stage[0] = planner->config->schedule.recompute_of_stage[0];
    if (status != 0 || planner->config->attention.mode != ATTENTION_NONE) return status;
    config_set_attention(config, ATTENTION_RECOMPUTE);
    status = try_row_(table, planner, config, -1, err);
    config->attention = planner->config->attention;
    return status;
}

static int try_ways_(ScheduleTable *table, const Planner *planner, Config *config, Error *err) {
    for (int evict = -1; evict <= EVICT_TO_HOST; evict++)
        if (try_row_(table, planner, config, evict, err) != 0) return -1;
    return config_chunks(config) == 1 ? try_recompute_(table, planner, config, err) : 0;
}

// Fused and split, where both exist.
static int try_splits_(ScheduleTable *table, const Planner *planner, Config *config, Error *err) {
    if (!config_schedule_kind(config)->splits) {
        config->schedule.split_backward = SPLIT_OFF;
        if (try_ways_(table, planner, config, err) != 0) return -1;
    }
    config->schedule.split_backward = SPLIT_ON;
    return try_ways_(table, planner, config, err);
}

// Both groups, where there are any.
static int try_groups_(ScheduleTable *table, const Planner *planner, Config *config, Error *err) {
    const ScheduleKind *kind = config_schedule_kind(config);
    config->schedule.group = kind->grouped ? config->parallel.pipeline : 0;
    if (try_splits_(table, planner, config, err) != 0) return -1;
    if (!kind->grouped || config->parallel.pipeline < 3) return 0;
    config->schedule.group = (config->parallel.pipeline + 1) / 2;
    return try_splits_(table, planner, config, err);
}

// Layers over p * chunks virtual stages: as given if the list has as many entries, else even.
static void spread_layers_(const Planner *planner, Config *config) {
    config->parallel = planner->config->parallel;
    int64_t count = config->parallel.pipeline * config_chunks(config);
    if (config->parallel.layers_count != count) config_spread_layers(config, count);
}

static int try_kind_(ScheduleTable *table, const Planner *planner, int kind, Config *config, Error *err) {
    const ScheduleKind *row = &schedule_kinds[kind];
    enum { MOST_CHUNKS = 4 }; // more bring little and cost a message each
    for (int64_t chunks = row->chunks; chunks <= row->most_chunks && chunks <= MOST_CHUNKS; chunks *= 2) {
        config->schedule = planner->config->schedule;
        config->schedule.file[0] = '\0';
        config->schedule.file_chunks = config->schedule.file_microbatches = 0;
        config->schedule.name = kind;
        config->schedule.chunks = chunks;
        config->schedule.delay = row->delayed ? config->parallel.pipeline - 1 : 0;
        int64_t given = planner->config->parallel.layers_given;
        if (config->parallel.pipeline * chunks > config->model.layers) break;
        if (given > 0 && given != config->parallel.pipeline * chunks) continue; // a list of layers is for other chunks
        spread_layers_(planner, config);
        if (try_groups_(table, planner, config, err) != 0) return -1;
    }
    return 0;
}

static bool quicker_row_(const ScheduleTable *table, int one, int other) {
    return other < 0 || table->rows[one].forecast.time.step < table->rows[other].forecast.time.step;
}

int schedule_table_quickest(const ScheduleTable *table, bool evicts) {
    int best = -1;
    for (int i = 0; i < table->count; i++) {
        const ScheduleRow *row = &table->rows[i];
        if ((row->schedule.bpipe == BPIPE_ON) != evicts || !row->forecast.fits || !row->forecast.time.known) continue;
        if (quicker_row_(table, i, best)) best = i;
    }
    return best;
}

int schedule_table_make(ScheduleTable *table, const Planner *planner, Error *err) {
    enum { MOST_STAGES = 32 }; // longer lists of all kinds take seconds to simulate
    *table = (ScheduleTable){.best = -1};
    if (planner->config->parallel.pipeline > MOST_STAGES) return 0;
    Config *config = xmalloc(sizeof *config);
    *config = *planner->config;
    int status = 0;
    for (int kind = 0; kind < schedule_kind_count && status == 0; kind++)
        status = try_kind_(table, planner, kind, config, err);
    free(config);
    int plain = schedule_table_quickest(table, false), evicts = schedule_table_quickest(table, true);
    table->best = plain >= 0 && (evicts < 0 || !quicker_row_(table, evicts, plain)) ? plain : evicts;
    return status;
}

void schedule_table_free(ScheduleTable *table) {
    free(table->rows);
    *table = (ScheduleTable){0};
}

// ---------------------------------------------------------------- for people

char *schedule_row_text(const ScheduleRow *row, char text[SCHEDULE_ROW_TEXT]) {
    const ScheduleConfig *schedule = &row->schedule;
    const ScheduleKind *kind = &schedule_kinds[schedule->name];
    char group[24] = "";
    bool layers = schedule->recompute_given > 0 && schedule->recompute_of_stage[0] > 0;
    if (kind->grouped) snprintf(group, sizeof group, ", g=%lld", (long long)schedule->group);
    snprintf(text, SCHEDULE_ROW_TEXT, "%s%s%s%s%s", kind->title, group,
             !kind->splits && schedule->split_backward == SPLIT_ON ? ", split" : "",
             schedule->bpipe != BPIPE_ON           ? ""
             : schedule->evict_to == EVICT_TO_PEER ? ", BPipe"
                                                   : ", host",
             layers                                       ? ", layers recomputed"
             : row->attention.mode == ATTENTION_RECOMPUTE ? ", attention recomputed"
                                                          : "");
    return text;
}

static void table_heading_(Grid *grid) {
    const char *cells[] = {"schedule", "chunks", "bundles", "fullest rank", "fits",
                           "bubble",   "xfer",   "step",    "MFU",          ""};
    grid->columns = 10;
    for (int i = 0; i < 10; i++) grid_cell(grid, "%s", cells[i]);
}

static void table_row_(Grid *grid, const ScheduleTable *table, int i) {
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
    for (int i = 0; i < table->count; i++) table_row_(&grid, table, i);
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

static void json_row_(FILE *file, const ScheduleRow *row) {
    const ScheduleConfig *schedule = &row->schedule;
    const PlanTime *time = &row->forecast.time;
    fprintf(file, "{\"name\":\"%s\",\"chunks\":%lld,\"group\":%lld,\"delay\":%lld,\"split_backward\":\"%s\"",
            schedule_kinds[schedule->name].name, (long long)schedule->chunks, (long long)schedule->group,
            (long long)schedule->delay, config_word("schedule.split_backward", schedule->split_backward));
    fprintf(file, ",\"recompute_layers\":%lld,\"attention\":\"%s\",\"slots\":%lld,\"load_ahead\":%lld",
            (long long)schedule->recompute_of_stage[0], config_word("attention.mode", row->attention.mode),
            (long long)schedule->slots, (long long)schedule->load_ahead);
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
