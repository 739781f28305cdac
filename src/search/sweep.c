// Every combination is a separate configuration: the file, the overrides, and one value of each swept key as a further
// override. So a row equals the answer of --plan or --search with these overrides.
#include "search_command.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/json_out.h"
#include "base/units.h"
#include "plan/budget.h"
#include "plan/foreign.h"
#include "plan/plan_schedules.h"
#include "plan/verdict.h"
#include "answers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KEYS = 6, MOST_ROWS = 256, TEXT = 128 };

// One swept key. Values are parts of the argument, cut at the commas outside of brackets.
typedef struct Swept {
    char key[64];
    char (*values)[TEXT];
    int count;
} Swept;

typedef struct SweepRow {
    int value[MOST_KEYS];
    char cut[TEXT]; // "8x4x1 b1 GIS, host"
    bool stopped;
    Forecast forecast;  // all zero if the row is refused, or if a search finds nothing that fits
    Budget budget;      // cost of the row's step
    char *config;       // best configuration of a search, as JSON; NULL: nothing fits, or a plan
    Error refused;      // reason of the refusal; code 0: not refused
    char why[256];      // reason why the row does not fit; "" if it fits or no reason was found
    char replaced[480]; // keys of the file that the row's hardware.gpu replaced; "": none
    Hardware hardware;  // hardware that the row was planned for
    bool measured;      // stage times are those of a profile
} SweepRow;

typedef struct Sweep {
    const Options *options;
    const Model *model;
    const Log *log;
    Swept keys[MOST_KEYS];
    int key_count;
    SweepRow *rows;
    int row_count;
    bool stopped;    // true: stopped before the last row
    bool budgets;    // true: rows have days and cost
    double deadline; // days; 0: no deadline
    bool priced;     // true: the cost of all rows on GPUs is a price; false: GPU hours
    int cheapest;    // row that meets the deadline at the smallest cost; -1: no row does
} Sweep;

static const char GPUS_[] = "--gpus"; // a swept option, not a key

// ---------------------------------------------------------------- the request

static int bad_sweep_(const char *text, const char *why, Error *err) {
    size_t option = strlen(GPUS_);
    if (strncmp(text, GPUS_, option) == 0)
        return error_set(err, EXIT_USAGE, "--gpus: %s %s; write --gpus 32,64,128", text + option + 1, why);
    return error_set(err, EXIT_USAGE,
                     "--sweep: %s: %s; write --sweep KEY=A,B,C, as in --sweep schedule.micro_batch=1,2,4", text, why);
}

