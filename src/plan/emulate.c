// Runs the action list of one stage with emulated communicators (comm_emulated.h). Bundles are copied to and from a
// scratch slot, which loads the memory as real transfers do.
//
// --emulate-stage S runs one stage's list of the configured schedule on this device, and reports the results.
// --emulate-stage all does this for every stage in turn and records the time of each action. The simulator then runs
// all lists with these times, which predicts a pipeline with one device per stage. The times of actions are measured;
// the waiting times follow from the lists.
#include "emulate.h"
#include "base/alloc.h"
#include "base/grid.h"
#include "base/random.h"
#include "base/units.h"
#include "comm/comm_emulated.h"
#include "device/device.h"
#include "fits.h"
#include "planner.h"
#include "schedule/simulate.h"
#include "verdict.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- life

Backend *emulation_backend(const Config *config, Error *err) {
    Backend *be = planner_backend(config, err);
    if (be == NULL || be->allocate != NULL) return be;
    be->destroy(be);
    return device_open_one(config, err);
}

int emulation_create(Emulation *e, const Config *config, const Model *model, const Schedule *schedule,
                     const PlanStage *plan, const Hardware *hardware, Backend *be, Error *err) {
    memset(e, 0, sizeof *e);
    e->be = be;
    if (be->count_own_time != NULL) be->count_own_time(be);
    const StageSchedule *list = &schedule->stage[plan->at.stage];
    bool moves = false; // to or from a partner
    for (int64_t i = 0; i < list->count; i++) moves |= list->actions[i].peer >= 0;
    if (moves) {
        int64_t before = be->held.bytes[MEMORY_LENT_SLOTS];
        e->scratch_bytes = plan->slot_bytes;
        e->scratch = be->allocate(be, MEMORY_LENT_SLOTS, e->scratch_bytes, "emulated partner", err);
        e->scratch_counted = be->held.bytes[MEMORY_LENT_SLOTS] - before;
        if (e->scratch == NULL) return -1;
    }
    const StageShape *at = &plan->at;
    EmulatedPeers near = {0}, pair = {hardware->cost.pair, hardware->cost.latency, e->scratch};
    int t = at->shape.tensor_ranks, c = at->shape.context_ranks, partner = bpipe_partner(at->stages, at->stage);
    if (at->stages > 1) e->pipeline = comm_emulated_create("pipeline", at->stage, at->stages, be, &near);
    for (int i = 0; i < 2 && c > 1; i++)
        e->context[i] = comm_emulated_create("context", i == 0 ? 0 : c - 1, c, be, &near);
    if (t > 1) e->tensor = comm_emulated_create("tensor", 0, t, be, &near);
    if (at->shape.expert_ranks > 1) e->experts = comm_emulated_create("experts", 0, at->shape.expert_ranks, be, &near);
    if (partner != SCHEDULE_NO_PEER) e->pair = comm_emulated_create("pair", at->stage > partner, 2, be, &pair);
    if (stage_create(&e->stage, model, config, schedule, be, plan->at.stage, e->tensor, 0, err) != 0) return -1;
    stage_use_context(&e->stage, e->context);
    e->stage.pass.experts = e->experts;
    be->moving = !hardware->cpu && counted_moves(hardware->gpu, config, at);
    // All lanes can share one emulated group: its messages stay in order.
    Comm *lanes[2 * STAGE_MOST_CHUNKS];
    for (int i = 0; i < 2 * STAGE_MOST_CHUNKS; i++) lanes[i] = e->pipeline;
    EngineGroups groups = {lanes, e->pair};
    SlotCounts slots = plan_slots(plan);
    e->engine = engine_create(&e->stage, schedule, &slots, &groups, NULL, err);
    if (e->engine == NULL) return -1;
    // Random tokens: equal ones would all use the same row of the embedding.
    int64_t count = e->stage.microbatches * e->stage.at.rows;
    int32_t *tokens = xmalloc((size_t)count * sizeof *tokens);
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(random_bits(1, 2, (uint64_t)i) % (uint64_t)config->model.vocab);
    if (e->stage.tokens != NULL) be->upload(be, e->stage.tokens, tokens, count * 4);
    if (e->stage.targets != NULL) be->upload(be, e->stage.targets, tokens, count * 4);
    free(tokens);
    return 0;
}

void emulation_destroy(Emulation *e) {
    engine_destroy(e->engine);
    stage_destroy(&e->stage);
    Comm *comms[] = {e->pipeline, e->tensor, e->context[0], e->context[1], e->pair, e->experts};
    for (int i = 0; i < 6; i++)
        if (comms[i] != NULL) comms[i]->destroy(comms[i]);
    backend_release(e->be, MEMORY_LENT_SLOTS, e->scratch, e->scratch_bytes);
    memset(e, 0, sizeof *e);
}

