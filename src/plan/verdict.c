// Finds the forecasts that the verdict compares, makes the verdict and writes its reason. Also resolves `auto` of
// schedule.name, split_backward and bpipe with the same forecasts, so that a run follows the plan.
#include "verdict.h"
#include "base/units.h"

#include "base/grid.h"
#include "plan_schedules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the figures

static int forecast_(const Planner *planner, int64_t micro_batch, PlanWay way, bool timed, Forecast *forecast,
                     Error *err) {
    RunLayout layout = planner_layout(planner, micro_batch, way);
    return planner_forecast(planner, &layout, timed, forecast, err);
}

// Returns sequences per second on the slowest stage while it works.
static double stage_speed_(const Forecast *forecast) {
    return (double)forecast->layout.micro_batch / forecast->time.slowest;
}

static bool faster_(const Forecast *one, const Forecast *other) {
    return one->time.known && other->time.known && planner_compared(one) < planner_compared(other);
}

// Returns whether two planned steps differ by less than 2 %, which ratios of plans are often off by
// (docs/published.md).
static bool tied_(const Forecast *one, const Forecast *other) {
    return one->time.known && other->time.known && fabs(planner_compared(one) / planner_compared(other) - 1) < 0.02;
}

// ---------------------------------------------------------------- the sentence

__attribute__((format(printf, 2, 3))) static void verdict_say_(Verdict *verdict, const char *format, ...) {
    size_t used = strlen(verdict->reason);
    va_list args;
    va_start(args, format);
    vsnprintf(verdict->reason + used, sizeof verdict->reason - used, format, args);
    va_end(args);
}

// Writes "stage 0 needs 74.10 GiB, 4.00 GiB are in reserve of 80.00 GiB".
static void say_need_(Verdict *verdict, const Planner *planner, const Forecast *forecast) {
    char peak[32], reserve[32], all[32];
    grid_bytes(forecast->peak_bytes, peak);
    grid_bytes((int64_t)(planner->config->hardware.reserve_gib * GIB), reserve);
    verdict_say_(verdict, "stage %d needs %s", forecast->fullest, peak);
    if (planner->hardware.memory_bytes > 0)
        verdict_say_(verdict, ", %s are in reserve of %s", reserve, grid_bytes(planner->hardware.memory_bytes, all));
}

static void say_mfu_(Verdict *verdict, const PlanTime *time) {
    char step[32];
    verdict_say_(verdict, "%s a step", grid_seconds(time->step, step));
    if (time->mfu > 0) verdict_say_(verdict, ", MFU %.1f %%", 100 * time->mfu);
}

// Writes a stage's required and expected gain from one micro-batch size to a larger one, and the step times of both.
static void say_gain_(Verdict *verdict, const Planner *planner, const Forecast *from, const Forecast *to) {
    const Config *config = planner->config;
    int64_t batch = config->train.global_batch / config->parallel.data;
    double required =
        estimate_required_gain(batch, from->layout.micro_batch, to->layout.micro_batch, config->parallel.pipeline);
    verdict_say_(verdict, "from micro-batch %lld to %lld a stage has to gain %.1f %% and %s %.1f %%; ",
                 (long long)from->layout.micro_batch, (long long)to->layout.micro_batch, 100 * required,
                 planner->measured ? "gains, as measured," : "would gain, by the model,",
                 100 * (stage_speed_(to) / stage_speed_(from) - 1));
    verdict_say_(verdict, "predicted with BPipe ");
    say_mfu_(verdict, &to->time);
    verdict_say_(verdict, ", without it at micro-batch %lld ", (long long)from->layout.micro_batch);
    say_mfu_(verdict, &from->time);
    if (!verdict->fastest.possible) return;
    verdict_say_(verdict, "; fastest without it is micro-batch %lld, ", (long long)verdict->fastest.layout.micro_batch);
    say_mfu_(verdict, &verdict->fastest.time);
}

// Writes the verdict in one line: how much longer a micro-batch size with BPipe takes than the best without it.
static void brief_(Verdict *verdict, const char *answer, const char *fits, const Forecast *with) {
    const Forecast *without = verdict->fastest.possible ? &verdict->fastest : &verdict->best;
    char step[2][32];
    size_t used = (size_t)snprintf(verdict->brief, sizeof verdict->brief, "%s: micro-batch %lld %s", answer,
                                   (long long)verdict->plain.layout.micro_batch, fits);
    if (!with->possible || !with->time.known || !without->possible || !without->time.known) return;
    double more = 100 * (with->time.step / without->time.step - 1);
    snprintf(verdict->brief + used, sizeof verdict->brief - used,
             "; %lld with it takes %.1f %% %s than %lld without (%s, %s)", (long long)with->layout.micro_batch,
             fabs(more), more < 0 ? "less" : "longer", (long long)without->layout.micro_batch,
             grid_seconds(with->time.step, step[0]), grid_seconds(without->time.step, step[1]));
}