static int read_sweep_(Sweep *sweep, Error *err) {
    const Options *options = sweep->options;
    const char *deadline = options->deadline;
    int64_t rows = 1;
    char gpus[MOST_ROWS * TEXT + 16], *unit = NULL; // holds every list that is not refused
    bool list = options->gpus != NULL && strchr(options->gpus, ',') != NULL;
    int keys = options->sweep_count + list;
    if (deadline != NULL) {
        sweep->deadline = strtod(deadline, &unit);
        if (*unit == 'h') sweep->deadline /= 24;
        bool positive = sweep->deadline > 0 && sweep->deadline < 1e6;
        if (!positive || (*unit != 'h' && *unit != 'd') || unit[1] != '\0')
            return error_set(err, EXIT_USAGE, "--deadline: %s is not a time; give days or hours, as in 30d or 12h",
                             deadline);
    }
    sweep->budgets = list || deadline != NULL;
    snprintf(gpus, sizeof gpus, "%s=%s", GPUS_, list ? options->gpus : "");
    if (keys > MOST_KEYS)
        return error_set(err, EXIT_USAGE, "--sweep: %d keys; the limit is %d; give fewer", keys, MOST_KEYS);
    for (int i = 0; i < keys; i++) {
        Swept *swept = &sweep->keys[sweep->key_count++];
        const char *text = i < options->sweep_count ? options->sweeps[i] : gpus, *begin, *at;
        size_t length = strcspn(text, "=");
        int depth = 0;
        if (text[length] == '\0' || length == 0 || length >= sizeof swept->key)
            return bad_sweep_(text, "has no KEY=", err);
        snprintf(swept->key, sizeof swept->key, "%.*s", (int)length, text);
        for (begin = at = text + length + 1;; at++) {
            depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
            if (*at != '\0' && (*at != ',' || depth > 0)) continue;
            if (at == begin) return bad_sweep_(text, "has an empty value", err);
            if (at - begin >= TEXT) return bad_sweep_(text, "has a value that is too long", err);
            swept->values = xrealloc(swept->values, (size_t)(swept->count + 1) * sizeof *swept->values);
            snprintf(swept->values[swept->count++], TEXT, "%.*s", (int)(at - begin), begin);
            if (*at == '\0') break;
            begin = at + 1;
        }
        // A key that is swept twice, or also given with -o, would have two values in a row.
        for (int k = 0; k < i; k++)
            if (strcmp(sweep->keys[k].key, swept->key) == 0)
                return error_set(err, EXIT_USAGE, "--sweep: %s: is swept twice; give all its values in one --sweep",
                                 swept->key);
        for (int k = 0; k < options->override_count; k++)
            if (strncmp(options->overrides[k], swept->key, length) == 0 && options->overrides[k][length] == '=')
                return error_set(err, EXIT_USAGE, "--sweep: %s: is also given with -o; remove one of them", swept->key);
        rows *= swept->count;
        if (rows > MOST_ROWS)
            return error_set(err, EXIT_USAGE, "--sweep: more than %d combinations; give fewer values", MOST_ROWS);
    }
    sweep->rows = xcalloc((size_t)rows, sizeof *sweep->rows);
    sweep->row_count = (int)rows;
    return 0;
}

// ---------------------------------------------------------------- one combination

