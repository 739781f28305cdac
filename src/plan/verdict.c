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

// Returns the planner's configuration with another micro-batch size, in one of the variants that a plan compares.
static Config way_(const Planner *planner, int64_t micro_batch, PlanWay way) {
    Config config = *planner->config;
    config.schedule.micro_batch = micro_batch;
    config.schedule.bpipe = way == PLAN_PLAIN ? BPIPE_OFF : BPIPE_ON;
    bool already = config.attention.mode == ATTENTION_RECOMPUTE; // the first mode of a list decides
    if (way == PLAN_RECOMPUTE && !already) config_set_attention(&config, ATTENTION_RECOMPUTE);
    // schedule.slots is unused while BPipe is off, so it may be too small for a configuration that turns BPipe on.
    if (config.schedule.slots > 0 && config.schedule.slots < config_min_slots(&config)) config.schedule.slots = 0;
    return config;
}

int verdict_forecast(const Planner *planner, int64_t micro_batch, PlanWay way, bool timed, Forecast *forecast,
                     Error *err) {
    int64_t key[] = {micro_batch, way, timed};
    if (memo_find(planner->asked, key, forecast)) return 0;
    Config config = way_(planner, micro_batch, way);
    if (planner_forecast_config(planner, &config, timed, forecast, err) != 0) return -1;
    memo_keep(planner->asked, key, forecast, sizeof *forecast);
    return 0;
}

// Returns sequences per second on the slowest stage while it works.
static double stage_speed_(const Forecast *forecast) {
    return (double)forecast->layout.micro_batch / forecast->time.slowest;
}

static bool faster_(const Forecast *one, const Forecast *other) {
    return one->time.known && other->time.known && planner_compared(one) < planner_compared(other);
}

// ---------------------------------------------------------------- the sentence

__attribute__((format(printf, 2, 3))) static void say_(Verdict *verdict, const char *format, ...) {
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
    say_(verdict, "stage %d needs %s", forecast->fullest, peak);
    if (planner->hardware.memory_bytes > 0)
        say_(verdict, ", %s are in reserve of %s", reserve, grid_bytes(planner->hardware.memory_bytes, all));
}

static void say_mfu_(Verdict *verdict, const PlanTime *time) {
    char step[32];
    say_(verdict, "%s a step", grid_seconds(time->step, step));
    if (time->mfu > 0) say_(verdict, ", MFU %.1f %%", 100 * time->mfu);
}

// Writes a stage's required and expected gain from one micro-batch size to a larger one, and the step times of both.
static void say_gain_(Verdict *verdict, const Planner *planner, const Forecast *from, const Forecast *to) {
    const Config *config = planner->config;
    int64_t batch = config->train.global_batch / config->parallel.data;
    double required =
        estimate_required_gain(batch, from->layout.micro_batch, to->layout.micro_batch, config->parallel.pipeline);
    say_(verdict, "from micro-batch %d to %d a stage has to gain %.1f %% and %s %.1f %%; predicted with BPipe ",
         from->layout.micro_batch, to->layout.micro_batch, 100 * required,
         planner->measured ? "gains, as measured," : "would gain, by the model,",
         100 * (stage_speed_(to) / stage_speed_(from) - 1));
    say_mfu_(verdict, &to->time);
    say_(verdict, ", without it at micro-batch %d ", from->layout.micro_batch);
    say_mfu_(verdict, &from->time);
    if (!verdict->fastest.possible) return;
    say_(verdict, "; fastest without it is micro-batch %d, ", verdict->fastest.layout.micro_batch);
    say_mfu_(verdict, &verdict->fastest.time);
}

// Writes the verdict in one line: how much longer a micro-batch size with BPipe takes than the best without it.
static void brief_(Verdict *verdict, const char *answer, const char *fits, const Forecast *with,
                   const Forecast *without) {
    char step[2][32];
    snprintf(verdict->brief, sizeof verdict->brief, "%s: micro-batch %d %s", answer, verdict->plain.layout.micro_batch,
             fits);
    if (!with->possible || !with->time.known || !without->possible || !without->time.known) return;
    double more = 100 * (with->time.step / without->time.step - 1);
    text_add(verdict->brief, sizeof verdict->brief, "; %d with it takes %.1f %% %s than %d without (%s, %s)",
             with->layout.micro_batch, fabs(more), more < 0 ? "less" : "longer", without->layout.micro_batch,
             grid_seconds(with->time.step, step[0]), grid_seconds(without->time.step, step[1]));
}