// Decides for a micro-batch size that fits without BPipe: would a larger size with BPipe be better?
static void decide_unneeded_(Verdict *verdict, const Planner *planner) {
    const Forecast *larger = &verdict->larger, *best = &verdict->best;
    brief_(verdict, "No", "fits without it", larger);
    verdict_say_(verdict, "No: micro-batch %lld fits without BPipe (", (long long)verdict->plain.layout.micro_batch);
    say_need_(verdict, planner, &verdict->plain);
    verdict_say_(verdict, "), which would only add transfers");
    if (verdict->largest_plain > verdict->plain.layout.micro_batch)
        verdict_say_(verdict, "; without it up to micro-batch %lld fits", (long long)verdict->largest_plain);
    if (!larger->possible || !larger->time.known || !best->time.known) {
        verdict_say_(verdict, ".");
        return;
    }
    verdict_say_(verdict, ". Micro-batch %lld would fit only with BPipe: ", (long long)larger->layout.micro_batch);
    say_gain_(verdict, planner, best, larger);
    bool pays = faster_(larger, best) && !verdict->fastest.possible;
    bool tie = tied_(larger, verdict->fastest.possible ? &verdict->fastest : best);
    brief_(verdict, tie ? "Cannot be told apart" : pays ? "Yes, with a larger one" : "No", "fits without it", larger);
    verdict_say_(verdict, tie ? ": the plan cannot tell them apart." : pays ? ": worth it." : ": not worth it.");
}

static void decide_impossible_(Verdict *verdict, const Planner *planner) {
    int64_t most = max_i64(verdict->largest_plain, verdict->largest_bpipe);
    snprintf(verdict->brief, sizeof verdict->brief, "No: micro-batch %lld does not fit even with it; %s%.0lld%s",
             (long long)verdict->plain.layout.micro_batch, most > 0 ? "up to " : "no size fits", (long long)most,
             most == 0                        ? ""
             : most == verdict->largest_plain ? " fits without it"
                                              : " fits with it");
    verdict_say_(verdict, "No: with %s micro-batch %lld does not fit even with BPipe (",
                 plan_plain_name(planner->config), (long long)verdict->plain.layout.micro_batch);
    say_need_(verdict, planner, &verdict->bpipe);
    verdict_say_(verdict, "). ");
    if (verdict->largest_plain == 0 && verdict->largest_bpipe == 0) verdict_say_(verdict, "No micro-batch size fits.");
    else if (verdict->largest_plain >= verdict->largest_bpipe)
        verdict_say_(verdict, "Up to micro-batch %lld fits, without BPipe.", (long long)verdict->largest_plain);
    else
        verdict_say_(verdict, "Micro-batch %lld fits with BPipe, %lld without.", (long long)verdict->largest_bpipe,
                     (long long)verdict->largest_plain);
}

// Decides for a micro-batch size that fits only with BPipe.
static void decide_needed_(Verdict *verdict, const Planner *planner) {
    const Forecast *with = &verdict->bpipe, *best = &verdict->best;
    bool none = !best->possible, unknown = !none && !(with->time.known && best->time.known);
    verdict->use_bpipe = none || (faster_(with, best) && !verdict->fastest.possible);
    bool tie = !none && !unknown && tied_(with, verdict->fastest.possible ? &verdict->fastest : best);
    const char *answer = tie ? "Cannot be told apart" : verdict->use_bpipe ? "Yes" : "No";
    brief_(verdict, answer, "fits only with it", with);
    verdict_say_(verdict, "%s: with %s micro-batch %lld fits only with BPipe (", answer,
                 plan_plain_name(planner->config), (long long)with->layout.micro_batch);
    say_need_(verdict, planner, with);
    verdict_say_(verdict, "; without it ");
    say_need_(verdict, planner, &verdict->plain);
    verdict_say_(verdict, "); ");
    if (none) verdict_say_(verdict, "without it %s fits at no micro-batch size.", plan_plain_name(planner->config));
    else if (unknown)
        verdict_say_(verdict,
                     "without it micro-batch %lld fits; give hardware.peak_tflops or a profile to learn "
                     "which is faster.",
                     (long long)best->layout.micro_batch);
    else {
        say_gain_(verdict, planner, best, with);
        verdict_say_(verdict, tie ? "; the plan is not better than 2 %% here." : ".");
    }
}