static void sweep_row_(const Sweep *sweep, int index) {
    const Options *options = sweep->options;
    const char *gpus = options->gpus;
    SweepRow *row = &sweep->rows[index];
    int count = options->override_count;
    const char **overrides = xcalloc((size_t)(count + MOST_KEYS), sizeof *overrides);
    char(*text)[TEXT + 80] = xcalloc(MOST_KEYS, sizeof *text);
    Config config = {0};
    Error err = {0};
    // 1. The row's configuration.
    for (int i = 0; i < count; i++) overrides[i] = options->overrides[i];
    for (int i = sweep->key_count - 1; i >= 0; index /= sweep->keys[i--].count) {
        row->value[i] = index % sweep->keys[i].count;
        const char *value = sweep->keys[i].values[row->value[i]];
        if (strcmp(sweep->keys[i].key, GPUS_) == 0) gpus = value;
        snprintf(text[i], sizeof *text, "%s=%s", sweep->keys[i].key, value);
        overrides[count + i] = text[i];
    }
    int swept = sweep->key_count - (gpus != options->gpus); // --gpus, the last entry, is not a key
    int status =
        (options->search ? search_load : config_load)(&config, options->config, overrides, count + swept, &err);
    if (status == 0 && config.model.family != family_find(sweep->model->family))
        status =
            error_set(&err, EXIT_USAGE, "model.family: each trainer plans only its own family; use the other trainer");
    config_plan_device(&config);
    // 2. The result of its search, or its plan.
    Planner own = {0};
    const Planner *planner = &own;
    Searched *found = NULL, *here = NULL;
    Forecast *forecast = &row->forecast;
    if (status == 0 && options->search) {
        status = search_for(&config, sweep->model, gpus, options->program, &found, &here, sweep->log, &err);
        const SearchResult *result = status == 0 ? &found->result : NULL;
        if (status == 0) planner = found->space.planner, row->stopped = result->stopped;
        Candidate misfit;
        double step;
        char lacks[SCHEDULE_TEXT], reason[ANSWER_TEXT], *json;
        size_t length;
        if (status == 0 && result->best >= 0) {
            *forecast = result->found.items[result->best].forecast;
            space_config(&found->space, &forecast->layout, &config);
            FILE *stream = xmemstream(&json, &length);
            config_write_json(&config, stream);
            xmemstream_close(stream);
            row->config = json;
        } else if (status == 0 && answer_next_better(&found->space, result, &misfit, &step, &err)) {
            snprintf(row->why, sizeof row->why, "nearest misfit: %dx%dx%d, %s: %s", misfit.forecast.layout.pipeline,
                     misfit.forecast.layout.tensor, misfit.forecast.layout.data,
                     schedule_lacks_text(&misfit.forecast, lacks), answer_reason(&found->space, &misfit, reason));
        } else if (status == 0 && err.code != 0) {
            status = -1;
        }
    } else if (status == 0) {
        Log quiet = *sweep->log;
        quiet.level = LOG_QUIET;
        if (options->program != NULL) status = foreign_take(&config, options->program, false, &err);
        if (status == 0) status = verdict_resolve(&config, sweep->model, &quiet, &err);
        if (status == 0) status = planner_create(&own, &config, sweep->model, sweep->log, &err);
        if (status == 0) status = planner_forecast_run(&own, &config, forecast, &err);
        if (status == 0 && !forecast->fits) schedule_lacks_text(forecast, row->why);
    }
    // 3. The row.
    if (config.replaced[0] != '\0')
        snprintf(row->replaced, sizeof row->replaced, "hardware.gpu=%s replaces %s; to keep a value, set it with -o",
                 gpu_row(config.hardware.gpu)->word, config.replaced);
    if (status == 0) row->hardware = planner->hardware, row->measured = planner->measured;
    else row->refused = err, *forecast = (Forecast){0};
    if (status == 0 && forecast->possible) {
        RunLayout at = layout_of(&config);
        GpuBand band = hardware_band(&row->hardware, &config, planner->measured);
        row->budget = budget_make(&config, forecast->time.step, !row->hardware.cpu, band);
        snprintf(row->cut, TEXT, "%dx%dx%d b%d %s%s", at.pipeline, at.tensor, at.data, at.micro_batch,
                 config.schedule.file[0] != '\0' ? "file" : config_schedule_kind(&config)->title,
                 schedule_evicts_text(&at));
    }
    searched_free(found);
    searched_free(here);
    planner_free(&own);
    free_all(text, overrides);
}

// ---------------------------------------------------------------- the table

static const char *swept_name_(const Swept *swept) { return swept->key + strspn(swept->key, "-"); }

// Returns the days that a row takes to train, by the slow end of its band or, without a band, the forecast; with the
// failures of hardware.mtbf_hours.
static double row_days_(const SweepRow *row) {
    double days = row->budget.whole.days * (row->budget.band.low > 0 ? row->budget.band.high : 1);
    return row->budget.goodput.mtbf > 0 ? days / row->budget.goodput.share : days; // a share of 0: infinite
}

// Returns the price or GPU hours of a row; 0: CPUs, or nothing fits.
static double row_cost_(const Sweep *sweep, const SweepRow *row) {
    return sweep->priced ? row->budget.whole.price : row->budget.whole.gpu_hours;
}

// Finds the row that meets the deadline at the smallest cost. A row without a cost is cheapest only if no row has one.
static int cheapest_(const Sweep *sweep) {
    int cheapest = -1;
    double least = 0;
    for (int r = 0; r < sweep->row_count; r++) {
        const SweepRow *row = &sweep->rows[r];
        double cost = row_cost_(sweep, row);
        if (!row->forecast.fits || !row->forecast.time.known || row_days_(row) > sweep->deadline) continue;
        if (cheapest < 0 || (cost > 0 && (least == 0 || cost < least))) cheapest = r, least = cost;
    }
    return cheapest;
}

