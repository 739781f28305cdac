// --plan: gathers the answer (the plan, the plain schedule for comparison, the verdict, the table of schedules), then
// writes it as JSON or for people, and with --trace also as a trace. The trace is one complete simulated step, with the
// costs of the plan's step time.
//
// --schedule: prints or draws the schedule of a configuration and reports the result of its proof. The simulation uses
// the action times of --times, in any unit, and does not depend on the hardware.
#include "base/alloc.h"
#include "base/files.h"
#include "base/units.h"
#include "budget.h"
#include "engine/trace.h"
#include "plan_report.h"
#include "schedule/study.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Fills in *answer. -1 with err; the caller frees it in both cases.
static int answer_make_(PlanAnswer *answer, const Config *config, const Model *model, const Log *log, Error *err) {
    enum { MOST_FORWARDS = 1 << 20 };
    answer->config = *config;
    if (planner_create(&answer->planner, config, model, log, err) != 0) return -1;
    if (verdict_make(&answer->verdict, &answer->planner, err) != 0) return -1;
    const Verdict *verdict = &answer->verdict;
    ScheduleConfig *schedule = &answer->config.schedule;
    if (schedule->bpipe == BPIPE_AUTO) schedule->bpipe = verdict->use_bpipe ? BPIPE_ON : BPIPE_OFF;
    if (!verdict->bpipe.possible) schedule->bpipe = BPIPE_OFF; // nothing to evict: the run has no evictions
    const Forecast *own = schedule->bpipe == BPIPE_ON ? &verdict->bpipe : &verdict->plain;
    if (planner_split_open(config)) verdict_take_split(&answer->config, own->split_gain, log);
    answer->loan =
        schedule_cache_borrow(answer->planner.lists, &answer->config, config_microbatches(&answer->config), err);
    answer->schedule = answer->loan.schedule;
    if (answer->schedule == NULL || plan_check_ramp(&answer->config, answer->schedule, err) != 0) return -1;
    answer->plan = planner_plan(&answer->planner, &answer->config, answer->schedule);
    answer->time = own->time;
    answer->fits = own->fits;
    // The same configuration with 1F1B and without BPipe. Without slices, it needs a microbatch per stage.
    Config plain = answer->config;
    plain.schedule.bpipe = BPIPE_OFF;
    plain.schedule.name = schedule_kind_plain();
    plain.schedule.chunks = plain.schedule.file_slices = 0;
    plain.schedule.slices = 1;
    plain.schedule.file[0] = '\0';
    if (config_microbatches(&plain) < plain.parallel.pipeline)
        plain.train.global_batch = plain.parallel.pipeline * plain.schedule.micro_batch * plain.parallel.data;
    ScheduleLoan loan = planner_schedule(&answer->planner, &plain, err);
    if (loan.schedule == NULL) return -1;
    answer->plan_1f1b = planner_plan(&answer->planner, &plain, loan.schedule);
    schedule_cache_return(&loan);
    // Plans with every doubt, unless each simulation of the schedule takes a second.
    answer->unsure.skipped = answer->config.parallel.pipeline * config_microbatches(&answer->config) > MOST_FORWARDS;
    if (!answer->unsure.skipped) {
        Doubters doubters;
        doubters_make(&doubters, &answer->planner);
        int status = unsure_find(&answer->unsure, &doubters, &answer->config, own, NULL, err);
        doubters_free(&doubters);
        if (status != 0) return -1;
    }
    return schedule_table_make(&answer->schedules, &answer->planner, true, err);
}

// ---------------------------------------------------------------- JSON

// Writes the first and last layer of a chunk: null, null if it has no layer.
static void put_layers_(JsonOut *out, const StageChunk *chunk) {
    int64_t first = chunk->first_layer;
    if (chunk->layers == 0) json_members(out, "first_layer %g last_layer %g", NAN, NAN);
    else json_members(out, "first_layer %jd last_layer %jd", first, first + chunk->layers - 1);
}

static void put_stage_(JsonOut *out, const PlanAnswer *answer, int s) {
    const PlanStage *stage = &answer->plan.stage[s], *plain = &answer->plan_1f1b.stage[s];
    json_begin(out, NULL, '{');
    json_put_integer(out, "stage", s);
    put_layers_(out, &stage->at.chunk[0]);
    json_begin(out, "chunks", '[');
    for (int c = 0; c < stage->at.chunks; c++) {
        json_begin(out, NULL, '{');
        put_layers_(out, &stage->at.chunk[c]);
        json_end(out, '}');
    }
    json_end(out, ']');
    json_members(out, "parameters %jd states_bytes %jd bundle_bytes %jd slots %d lent %d in_flight_1f1b %d",
                 stage->parameters, states_total(&stage->states), stage->at.bundle_bytes, stage->own_slots,
                 stage->lent_slots, plain->own_slots);
    json_members(out, "peak_bytes_1f1b %jd peak_bytes %jd", memory_total(&plain->memory), memory_total(&stage->memory));
    json_begin(out, "memory", '{'); // every category, in the order of the human-readable table
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s", memory_name((MemoryCategory)c));
        for (char *at = name; *at != '\0'; at++)
            if (*at == ' ') *at = '_';
        json_put_integer(out, name, stage->memory.bytes[c]);
    }
    json_end(out, '}');
    json_members(out, "host_bytes %jd fits? %d", plan_host_bytes(stage),
                 plan_answer_holds(answer, memory_total(&stage->memory)));
    json_end(out, '}');
}

