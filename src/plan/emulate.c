// Runs the action list of one stage with emulated communicators (comm_emulated.h). Bundles are copied to and from a
// scratch slot, which loads the memory as real transfers do.
#include "emulate.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"

#include "comm/comm_emulated.h"
#include "device/device.h"
#include "planner.h"
#include "base/random.h"

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
                     const PlanStage *plan, bool moves, const Hardware *hardware, Backend *be, Error *err) {
    memset(e, 0, sizeof *e);
    e->config = config;
    e->be = be;
    if (be->count_own_time != NULL) be->count_own_time(be);
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
    if (partner != SCHEDULE_NO_PEER) e->pair = comm_emulated_create("pair", at->stage > partner, 2, be, &pair);
    if (stage_create(&e->stage, model, config, schedule, be, plan->at.stage, e->tensor, 0, err) != 0) return -1;
    stage_use_context(&e->stage, e->context);
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
    Comm *comms[] = {e->pipeline, e->tensor, e->context[0], e->context[1], e->pair};
    for (int i = 0; i < 5; i++)
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

// A disturbance only makes an action longer, so the fastest run is the closest to the action's own time.
int emulation_actions(Emulation *e, const Schedule *schedule, double *seconds, Error *err) {
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

MemoryBytes emulation_peak(const Emulation *e) {
    MemoryBytes peak = e->be->peak;
    peak.bytes[MEMORY_LENT_SLOTS] -= e->scratch_counted;
    return peak;
}

void emulation_optimizer(Emulation *e, double *norm, double *adamw) {
    Stage *stage = &e->stage;
    Backend *be = e->be;
    int64_t count = 0, elements = 0;
    AdamwTensor *list = xcalloc((size_t)stage->tensors.count, sizeof *list);
    double *squares = xcalloc((size_t)stage->tensors.count, sizeof *squares), start;
    *norm = *adamw = 0;
    for (int64_t i = 0; i < stage->tensors.count; i++) {
        TensorPiece piece = tensors_piece(&stage->tensors, i);
        const Tensor *tensor = &stage->tensors.tensors[i];
        if (tensor->alias || tensor->spec->buffer || piece.begin >= piece.end) continue;
        list[count++] = (AdamwTensor){.weight = piece.weight,
                                      .master = piece.master,
                                      .m = piece.m,
                                      .v = piece.v,
                                      .gradient = piece.gradient,
                                      .count = piece.end - piece.begin,
                                      .written = tensor->written};
        elements += piece.end - piece.begin;
    }
    // A learning rate of zero leaves the weights unchanged. Only the last pass counts: the first touches new memory.
    AdamwStep step = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1, .gradient_scale = 1, .step = 1};
    for (int pass = 0; pass < 3 && elements > 0; pass++) {
        start = clock_seconds();
        be->squared_norms(be, squares, list, count);
        *norm = (clock_seconds() - start) / (double)elements;
        start = clock_seconds();
        be->adamw(be, list, count, &step);
        be->synchronize(be, NULL);
        *adamw = (clock_seconds() - start) / (double)elements;
    }
    free_all(list, squares);
}

Schedule *emulation_list(int stages, int stage, int microbatches, Error *err) {
    Schedule *one = schedule_1f1b(1, microbatches, err);
    if (one == NULL) return NULL;
    StageSchedule *all = xcalloc((size_t)stages, sizeof *all), *list = &all[stage];
    *list = one->stage[0];
    list->actions = xrealloc(list->actions, 3 * (size_t)microbatches * sizeof *list->actions);
    list->count = 0;
    for (int i = 0; i < microbatches; i++) { // F0 B0 F1 I1 W1 F2 B2 ...
        ActionKind kinds[] = {ACTION_FORWARD, i % 2 == 0 ? ACTION_BACKWARD : ACTION_INPUT, ACTION_WEIGHT};
        for (int k = 0; k < 2 + i % 2; k++)
            list->actions[list->count++] = (Action){.kind = kinds[k], .microbatch = i, .peer = SCHEDULE_NO_PEER};
    }
    one->split = microbatches > 1;
    free(one->stage);
    one->stage = all;
    one->stages = stages;
    return one;
}