// Writes the first answer that applies.
static void decide_(Verdict *verdict, const Planner *planner) {
    const Config *config = planner->config;
    const Forecast *plain = &verdict->plain, *bpipe = &verdict->bpipe, *best = &verdict->best;
    const Forecast *with = plain->fits ? &verdict->larger : bpipe; // the size that fits only with BPipe
    const Forecast *without = verdict->fastest.possible ? &verdict->fastest : best;
    const char *name = plan_plain_name(config);
    int here = plain->layout.micro_batch;
    int64_t most_plain = verdict->largest[PLAN_PLAIN], most_bpipe = verdict->largest[PLAN_BPIPE], most;
    bool known = with->possible && with->time.known && best->time.known;
    bool pays = faster_(with, best) && !verdict->fastest.possible;
    // Ratios of plans are often off by 2 % (docs/published.md).
    bool tie = known && fabs(planner_compared(with) / planner_compared(without) - 1) < 0.02;
    if (config->schedule.evict_to == EVICT_TO_PEER && config->parallel.pipeline == 1) {
        say_(verdict, "No: with one stage there is nothing to balance.");
    } else if (config->schedule.file[0] != '\0') {
        say_(verdict, "No: the list of schedule.file runs unchanged, with its own evictions.");
    } else if (!plan_can_balance(config)) {
        say_(verdict,
             "No: %s fills all stages alike, so no stage has memory for another stage's activations; evict to the "
             "host instead (schedule.evict_to: host).",
             config_word("schedule.name", config->schedule.name));
    } else if (!bpipe->possible) {
        say_(verdict, "No: with %lld stage%s, %s and these slots BPipe has nothing to move.",
             (long long)config->parallel.pipeline, grid_plural(config->parallel.pipeline),
             config_word("schedule.name", config->schedule.name));
    } else if (plain->fits) { // would a larger size with BPipe be better?
        const char *answer = !known ? "No" : tie ? "Cannot be told apart" : pays ? "Yes, with a larger one" : "No";
        brief_(verdict, answer, "fits without it", with, without);
        say_(verdict, "No: micro-batch %d fits without BPipe (", here);
        say_need_(verdict, planner, plain);
        say_(verdict, "), which would only add transfers");
        if (most_plain > here) say_(verdict, "; without it up to micro-batch %lld fits", (long long)most_plain);
        say_(verdict, ".");
        if (known) {
            say_(verdict, " Micro-batch %d would fit only with BPipe: ", with->layout.micro_batch);
            say_gain_(verdict, planner, best, with);
            say_(verdict, tie ? ": the plan cannot tell them apart." : pays ? ": worth it." : ": not worth it.");
        }
    } else if (!bpipe->fits) {
        most = max_i64(most_plain, most_bpipe);
        snprintf(verdict->brief, sizeof verdict->brief, "No: micro-batch %d does not fit even with it; %s%.0lld%s",
                 here, most > 0 ? "up to " : "no size fits", (long long)most,
                 most == 0            ? ""
                 : most == most_plain ? " fits without it"
                                      : " fits with it");
        say_(verdict, "No: with %s micro-batch %d does not fit even with BPipe (", name, here);
        say_need_(verdict, planner, bpipe);
        say_(verdict, "). ");
        if (most == 0) say_(verdict, "No micro-batch size fits.");
        else if (most == most_plain) say_(verdict, "Up to micro-batch %lld fits, without BPipe.", (long long)most);
        else say_(verdict, "Micro-batch %lld fits with BPipe, %lld without.", (long long)most, (long long)most_plain);
    } else { // the given size fits only with BPipe
        verdict->use_bpipe = !best->possible || pays;
        const char *answer = tie ? "Cannot be told apart" : verdict->use_bpipe ? "Yes" : "No";
        brief_(verdict, answer, "fits only with it", with, without);
        say_(verdict, "%s: with %s micro-batch %d fits only with BPipe (", answer, name, here);
        say_need_(verdict, planner, with);
        say_(verdict, "; without it ");
        say_need_(verdict, planner, plain);
        say_(verdict, "); ");
        if (!best->possible) say_(verdict, "without it %s fits at no micro-batch size.", name);
        else if (!known)
            say_(verdict,
                 "without it micro-batch %d fits; give hardware.peak_tflops or a profile to learn which is faster.",
                 best->layout.micro_batch);
        else say_gain_(verdict, planner, best, with);
        if (known) say_(verdict, tie ? "; plans are accurate only to 2 %% here." : ".");
    }
    bool host = bpipe->possible && config->schedule.evict_to == EVICT_TO_HOST;
    if (host) say_(verdict, " Here it evicts to the host.");
    if (verdict->brief[0] == '\0')
        snprintf(verdict->brief, sizeof verdict->brief, "%.*s", (int)sizeof verdict->brief - 1, verdict->reason);
    else if (host) text_add(verdict->brief, sizeof verdict->brief, "; here it evicts to the host");
}