// ---------------------------------------------------------------- runs

double emulation_median(double *values, int64_t count) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

// Returns the median time of one kind of action on one slice of a chunk. Adds the number of such actions to *count.
static double median_time_(const StageSchedule *list, const EngineRun *run, ActionKind kind, int chunk, int slice,
                           int64_t *count) {
    double *seconds = xcalloc((size_t)run->count + 1, sizeof *seconds);
    int64_t found = 0;
    for (int64_t i = 0; i < run->count; i++)
        if (list->actions[i].kind == kind && list->actions[i].chunk == chunk && list->actions[i].slice == slice)
            seconds[found++] = run->times[i].end - run->times[i].begin;
    double median = emulation_median(seconds, found);
    free(seconds);
    *count += found;
    return median;
}

static int emulation_once_(Emulation *e, const Schedule *schedule, EngineRun *run, Error *err) {
    double tokens = (double)(e->stage.microbatches * e->stage.at.rows);
    return engine_run(e->engine, "emulation", schedule, (float)(1.0 / tokens), run, err);
}

int emulation_run(Emulation *e, const Schedule *schedule, EmulationTimes *times, Error *err) {
    const StageSchedule *list = &schedule->stage[e->stage.at.stage];
    static const ActionKind kinds[TIMED_ACTIONS] = {ACTION_FORWARD, ACTION_BACKWARD, ACTION_INPUT, ACTION_WEIGHT};
    int64_t counts[TIMED_ACTIONS] = {0};
    int slices = schedule->slices, parts = schedule->chunks * slices;
    EngineRun run;
    if (emulation_once_(e, schedule, &run, err) != 0) return -1;
    *times = (EmulationTimes){.exposed = run.exposed};
    for (int i = 0; i < parts; i++)
        for (int k = 0; k < TIMED_ACTIONS; k++)
            times->seconds[k] += median_time_(list, &run, kinds[k], i / slices, i % slices, &counts[k]);
    times->microbatches = counts[TIMED_FORWARD] / parts;
    return 0;
}

MemoryBytes emulation_peak(const Emulation *e) {
    MemoryBytes peak = e->be->peak;
    peak.bytes[MEMORY_LENT_SLOTS] -= e->scratch_counted;
    return peak;
}

// ---------------------------------------------------------------- one stage

// The emulated stage and its resources.
typedef struct Subject {
    Config config; // schedule.bpipe is resolved
    const Model *model;
    Hardware hardware;
    Backend *be;
    Schedule *schedule;
    Plan plan;
    int stage; // number of the stage, or ALL_STAGES
    Emulation emulation;
} Subject;

enum { ALL_STAGES = -1 };

// Allocates and rehearses the stage to be emulated. On CPUs, checks the free memory first: an overcommitted host kills
// a process instead of failing the allocation.
static int start_(Subject *subject, Error *err) {
    const PlanStage *stage = &subject->plan.stage[subject->stage];
    int64_t bytes = memory_total(&stage->memory) + stage->host_slots * stage->slot_bytes;
    char needs[32], has[32];
    Machine machine = machine_look(!subject->hardware.cpu);
    if (subject->hardware.cpu && machine.free_bytes > 0 && bytes > machine.free_bytes)
        return error_set(err, EXIT_FAILED,
                         "--emulate-stage: stage %d needs %s of memory, but only %s are free; use a smaller "
                         "schedule.micro_batch or more stages",
                         subject->stage, grid_bytes(bytes, needs), grid_bytes(machine.free_bytes, has));
    int status = emulation_create(&subject->emulation, &subject->config, subject->model, subject->schedule, stage,
                                  &subject->hardware, subject->be, err);
    return status == 0 ? engine_rehearse(subject->emulation.engine, subject->schedule, err) : -1;
}