// Prints the table. rows: number of combinations requested; more than sweep->row_count if the sweep was stopped.
static void sweep_print_(const Sweep *sweep, int rows) {
    const char *cells[] = {
        "p x t x d, b, schedule", "fits", "GiB", "bubble", "step", "MFU", "days", "by the band", NULL};
    char step[32], low[32], high[32];
    int cpus = 0, columns = sweep->budgets ? 9 : 6;
    bool banded = false, counted = false;
    for (int r = 0; r < sweep->row_count; r++) {
        banded |= sweep->rows[r].budget.band.low > 0;
        counted |= sweep->rows[r].forecast.time.known && !sweep->rows[r].measured;
    }
    if (sweep->budgets && !banded) columns--;
    if (!banded) cells[6] = "days at best";
    Grid grid = {.columns = sweep->key_count + columns, .width = GRID_LINE};
    while (cpus + 1 < sweep->row_count && !sweep->rows[cpus].hardware.cpu) cpus++;
    if (sweep->row_count > 0) hardware_print_cpus(&sweep->rows[cpus].hardware, stdout);
    for (int i = 0; i < sweep->key_count; i++) {
        const char *name = swept_name_(&sweep->keys[i]), *dot = strchr(name, '.');
        grid_cell(&grid, "%s", dot != NULL ? dot + 1 : name);
    }
    if (sweep->budgets) cells[columns - 1] = sweep->priced ? "price" : "GPU hours";
    for (int i = 0; i < columns; i++) grid_cell(&grid, "%s", cells[i]);
    for (int r = 0; r < sweep->row_count; r++) {
        const SweepRow *row = &sweep->rows[r];
        const PlanTime *time = &row->forecast.time;
        bool known = time->known && row->refused.code == 0;
        for (int i = 0; i < sweep->key_count; i++) grid_cell(&grid, "%s", sweep->keys[i].values[row->value[i]]);
        grid_cell(&grid, "%s", row->refused.code != 0 ? "refused" : row->cut);
        grid_cell(&grid, "%s", row->forecast.fits ? "yes" : "no");
        grid_cell(&grid, row->forecast.peak_bytes > 0 ? "%.2f" : "-", (double)row->forecast.peak_bytes / GIB);
        grid_cell(&grid, known ? "%.1f%%" : "-", 100 * time->bubble);
        grid_cell(&grid, "%s", known ? grid_seconds(time->step, step) : "-");
        grid_cell(&grid, known && time->mfu > 0 ? "%.1f%%" : "-", 100 * time->mfu);
        if (!sweep->budgets) continue;
        double days = row->budget.whole.days;
        GpuBand band = row->budget.band;
        grid_cell(&grid, !known ? "-" : days < 9999.5 ? "%.4g" : "%.0f", days);
        if (banded)
            grid_cell(&grid, known && band.low > 0 ? "%s to %s" : "-", grid_amount(days * band.low, low),
                      grid_amount(days * band.high, high));
        double cost = row_cost_(sweep, row);
        grid_cell(&grid, "%s", known && cost > 0 ? grid_amount(cost, step) : "-");
    }
    grid_print(&grid, stdout);
    grid_free(&grid);
    if (sweep->deadline > 0 && sweep->cheapest < 0)
        grid_line(stdout, "deadline", "no row trains in %s days; give more GPUs", grid_amount(sweep->deadline, low));
    else if (sweep->deadline > 0) {
        const SweepRow *row = &sweep->rows[sweep->cheapest];
        char least[80] = "";
        if (row_cost_(sweep, row) > 0) // CPUs have no cost
            snprintf(least, sizeof least, ", at the smallest cost: %s %s", grid_amount(row_cost_(sweep, row), step),
                     sweep->priced ? "by hardware.gpu_hour" : "GPU hours");
        grid_line(stdout, "deadline", "row %d trains in %s days%s, within %s%s", sweep->cheapest + 1,
                  grid_amount(row_days_(row), low),
                  row->budget.goodput.mtbf > 0 ? " with failures"
                  : row->budget.band.low > 0   ? ""
                                               : " with nothing lost",
                  grid_amount(sweep->deadline, high), least);
    }
    for (int r = 0; r < sweep->row_count; r++) {
        char label[32];
        const char *why = sweep->rows[r].refused.code != 0 ? sweep->rows[r].refused.text : sweep->rows[r].why;
        snprintf(label, sizeof label, "row %d", r + 1);
        if (why[0] != '\0') grid_line(stdout, label, "%s", why);
        if (counted && sweep->rows[r].measured)
            grid_line(stdout, label, "stages measured, those of other rows counted: their steps cannot be compared");
        if (sweep->rows[r].replaced[0] != '\0') grid_line(stdout, label, "%s", sweep->rows[r].replaced);
    }
    if (sweep->stopped) grid_line(stdout, "stopped", "after %d of %d combinations", sweep->row_count, rows);
}

