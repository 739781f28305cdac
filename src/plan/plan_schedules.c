// The walk of space.h over the candidates of one division, shown as a table. Rows that a configuration would refuse are
// left out, and so are rows with BPipe that evict nothing.
#include "plan_schedules.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "foreign.h"
#include "space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the rows

typedef struct RowsOf {
    const SearchSpace *space;
    Config config;
    ScheduleTable table;
    int status;
    Error err;
} RowsOf;

// Adds a candidate if it is possible. A candidate with the given slots is added only if its slots differ from the
// previous row's.
static Forecast take_row_(void *argument, const RunLayout *way, const Forecast *kept) {
    RowsOf *rows = argument;
    ScheduleTable *table = &rows->table;
    Forecast row = {0};
    (void)kept;
    if (rows->status != 0) return row;
    space_set(rows->space, way, &rows->config);
    rows->status = planner_forecast_config(rows->space->planner, &rows->config, true, &row, &rows->err);
    if (rows->status != 0) return (Forecast){0};
    if (!row.possible || (way->slots > 0 && table->rows[table->count - 1].slots == row.slots)) return row;
    row.layout.slots = row.slots;
    row.layout.load_ahead = row.load_ahead;
    row.layout.split = way->split;
    xpush(table->rows, table->count, row);
    return row;
}

int schedule_table_best(const ScheduleTable *table, const RunLayout *given, LayoutMask mask) {
    int best = -1;
    for (int i = 0; i < table->count; i++) {
        const Forecast *row = &table->rows[i];
        bool sliced = (mask & LAYOUT_BIT(slices)) == 0 || row->layout.slices == given->slices; // no schedule drops them
        if (!row->fits || !row->time.known || !sliced || !layout_keeps(&row->layout, given, mask)) continue;
        if (best < 0 || planner_prefers(row, &table->rows[best])) best = i;
    }
    return best;
}

bool schedule_table_too_long(const Config *config) {
    enum { FEW_STAGES = 32, MOST_FORWARDS = 8192 };
    int64_t p = config->parallel.pipeline;
    return p > FEW_STAGES && p * config_microbatches(config) > MOST_FORWARDS;
}

// Schedules are independent of each other, so they can be divided among threads. If the configuration has slices, the
// schedules without slices are tried, too.
int schedule_table_make(ScheduleTable *table, const Planner *planner, bool threads, Error *err) {
    *table = (ScheduleTable){.best = -1};
    if (schedule_table_too_long(planner->config)) return 0;
    Config base = *planner->config, scratch = base;
    base.schedule.file[0] = '\0';
    base.schedule.file_chunks = base.schedule.file_microbatches = base.schedule.file_slices = 0;
    SearchSpace space = space_make(&base, planner, config_world(&base));
    RunLayout at = space.keys.given;
    space.keys.fixed = LAYOUT_BIT(placement) | (at.layers == LAYERS_LISTED ? LAYOUT_BIT(layers) : 0);
    unsigned ways = WAYS_GIVEN | WAYS_SAVING;
    if (base.program != 0) { // another program's schedules; none evicts
        space.keys.schedules = foreign_schedules(base.program);
        space.keys.given.bpipe = BPIPE_OFF;
        space.keys.fixed |= LAYOUT_BIT(bpipe);
        ways = WAYS_ALL_LAYERS;
    }
    at.bpipe = BPIPE_OFF;
    at.evict_to = EVICT_TO_PEER;
    at.slots = at.load_ahead = 0;
    // The configuration's own schedule needs a row.
    bool useful = config_chunks(&base) == 1 && at.split != SPLIT_ON && !config_schedule_kind(&base)->keeps_all;
    int status = 0;
    for (int sliced = at.slices > 1; sliced >= 0; sliced--) {
        if (sliced == 0) at.slices = 1;
        LayoutList lists = space_schedules(&space, &at, useful, &scratch);
        RowsOf *rows = xcalloc((size_t)lists.count, sizeof *rows);
#pragma omp parallel for schedule(dynamic, 1) if (threads)
        for (int64_t i = 0; i < lists.count; i++) {
            rows[i].space = &space, rows[i].config = base;
            space_ways(&space, &lists.layouts[i], ways, take_row_, &rows[i]);
        }
        for (int64_t i = 0; i < lists.count; i++) {
            if (status == 0 && rows[i].status != 0) *err = rows[i].err; // error of the first row that failed
            if (status == 0) status = rows[i].status;
            for (int row = 0; row < rows[i].table.count; row++)
                xpush(table->rows, table->count, rows[i].table.rows[row]);
            free(rows[i].table.rows);
        }
        free_all(rows, lists.layouts);
    }
    table->best = schedule_table_best(table, NULL, 0);
    return status;
}

void schedule_table_free(ScheduleTable *table) {
    free(table->rows);
    *table = (ScheduleTable){0};
}

// ---------------------------------------------------------------- text

const char *schedule_evicts_text(const RunLayout *layout) {
    if (layout->bpipe != BPIPE_ON) return "";
    return layout->evict_to == EVICT_TO_PEER ? ", BPipe" : ", host";
}