static int emulate_one_(Subject *subject, FILE *file, Error *err) {
    const PlanStage *stage = &subject->plan.stage[subject->stage];
    const StageShape *at = &stage->at;
    const Config *config = &subject->config;
    const Hardware *hardware = &subject->hardware;
    EmulationTimes times;
    if (start_(subject, err) != 0) return -1;
    // The first run touches memory for the first time.
    for (int run = 0; run < 2; run++)
        if (emulation_run(&subject->emulation, subject->schedule, &times, err) != 0) return -1;
    // 1. The stage and its bytes.
    MemoryBytes held = emulation_peak(&subject->emulation);
    int64_t bytes = memory_total(&held), plan = memory_total(&stage->memory);
    char layers[STAGE_LAYERS_TEXT], peak[32], planned[32], exact[32];
    fprintf(file, "stage     %d of %d, layers %s, alone on %s; schedule %s\n", subject->stage, at->stages,
            stage_layers_text(at, layers), subject->be->device, subject->schedule->name);
    if (subject->emulation.scratch != NULL)
        fprintf(file, "emulated  bundles move at %.4g GB/s, through one slot that is not counted\n",
                1e-9 * hardware->cost.pair);
    fprintf(file, "peak      %s allocated, %s bytes; planned %s%s\n", grid_bytes(bytes, peak), grid_count(bytes, exact),
            grid_bytes(plan, planned), bytes == plan ? ", the same to the byte" : "");
    // 2. Its times, and the modelled times of collectives, which take no time in an emulation.
    double forward = times.seconds[TIMED_FORWARD], backward = times.seconds[TIMED_BACKWARD];
    double tensor = 0, exchange = 0;
    double input = times.seconds[TIMED_INPUT], weight = times.seconds[TIMED_WEIGHT];
    double all = forward + (backward > 0 ? backward : input + weight);
    StagePlace *places = hardware_places(hardware, config);
    CountSource source = {
        .hardware = hardware, .config = config, .model = subject->model, .place = &places[subject->stage]};
    ChunkTimes *counted = xmalloc((size_t)at->shape.slices * sizeof *counted);
    for (int c = 0; c < at->chunks; c++) {
        counted_chunk(&source, at, &at->chunk[c], counted);
        for (int64_t i = 0; i < at->shape.slices; i++) {
            const Account *one = &counted[i].of[TIMED_FORWARD], *other = &counted[i].of[TIMED_BACKWARD];
            tensor += one->exposed + other->exposed;
            exchange += one->exchange + other->exchange;
        }
    }
    free_all(counted, places);
    int64_t ranks = config->parallel.tensor * config->parallel.context;
    if (ranks == 1) exchange += tensor, tensor = 0;
    double waits = tensor + exchange;
    double share = (double)(config_world(config) / config->parallel.data) * hardware->cost.flops;
    double flops = model_flops_per_token(config, true) * (double)(config->schedule.micro_batch * config->model.seq_len);
    fprintf(file, "time      forward %.3f ms", 1e3 * forward);
    if (backward > 0) fprintf(file, ", backward %.3f ms", 1e3 * backward);
    if (input > 0)
        fprintf(file, ", gradient of the input %.3f ms, gradients of weights %.3f ms", 1e3 * input, 1e3 * weight);
    fprintf(file, " a microbatch, median of %lld; compute waited %.3f ms for transfers\n",
            (long long)times.microbatches, 1e3 * times.exposed);
    if (tensor > 0)
        fprintf(file, "tensor    collectives over %lld ranks, modelled: %.3f ms a microbatch\n", (long long)ranks,
                1e3 * tensor);
    if (exchange > 0)
        fprintf(file, "experts   exchanges over %lld ranks, modelled: %.3f ms a microbatch\n",
                (long long)config->parallel.expert, 1e3 * exchange);
    if (share <= 0 || at->layers == 0) return 0;
    fprintf(file, "MFU       if every stage were like this one and never idle: %.1f%%", 100 * flops / (share * all));
    if (waits > 0) fprintf(file, " without collectives, %.1f%% with them", 100 * flops / (share * (all + waits)));
    fputc('\n', file);
    return 0;
}

// ---------------------------------------------------------------- all stages

// Runs the list once untimed and then five times. seconds[i]: the shortest time of action i of the stage's list, since
// a disturbance only makes an action longer. -1 with err.
static int measure_actions_(Emulation *e, const Schedule *schedule, double *seconds, Error *err) {
    enum { RUNS = 5 };
    int64_t count = schedule->stage[e->stage.at.stage].count;
    EngineRun run;
    int status = emulation_once_(e, schedule, &run, err);
    for (int r = 0; r < RUNS && status == 0; r++) {
        status = emulation_once_(e, schedule, &run, err);
        for (int64_t i = 0; i < count && status == 0; i++) {
            double took = run.times[i].end - run.times[i].begin;
            if (r == 0 || took < seconds[i]) seconds[i] = took;
        }
    }
    return status;
}

// Simulates the pipeline with one device per stage. seconds: measured times; NULL: the plan's times.
static Timeline *pipeline_(const Subject *subject, const PlanCosts *costs, double *const *seconds, Error *err) {
    SimulateCosts mine = costs->costs;
    SimulateShares shares = costs->shares;
    if (subject->be->own_sums) shares.compute = NULL; // every stage has its own device: CPU stages share no cores
    mine.shares = &shares;
    mine.action = (const double *const *)seconds;
    mine.totals_only = true;
    return simulate_run(subject->schedule, &mine, err);
}