int verdict_make(Verdict *verdict, const Planner *planner, Error *err) {
    const Config *config = planner->config;
    int64_t here = config->schedule.micro_batch, batch = config->train.global_batch / config->parallel.data;
    int64_t sizes[LAYOUT_CANDIDATES];
    LayoutSpace keys = {.base = config, .given = layout_of(config), .world = config_world(config)};
    int count = layout_candidates(&keys, LAYOUT_micro_batch, &keys.given, sizes);
    memset(verdict, 0, sizeof *verdict);
    // 1. The largest size that fits in each variant. Bytes grow with the size, so the smallest sizes fit; only the
    // largest size, which is looked at first, may shard gradients.
    for (int way = PLAN_PLAIN; way <= (plan_can_balance(config) ? PLAN_RECOMPUTE : PLAN_PLAIN); way++)
        for (int fits = -1, fails = count, at = count - 1; fails - fits > 1; at = fits + (fails - fits) / 2) {
            Forecast forecast = {0};
            Config asked = way_(planner, sizes[at], (PlanWay)way);
            bool never = planner_never_fits(planner, &asked);
            if (!never && verdict_forecast(planner, sizes[at], (PlanWay)way, false, &forecast, err) != 0) return -1;
            if (forecast.possible && forecast.fits) verdict->largest[way] = sizes[fits = at];
            else fails = at;
        }
    int64_t plain = verdict->largest[PLAN_PLAIN], bpipe = verdict->largest[PLAN_BPIPE];
    // 2. The given size. The time with BPipe matters only if this size fits with BPipe and does not fit without it, and
    // if it is compared with a size that fits without it, or may become the plan's own.
    bool timed = config->schedule.bpipe == BPIPE_ON, matters = plain > 0 || config->schedule.bpipe == BPIPE_AUTO;
    if (verdict_forecast(planner, here, PLAN_PLAIN, true, &verdict->plain, err) != 0) return -1;
    if (verdict_forecast(planner, here, PLAN_BPIPE, timed, &verdict->bpipe, err) != 0) return -1;
    bool needed = verdict->bpipe.fits && !verdict->plain.fits;
    if (!timed && matters && needed && verdict_forecast(planner, here, PLAN_BPIPE, true, &verdict->bpipe, err) != 0)
        return -1;
    if (!timed && !matters && needed && planner_split_open(config)) {
        // Only its bytes are reported: those of the kind of backward that is planned without BPipe.
        Config asked = way_(planner, here, PLAN_BPIPE);
        Forecast alike;
        asked.schedule.split_backward = verdict->plain.split_gain > 0 ? SPLIT_ON : SPLIT_OFF;
        if (planner_forecast_config(planner, &asked, false, &alike, err) != 0) return -1;
        if (alike.fits) verdict->bpipe = alike;
    }
    // 3. The largest size without BPipe, and a larger one with it.
    if (plain > 0 && verdict_forecast(planner, plain, PLAN_PLAIN, true, &verdict->best, err) != 0) return -1;
    if (bpipe > max_i64(here, plain) && verdict_forecast(planner, bpipe, PLAN_BPIPE, true, &verdict->larger, err) != 0)
        return -1;
    // 4. If the size that needs BPipe beats the largest size without it, the fastest size without it.
    const Forecast *with = verdict->plain.fits ? &verdict->larger : &verdict->bpipe;
    bool beats = with->possible && with->fits && faster_(with, &verdict->best);
    for (int i = 0; i < count && sizes[i] <= plain && beats; i++) {
        Forecast at, *fastest = &verdict->fastest;
        if (verdict_forecast(planner, sizes[i], PLAN_PLAIN, true, &at, err) != 0) return -1;
        if (at.time.known && (!fastest->possible || at.time.step < fastest->time.step)) *fastest = at;
    }
    if (faster_(with, &verdict->fastest)) verdict->fastest.possible = false;
    // 5. The required gain of a stage, and its expected gain.
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

void verdict_take_split(Config *config, double gain, const Log *log) {
    config->schedule.split_backward = gain > 0 ? SPLIT_ON : SPLIT_OFF;
    if (gain > 0)
        log_status(log, "schedule.split_backward auto is on: by the plan a step takes %.1f %% less", 100 * gain);
}

// Decides the open keys: schedule.name is the fastest row of the table with the values of all given keys; if there is
// no such row, 1F1B. -1 with err if 1F1B does not allow the configuration's chunks or slices.
static int resolve_(Config *config, const Model *model, bool name_alone, const Log *log, Error *err) {
    Planner planner; // planner of the configuration as decided so far
    int status = planner_create(&planner, config, model, log, err);
    if (status == 0 && names_auto_(config)) {
        ScheduleTable table;
        RunLayout given = layout_of(config);
        char text[SCHEDULE_TEXT], step[32];
        status = schedule_table_make(&table, &planner, false, err);
        int best = status == 0 ? schedule_table_best(&table, &given, layout_decided(config, false)) : -1;
        const char *why = schedule_table_too_long(config)
                              ? "too many stages and microbatches to simulate every schedule"
                          : table.best < 0 ? "no schedule fits, or no performance figures are known for the device"
                                           : "no schedule that fits satisfies the given keys of schedule";
        if (best >= 0) {
            const Forecast *row = &table.rows[best];
            layout_set(&row->layout, config);
            log_status(log, "schedule.name auto is %s with %d chunk%s: %s a step, the fastest that fits",
                       schedule_text(&row->layout, text), config_chunks(config), grid_plural(config_chunks(config)),
                       grid_seconds(row->time.step, step));
        } else if (status == 0) {
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
    }
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
        status = planner_forecast_run(&planner, config, &forecast, err);
        config->schedule.bpipe = bpipe;
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