char *schedule_lacks_text(const Forecast *forecast, char text[SCHEDULE_TEXT]) {
    char lacks[32];
    // On a CPU without hardware.memory_gib there is no limit per rank: all ranks share the host's memory.
    if (isinf(forecast->lacks)) snprintf(text, SCHEDULE_TEXT, "this host lacks memory for all ranks");
    else
        snprintf(text, SCHEDULE_TEXT, "stage %d lacks %s", forecast->fullest,
                 grid_bytes((int64_t)fmax(0, forecast->lacks), lacks));
    return text;
}

char *schedule_text(const RunLayout *layout, char text[SCHEDULE_TEXT]) {
    const ScheduleKind *kind = &schedule_kinds[layout->name];
    char group[24] = "", slices[24] = "";
    if (kind->grouped) snprintf(group, sizeof group, ", g=%d", layout->group);
    if (layout->slices > 1) snprintf(slices, sizeof slices, ", %d slices", layout->slices);
    snprintf(text, SCHEDULE_TEXT, "%s%s%s%s%s%s", kind->title, group, slices,
             !kind->splits && layout->split == SPLIT_ON ? ", split" : "", schedule_evicts_text(layout),
             layout->recompute == RECOMPUTE_LISTED      ? ", some layers recomputed"
             : layout->recompute > 0                    ? ", layers recomputed"
             : layout->attention == ATTENTION_RECOMPUTE ? ", attention recomputed"
             : layout->pointwise == RECOMPUTE_EXPERTS   ? ", experts recomputed"
             : layout->pointwise == RECOMPUTE_POINTWISE ? ", pointwise"
                                                        : "");
    return text;
}

// Writes why a row does not fit or, if its step is over 1 % longer than the best row's, which part adds the most.
static char *row_reason_(const ScheduleTable *table, const Forecast *row, char text[SCHEDULE_TEXT]) {
    enum { PARTS = 5 };
    const char *const names[PARTS] = {"transfers", "idle", "collectives", "compute", "sums, optimizer"};
    const PlanTime *best = table->best >= 0 ? &table->rows[table->best].time : &row->time, *time = &row->time;
    double more[PARTS];
    int most = 0;
    text[0] = '\0';
    for (int i = 0; i < 2; i++, time = best) {
        double waits = time->idle, moves = fmin(time->exposed, waits);
        const double parts[PARTS] = {moves, waits - moves, time->tensor, time->pipeline - waits,
                                     time->step - time->pipeline};
        for (int part = 0; part < PARTS; part++) more[part] = i == 0 ? parts[part] : more[part] - parts[part];
    }
    more[2] = fmax(0, fmin(more[2], more[3])); // time->tensor is the slowest stage's: limit to the added busy time
    more[3] -= more[2];
    for (int part = 1; part < PARTS; part++) most = more[part] > more[most] ? part : most;
    if (!row->fits) schedule_lacks_text(row, text);
    else if (row->time.known && row->time.step > 1.01 * best->step)
        snprintf(text, SCHEDULE_TEXT, "+%.3g s %s", more[most], names[most]);
    return text;
}

static void schedules_table_row_(Grid *grid, const ScheduleTable *table, const Forecast *row, const char *note,
                                 const char *file, bool all) {
    const PlanTime *time = &row->time;
    char text[SCHEDULE_TEXT], bytes[32];
    grid_cell(grid, "%s", file != NULL ? file : schedule_text(&row->layout, text));
    grid_cell(grid, "%d", row->layout.chunks);
    grid_cell(grid, "%s", grid_bytes(row->peak_bytes, bytes));
    grid_cell(grid, row->fits ? "yes" : "no");
    grid_cell(grid, "%s", time->known ? grid_seconds(time->step, bytes) : "-");
    grid_cell(grid, time->mfu > 0 ? "%.1f%%" : "-", 100 * time->mfu);
    const char *reason = row_reason_(table, row, text);
    grid_cell(grid, "%s%s%s", note, note[0] != '\0' && reason[0] != '\0' ? ": " : "", reason);
    if (!all) return;
    grid_cell(grid, time->known ? "%.1f%%" : "-", 100 * time->bubble);
    grid_cell(grid, "%.4g", (double)row->slots / (double)(row->layout.chunks * row->layout.slices));
    grid_cell(grid, "%s", time->known ? grid_seconds(time->exposed, bytes) : "-");
}

static int compare_rows_(const void *a, const void *b) {
    const Forecast *one = *(Forecast *const *)a, *other = *(Forecast *const *)b;
    if (one->fits != other->fits) return one->fits ? -1 : 1;
    return planner_prefers(one, other) ? -1 : planner_prefers(other, one) ? 1 : one > other ? 1 : -1;
}