static void decide_(Verdict *verdict, const Planner *planner) {
    const Config *config = planner->config;
    bool pairs = config->schedule.evict_to == EVICT_TO_PEER;
    if (pairs && config->parallel.pipeline == 1)
        verdict_say_(verdict, "No: with one stage there is nothing to balance.");
    else if (config->schedule.file[0] != '\0')
        verdict_say_(verdict, "No: the list of schedule.file runs unchanged, with its own evictions.");
    else if (!plan_can_balance(config))
        verdict_say_(verdict,
                     "No: %s fills all stages alike, so no stage has memory for another stage's activations; evict to "
                     "the host instead (schedule.evict_to: host).",
                     config_word("schedule.name", config->schedule.name));
    else if (!verdict->bpipe.possible)
        verdict_say_(verdict, "No: with %lld stage%s, %s and these slots BPipe has nothing to move.",
                     (long long)config->parallel.pipeline, grid_plural(config->parallel.pipeline),
                     config_word("schedule.name", config->schedule.name));
    else if (verdict->plain.fits) decide_unneeded_(verdict, planner);
    else if (!verdict->bpipe.fits) decide_impossible_(verdict, planner);
    else decide_needed_(verdict, planner);
    if (verdict->brief[0] == '\0')
        snprintf(verdict->brief, sizeof verdict->brief, "%.*s", (int)sizeof verdict->brief - 1, verdict->reason);
}

int verdict_make(Verdict *verdict, const Planner *planner, Error *err) {
    const Config *config = planner->config;
    int64_t here = config->schedule.micro_batch, batch = config->train.global_batch / config->parallel.data;
    memset(verdict, 0, sizeof *verdict);
    // 1. The largest sizes.
    if (planner_largest(planner, PLAN_PLAIN, &verdict->largest_plain, err) != 0) return -1;
    if (plan_can_balance(config) && (planner_largest(planner, PLAN_BPIPE, &verdict->largest_bpipe, err) != 0 ||
                                     planner_largest(planner, PLAN_RECOMPUTE, &verdict->largest_recompute, err) != 0))
        return -1;
    int64_t plain = verdict->largest_plain, bpipe = verdict->largest_bpipe;
    // 2. The given size. The time with BPipe matters only if this size fits with BPipe and does not fit without it.
    bool timed = config->schedule.bpipe == BPIPE_ON;
    if (forecast_(planner, here, PLAN_PLAIN, true, &verdict->plain, err) != 0) return -1;
    if (forecast_(planner, here, PLAN_BPIPE, timed, &verdict->bpipe, err) != 0) return -1;
    if (!timed && verdict->bpipe.fits && !verdict->plain.fits &&
        forecast_(planner, here, PLAN_BPIPE, true, &verdict->bpipe, err) != 0)
        return -1;
    // 3. The largest size without BPipe, and a larger one with it.
    if (plain == here) verdict->best = verdict->plain;
    else if (plain > 0 && forecast_(planner, plain, PLAN_PLAIN, true, &verdict->best, err) != 0) return -1;
    if (bpipe > max_i64(here, plain) && forecast_(planner, bpipe, PLAN_BPIPE, true, &verdict->larger, err) != 0)
        return -1;
    // 4. If the size that needs BPipe beats the largest without it: the fastest of all sizes without it.
    const Forecast *with = verdict->plain.fits ? &verdict->larger : &verdict->bpipe;
    if (with->possible && with->fits && faster_(with, &verdict->best)) {
        if (planner_fastest(planner, plain, &verdict->fastest, err) != 0) return -1;
        if (faster_(with, &verdict->fastest)) verdict->fastest.possible = false;
    }
    // 5. What a stage has to gain, and gains.
    verdict->gains = verdict->plain.time.known && verdict->best.time.known;
    if (verdict->gains) {
        verdict->required_gain = estimate_required_gain(batch, verdict->best.layout.micro_batch,
                                                        verdict->plain.layout.micro_batch, config->parallel.pipeline);
        verdict->stage_gain = stage_speed_(&verdict->plain) / stage_speed_(&verdict->best) - 1;
    }
    decide_(verdict, planner);
    return 0;
}

static bool names_auto_(const Config *config) {
    return config->schedule.file[0] == '\0' && config->schedule.name == schedule_kind_count;
}

static bool undecided_(const Config *config) {
    return config->schedule.bpipe == BPIPE_AUTO || names_auto_(config) || planner_split_open(config);
}