int sweep_command(const Options *options, const Model *model, const Log *log, Error *err) {
    Sweep sweep = {.options = options, .model = model, .log = log};
    int code = read_sweep_(&sweep, err), rows = sweep.row_count, refused = 0, fits = 0, gpus = 0, prices = 0;
    for (int r = 0; r < sweep.row_count && code == 0; r++) {
        const SweepRow *row = &sweep.rows[r];
        sweep_row_(&sweep, r);
        sweep.stopped = row->stopped;
        if (sweep.stopped) sweep.row_count = r; // an interrupted search need not have found the best
        if (sweep.stopped) break;
        refused += row->refused.code != 0;
        fits += row->forecast.fits;
        gpus += row->budget.whole.gpu_hours > 0, prices += row->budget.whole.price > 0;
    }
    sweep.priced = prices > 0 && prices == gpus;
    sweep.cheapest = cheapest_(&sweep);
    if (code == 0 && refused == rows) {
        const Error *first = &sweep.rows[0].refused;
        code = error_set(err, first->code, "%s", first->text);
    } else if (code == 0 && options->json) {
        JsonOut out = {.file = stdout};
        json_begin(&out, NULL, '{');
        json_begin(&out, "sweep", '[');
        for (int r = 0; r < sweep.row_count; r++) {
            const SweepRow *row = &sweep.rows[r];
            const PlanTime *time = &row->forecast.time;
            json_begin(&out, NULL, '{');
            json_begin(&out, "set", '{');
            for (int i = 0; i < sweep.key_count; i++)
                json_put_text(&out, swept_name_(&sweep.keys[i]), sweep.keys[i].values[row->value[i]]);
            json_end(&out, '}');
            json_members(&out, "fits? %d step_ms %g mfu %g bubble %g peak_bytes %g", row->forecast.fits,
                         time->known ? 1e3 * time->step : NAN, time->known && time->mfu > 0 ? time->mfu : NAN,
                         time->known ? time->bubble : NAN,
                         row->forecast.peak_bytes > 0 ? (double)row->forecast.peak_bytes : NAN);
            if (row->config != NULL) fputs(row->config, json_put(&out, "config"));
            if (sweep.budgets && row->config != NULL) budget_write_json(&row->budget, &out);
            if (row->why[0] != '\0') json_put_text(&out, "reason", row->why);
            json_put_text(&out, "refused", row->refused.code != 0 ? row->refused.text : NULL);
            json_end(&out, '}');
        }
        json_end(&out, ']');
        if (sweep.cheapest >= 0) json_put_integer(&out, "deadline", sweep.cheapest);
        else if (sweep.deadline > 0) json_put_null(&out, "deadline");
        if (sweep.stopped) json_put_truth(&out, "complete", false);
        json_end(&out, '}');
        putchar('\n');
    } else if (code == 0) {
        sweep_print_(&sweep, rows);
    }
    if (code == 0) {
        code = fflush(stdout) != 0 ? error_set(err, EXIT_FAILED, "the sweep could not be written to stdout")
               : sweep.stopped     ? EXIT_STOPPED
               : fits > 0          ? (sweep.deadline > 0 && sweep.cheapest < 0 ? EXIT_FAILED : EXIT_DONE)
                                   : EXIT_FAILED;
    }
    for (int i = 0; i < sweep.key_count; i++) free(sweep.keys[i].values);
    for (int r = 0; r < rows; r++) free(sweep.rows[r].config);
    free(sweep.rows);
    return code;
}