// Writes one JSON object on one line; scripts rely on its keys. Unknown figures are null.
static void answer_write_json_(const PlanAnswer *answer, FILE *file) {
    JsonOut out = {.file = file};
    const Config *config = &answer->config;
    const PlanTime *time = &answer->time;
    const Verdict *verdict = &answer->verdict;
    Waterfall waterfall;
    Error err;
    json_begin(&out, NULL, '{');
    json_object(&out, "model", "parameters %jd active_parameters %jd flops_per_token_full %g flops_per_token_causal %g",
                answer->plan.parameters, config_active_parameters(&config->model, answer->plan.parameters),
                model_flops_per_token(config, true), model_flops_per_token(config, false));
    json_members(&out, "world %jd microbatches %jd", config_world(config), config_microbatches(config));
    // The request for a batch system. A CPU run has one node; a GPU run has hardware.gpus_per_node GPUs per node.
    int64_t world = config_world(config), gpus = answer->planner.hardware.cpu ? 0 : config->hardware.gpus_per_node;
    int64_t tasks = gpus == 0 || world < gpus ? world : gpus;
    json_object(&out, "job", "nodes %jd tasks_per_node %jd gpus_per_node %jd checkpoint_dir %s",
                (world + tasks - 1) / tasks, tasks, gpus == 0 ? 0 : tasks, config->checkpoint.dir);
    config_write_json(config, json_put(&out, "config"));
    json_begin(&out, "stages", '[');
    for (int s = 0; s < answer->plan.stages; s++) put_stage_(&out, answer, s);
    json_end(&out, ']');
    // The figures of the step. The band scales times; MFU is divided by it.
    GpuBand band = hardware_band(&answer->planner.hardware, config, answer->planner.measured);
    bool known = time->known, banded = known && band.low > 0, mfu = time->mfu > 0;
    PlanSpeed speed = plan_speed(&answer->planner.hardware, config, time);
    double step = known ? 1e3 * time->step : NAN;
    json_members(&out, "step_ms %g step_ms_low %g step_ms_mid %g step_ms_high %g", step, banded ? step * band.low : NAN,
                 banded ? step * band.middle : NAN, banded ? step * band.high : NAN);
    json_members(&out, "mfu %g mfu_causal %g tokens_per_s_gpu %g tflops_gpu %g mfu_low %g mfu_high %g",
                 known && mfu ? time->mfu : NAN, known && mfu ? speed.mfu_causal : NAN, known ? speed.tokens : NAN,
                 known && mfu ? speed.tflops : NAN, banded && mfu ? time->mfu / band.high : NAN,
                 banded && mfu ? time->mfu / band.low : NAN);
    Hardware hardware = answer->planner.hardware;
    if (known) hardware.theirs = planner_theirs(&answer->planner, config, time->step);
    hardware_put_others(&hardware, config, known ? time->step : NAN, &out);
    unsure_write_json(&answer->unsure, time->step, &out);
    json_members(&out, "bubble %g transfer_exposed_ms %g source %s", known ? time->bubble : NAN,
                 known ? 1e3 * time->exposed : NAN, answer->planner.measured ? "profile" : "model");
    Budget budget = budget_make(config, time->step, !answer->planner.hardware.cpu, band);
    if (known) budget_write_json(&budget, &out);
    else json_put_null(&out, "budget");
    json_object(&out, "verdict", "use_bpipe? %d reason %s required_stage_gain %g measured_stage_gain %g",
                verdict->use_bpipe, verdict->reason, verdict->gains ? verdict->required_gain : NAN,
                verdict->gains ? verdict->stage_gain : NAN);
    if (waterfall_make(&waterfall, answer, true, &err) != 0) waterfall.known = false; // the plan is complete without it
    waterfall_write_json(&waterfall, &out);
    schedule_table_write_json(&answer->schedules, config, &out);
    json_end(&out, '}');
    fputc('\n', file);
}

// ---------------------------------------------------------------- the trace, the command

int plan_trace_write(const Schedule *schedule, const Timeline *timeline, double step, const char *path, Error *err) {
    enum { LONGEST_S = 1000000000 }; // seconds; nanoseconds in 64 bits overflow at 9.2e9 s
    if (step > LONGEST_S)
        return error_set(err, EXIT_USAGE, "--trace: the planned step of %.3g s is longer than a trace can show", step);
    TraceWorld shown = {schedule->stages, 1, NULL};
    Trace *trace = trace_open(path, &shown, schedule, err);
    if (trace == NULL) return -1;
    const ActionTime **times = xcalloc((size_t)schedule->stages, sizeof *times);
    for (int s = 0; s < schedule->stages; s++) times[s] = timeline->stage[s].times;
    int status = trace_step(trace, "step", schedule, times, 0.0, step, err);
    free(times);
    return trace_close(trace, status == 0 ? err : NULL) == 0 ? status : -1;
}