void schedule_table_print(const ScheduleTable *table, const Planner *planner, const Config *config, const Forecast *own,
                          int most, FILE *file) {
    enum { FASTEST = 5 };
    const char *cells[] = {"schedule", "v", "rank", "fits", "step", "MFU", "why", "bubble", "bundles", "xfer"};
    bool all = most == 0;
    Grid grid = {.columns = all ? 10 : 7, .width = GRID_LINE};
    const Forecast **rows = xcalloc((size_t)table->count + 1, sizeof *rows), *leanest = table->rows;
    for (int i = 0; i < table->count; i++) {
        rows[i] = &table->rows[i];
        if (rows[i]->peak_bytes < leanest->peak_bytes) leanest = rows[i];
    }
    qsort(rows, (size_t)table->count, sizeof *rows, compare_rows_);
    RunLayout asked = layout_of(config);
    LayoutMask lists = LAYOUT_BIT(layers) | LAYOUT_BIT(recompute);
    for (int i = 0; i < grid.columns; i++) grid_cell(&grid, "%s", cells[i]);
    const char *list = strrchr(config->schedule.file, '/');
    if (config->schedule.file[0] != '\0')
        schedules_table_row_(&grid, table, own, "given", list != NULL ? list + 1 : config->schedule.file, all);
    // Reserves lines for the given row and for the row with the fewest bytes.
    for (int i = 0, given = 0; i < table->count; i++) {
        // The configuration's own schedule; the numbers of slots may differ.
        bool runs = given == 0 && config->schedule.file[0] == '\0' && asked.recompute == rows[i]->layout.recompute &&
                    layout_distance(&asked, &rows[i]->layout, ~lists) == 0;
        bool best = rows[i] - table->rows == table->best;
        char note[32];
        given += runs;
        if (!all && !(i < FASTEST && i < most - 2 && rows[i]->fits) && !runs && rows[i] != leanest) continue;
        snprintf(note, sizeof note, "%s%s%s", best ? " best" : "", runs ? " given" : "",
                 rows[i] == leanest ? " leanest" : "");
        schedules_table_row_(&grid, table, rows[i], note + (note[0] != '\0'), NULL, all);
    }
    if (schedule_table_too_long(config))
        grid_line(file, "schedules",
                  "not compared: simulating all of them with %lld stages and %lld microbatches takes too long",
                  (long long)config->parallel.pipeline, (long long)config_microbatches(config));
    if (table->count > 0 && all)
        fprintf(file,
                "schedules at micro-batch %lld; v: chunks; bundles: slots of a rank over chunks%s;\n"
                "xfer: waits of compute for transfers\n",
                (long long)planner->config->schedule.micro_batch, config_slices(config) > 1 ? " and slices" : "");
    else if (table->count > 0)
        fprintf(file, "schedules at micro-batch %lld; v: chunks; -v prints all, and the details of the plan\n",
                (long long)planner->config->schedule.micro_batch);
    if (!all) grid_fit(&grid, 5), grid_fit(&grid, 3); // MFU, fits
    if (table->count > 0) grid_print(&grid, file);
    grid_free(&grid);
    free(rows);
}

// ---------------------------------------------------------------- JSON

// Writes a number, or null if the key does not apply to the row.
static void put_owned_(JsonOut *out, const char *key, int value, bool owned) {
    if (owned) json_put_integer(out, key, value);
    else json_put_null(out, key);
}

void schedule_table_write_json(const ScheduleTable *table, const Config *config, JsonOut *out) {
    char text[SCHEDULE_TEXT];
    json_begin(out, "schedules", '[');
    for (int i = 0; i < table->count; i++) {
        const Forecast *row = &table->rows[i];
        const RunLayout *at = &row->layout;
        const PlanTime *time = &row->time;
        const ScheduleKind *kind = &schedule_kinds[at->name];
        const char *reason = row_reason_(table, row, text);
        Config with = *config; // lists by stage are written as in a configuration
        layout_set(at, &with);
        json_begin(out, NULL, '{');
        json_members(out, "name %s chunks %d slices %d", kind->name, at->chunks, at->slices);
        put_owned_(out, "group", at->group, kind->grouped);
        put_owned_(out, "delay", at->delay, kind->delayed);
        json_put_text(out, "split_backward", config_word("schedule.split_backward", at->split));
        config_write_value(&with, "schedule.recompute_layers", json_put(out, "recompute_layers"));
        config_write_value(&with, "schedule.recompute", json_put(out, "recompute"));
        config_write_value(&with, "attention.mode", json_put(out, "attention"));
        json_put_integer(out, "slots", at->slots);
        put_owned_(out, "load_ahead", at->load_ahead, layout_evicts(at));
        json_members(out, "bpipe %s evict_to %s peak_bytes %jd fits? %d", config_word("schedule.bpipe", at->bpipe),
                     config_word("schedule.evict_to", at->evict_to), row->peak_bytes, row->fits);
        json_members(out, "step_ms %g mfu %g bubble %g transfer_exposed_ms %g reason %s",
                     time->known ? 1e3 * time->step : NAN, time->known && time->mfu > 0 ? time->mfu : NAN,
                     time->known ? time->bubble : NAN, time->known ? 1e3 * time->exposed : NAN,
                     reason[0] != '\0' ? reason : NULL);
        json_end(out, '}');
    }
    json_end(out, ']');
    put_owned_(out, "best", table->best, table->best >= 0);
}