// Chooses the fastest row of the table with the values of all given keys; if there is no such row, 1F1B. -1
// with err if 1F1B does not allow the configuration's chunks or slices.
static int resolve_name_(Config *config, const Planner *planner, const Log *log, Error *err) {
    ScheduleTable table;
    RunLayout given = layout_of(config);
    char text[SCHEDULE_TEXT], step[32];
    int status = schedule_table_make(&table, planner, false, err);
    int best = status == 0 ? schedule_table_best(&table, &given, layout_decided(config, false)) : -1;
    if (best >= 0) {
        const Forecast *row = &table.rows[best];
        layout_set(&row->layout, config);
        log_status(log, "schedule.name auto is %s with %d chunk%s: %s a step, the fastest that fits",
                   schedule_text(&row->layout, text), config_chunks(config), grid_plural(config_chunks(config)),
                   grid_seconds(row->time.step, step));
    } else if (status == 0) {
        const char *why = schedule_table_too_long(config)
                              ? "too many stages and microbatches to simulate every schedule"
                          : table.best < 0 ? "no schedule fits, or no performance figures are known for the device"
                                           : "no schedule that fits satisfies the given keys of schedule";
        bool sliced = config->schedule.slices > 1;
        config->schedule.name = schedule_kind_plain();
        if (config_schedule_legal(config)) log_status(log, "schedule.name auto is 1F1B: %s", why);
        else
            status = config_error(config, sliced ? "schedule.slices" : "schedule.chunks", err,
                                  "schedule.name auto found no schedule with %lld %s: %s; name a schedule or leave "
                                  "schedule.%s out",
                                  (long long)(sliced ? config->schedule.slices : config->schedule.chunks),
                                  sliced ? "slices" : "chunks", why, sliced ? "slices" : "chunks");
    }
    schedule_table_free(&table);
    return status;
}

void verdict_take_split(Config *config, double gain, const Log *log) {
    config->schedule.split_backward = gain > 0 ? SPLIT_ON : SPLIT_OFF;
    if (gain > 0)
        log_status(log, "schedule.split_backward auto is on: by the plan a step takes %.1f %% less", 100 * gain);
}

static int resolve_(Config *config, const Model *model, bool name_alone, const Log *log, Error *err) {
    Planner planner; // of the configuration as decided so far
    int status = planner_create(&planner, config, model, log, err);
    if (status == 0 && names_auto_(config)) status = resolve_name_(config, &planner, log, err);
    if (status == 0 && !name_alone && config->schedule.bpipe == BPIPE_AUTO) {
        Verdict verdict;
        status = verdict_make(&verdict, &planner, err);
        if (status == 0) {
            config->schedule.bpipe = verdict.use_bpipe ? BPIPE_ON : BPIPE_OFF;
            log_status(log, "schedule.bpipe auto is %s. %s", verdict.use_bpipe ? "on" : "off", verdict.reason);
        }
    }
    if (status == 0 && !name_alone && planner_split_open(config)) {
        Forecast forecast;
        int bpipe = config->schedule.bpipe;
        status = planner_forecast_config(&planner, config, true, &forecast, err);
        if (status == 0 && !forecast.possible) { // nothing to evict: the run is one without evictions
            config->schedule.bpipe = BPIPE_OFF;
            status = planner_forecast_config(&planner, config, true, &forecast, err);
            config->schedule.bpipe = bpipe;
        }
        if (status == 0) verdict_take_split(config, forecast.split_gain, log);
    }
    planner_free(&planner);
    return status;
}

int verdict_resolve(Config *config, const Model *model, const Log *log, Error *err) {
    return undecided_(config) ? resolve_(config, model, false, log, err) : 0;
}

int verdict_resolve_name(Config *config, const Model *model, const Log *log, Error *err) {
    return names_auto_(config) ? resolve_(config, model, true, log, err) : 0;
}

int verdict_agree(Config *config, const Model *model, World *world, const Log *log, Error *err) {
    if (!undecided_(config)) return 0;
    if (world_rank(world) == 0) verdict_resolve(config, model, log, err);
    // If the configuration is still undecided, rank 0 failed and reports its error.
    RunLayout layout = layout_of(config);
    if (world_broadcast(world, &layout, sizeof layout, err) != 0) return -1;
    layout_set(&layout, config);
    if (!undecided_(config)) return 0;
    return error_on_all(err, EXIT_FAILED,
                        "rank 0 could not decide schedule.name, schedule.split_backward or schedule.bpipe");
}

bool verdict_reserves(const Verdict *verdict, const Planner *planner, double *plain, double *bpipe) {
    double reserve = planner->config->hardware.reserve_gib;
    *plain = reserve - verdict->plain.lacks / GIB;
    *bpipe = reserve - verdict->bpipe.lacks / GIB;
    return planner->hardware.memory_bytes > 0;
}