// Lengthens the first stage's first forward by the wait for its weights, and delays everything else by the same time.
static void wait_for_weights_(Timeline *timeline, const Schedule *schedule, double wait) {
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            timeline->stage[s].times[i].begin += wait;
            timeline->stage[s].times[i].end += wait;
        }
    int64_t first = 0;
    while (!action_computes(schedule->stage[0].actions[first].kind)) first++;
    timeline->stage[0].times[first].begin -= wait;
}

int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err) {
    alloc_keep_freed();
    PlanAnswer *answer = xcalloc(1, sizeof *answer);
    Config decided = *config;
    int64_t p = config->parallel.pipeline, few = plan_enough_microbatches((int)p), all = config_microbatches(config);
    if (p * min_i64(few, all) > 1 << 21)
        log_status(log, "plan: simulating %lld stages; this takes some seconds", (long long)p);
    // If schedule.name is auto, the plan uses the schedule that a run would choose.
    int status = verdict_resolve_name(&decided, model, log, err);
    if (status == 0) status = answer_make_(answer, &decided, model, log, err);
    if (status == 0 && trace != NULL) {
        TimeSource source = planner_source(&answer->planner);
        PlanCosts costs = {0};
        Timeline *timeline = NULL;
        status = plan_costs_make(&costs, &answer->config, answer->schedule, &answer->plan, &source, err);
        if (status == 0) timeline = simulate_run(answer->schedule, &costs.costs, err);
        if (timeline != NULL) wait_for_weights_(timeline, answer->schedule, costs.gathered);
        status = timeline == NULL ? -1 : plan_trace_write(answer->schedule, timeline, answer->time.step, trace, err);
        timeline_free(timeline);
        plan_costs_free(&costs);
    }
    if (status == 0 && json) answer_write_json_(answer, stdout);
    else if (status == 0) status = plan_report(answer, log->level == LOG_VERBOSE, stdout, err);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = error_set(err, EXIT_FAILED, "cannot write the plan to stdout");
    plan_free(&answer->plan);
    plan_free(&answer->plan_1f1b);
    schedule_cache_return(&answer->loan);
    schedule_table_free(&answer->schedules);
    planner_free(&answer->planner);
    free(answer);
    return status;
}

// ---------------------------------------------------------------- --schedule

// Prints the schedule as text, or as lanes with --draw; with --draw FILE, also draws it into the file.
static int show_(const Schedule *schedule, const Timeline *timeline, const char *draw, Error *err) {
    struct winsize window;
    bool lanes = draw != NULL && strcmp(draw, OPTION_ALONE) == 0, colour = isatty(STDOUT_FILENO);
    size_t length = draw != NULL ? strlen(draw) : 0;
    if (draw != NULL && !lanes) {
        if (length < 4 || strcmp(draw + length - 4, ".svg") != 0)
            return error_set(err, EXIT_USAGE, "--draw: %s does not end in .svg; rename it, or give no file", draw);
        int fd = file_open_to_write(draw, O_TRUNC);
        FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
        if (file == NULL) return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", draw, file_why(errno));
        int status = study_draw_svg(schedule, timeline, file);
        if (fclose(file) != 0 || status != 0)
            return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", draw, strerror(errno));
    }
    const char *given = getenv("COLUMNS"); // for a terminal of unknown width
    int columns = given == NULL ? 0 : atoi(given);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) columns = window.ws_col;
    if (columns <= 0) columns = 120;
    colour = colour && getenv("NO_COLOR") == NULL;
    int written = lanes ? study_draw(schedule, timeline, columns, colour, stdout) : schedule_write(schedule, stdout);
    if (written != 0 || fflush(stdout) != 0) return error_set(err, EXIT_FAILED, "cannot write the schedule to stdout");
    return 0;
}

int schedule_command(Config *config, const Model *model, const Options *options, const Log *log, Error *err) {
    StudyTimes times;
    char found[256];
    if (study_times_parse(options->times, &times, err) != 0) return -1;
    Schedule *schedule = verdict_resolve(config, model, log, err) == 0 ? plan_schedule(config, err) : NULL;
    bool proved = schedule != NULL && plan_check_ramp(config, schedule, err) == 0;
    Timeline *timeline = proved ? study_run(schedule, &times, err) : NULL;
    int status = timeline == NULL ? -1 : show_(schedule, timeline, options->draw, err);
    if (status == 0 && options->trace != NULL)
        status = plan_trace_write(schedule, timeline, timeline->makespan, options->trace, err);
    if (status == 0) study_say(schedule, timeline, &times, found, sizeof found);
    if (status == 0) log_status(log, "proved: %s", found);
    timeline_free(timeline);
    schedule_free(schedule);
    return status;
}