static int emulate_all_(Subject *subject, const Log *log, FILE *file, Error *err) {
    const ParallelConfig *parallel = &subject->config.parallel;
    const char *kind = parallel->tensor > 1 ? "tensor" : parallel->context > 1 ? "context" : "expert";
    int64_t ranks = parallel->tensor > 1    ? parallel->tensor
                    : parallel->context > 1 ? parallel->context
                                            : parallel->expert;
    if (ranks > 1)
        return error_set(err, EXIT_USAGE,
                         "--emulate-stage all: collectives over %lld %s ranks take no time in an emulation; emulate "
                         "one stage, or set parallel.%s: 1",
                         (long long)ranks, kind, kind);
    Planner planner = {0};
    double **seconds = xcalloc((size_t)subject->plan.stages, sizeof *seconds);
    int status = planner_create(&planner, &subject->config, subject->model, log, err);
    for (int s = 0; s < subject->plan.stages && status == 0; s++) { // one stage after another
        subject->stage = s;
        seconds[s] = xcalloc((size_t)subject->schedule->stage[s].count, sizeof **seconds);
        status = start_(subject, err);
        if (status == 0) status = measure_actions_(&subject->emulation, subject->schedule, seconds[s], err);
        emulation_destroy(&subject->emulation);
    }
    TimeSource source = planner_source(&planner);
    PlanCosts costs = {0};
    Timeline *measured = NULL, *planned = NULL;
    if (status == 0)
        status = plan_costs_make(&costs, &subject->config, subject->schedule, &subject->plan, &source, err);
    if (status == 0) measured = pipeline_(subject, &costs, seconds, err);
    if (measured != NULL) planned = pipeline_(subject, &costs, NULL, err);
    if (planned == NULL) status = -1;
    if (planned != NULL) {
        int stages = measured->stages;
        fprintf(file, "stages    %d, one after another, alone on %s; schedule %s\n", stages, subject->be->device,
                subject->schedule->name);
        for (int s = 0; s < stages; s++)
            fprintf(file, "stage     %d computes for %.3f ms; planned %.3f ms\n", s, 1e3 * measured->stage[s].busy,
                    1e3 * planned->stage[s].busy);
        fprintf(file, "pipeline  of %d such devices: %.3f ms, bubble %.2f%%; planned %.3f ms, %.2f%%\n", stages,
                1e3 * measured->makespan, 100 * measured->bubble, 1e3 * planned->makespan, 100 * planned->bubble);
    }
    timeline_free(measured);
    timeline_free(planned);
    plan_costs_free(&costs);
    for (int s = 0; s < subject->plan.stages; s++) free(seconds[s]);
    free(seconds);
    planner_free(&planner);
    return status;
}

int emulate_command(const Config *config, const Model *model, const char *stage, const Log *log, Error *err) {
    char *end;
    bool all = strcmp(stage, "all") == 0;
    long number = all ? ALL_STAGES : strtol(stage, &end, 10);
    if (!all && (end == stage || *end != '\0' || number < 0 || number >= config->parallel.pipeline))
        return error_set(err, EXIT_USAGE, "--emulate-stage: %s is not a stage; use 0 to %lld, or all", stage,
                         (long long)config->parallel.pipeline - 1);
    Subject *subject = xcalloc(1, sizeof *subject);
    subject->config = *config;
    subject->model = model;
    subject->stage = (int)number;
    int status = verdict_resolve(&subject->config, model, log, err);
    if (status == 0) subject->be = emulation_backend(&subject->config, err);
    if (subject->be != NULL) hardware_describe(&subject->hardware, &subject->config, subject->be->device);
    if (subject->be != NULL) subject->schedule = plan_schedule(&subject->config, err);
    status = -1;
    if (subject->schedule != NULL) {
        subject->plan = plan_make(model, &subject->config, subject->schedule, subject->be);
        status =
            subject->stage == ALL_STAGES ? emulate_all_(subject, log, stdout, err) : emulate_one_(subject, stdout, err);
    }
    if (status == 0 && fflush(stdout) != 0) status = error_set(err, EXIT_FAILED, "cannot write the times to stdout");
    emulation_destroy(&subject->emulation);
    plan_free(&subject->plan);
    schedule_free(subject->schedule);
    if (subject->be != NULL) subject->be->destroy(subject->be);
    free(subject);
    return status;
}
