// How actions, messages and transfers of a simulation begin and end, with and without a clock.
#include "simulate_run.h"

#include "base/alloc.h"

#include <math.h>

static void expect_(SimRun *run, int share) {
    double next = run->shares->share[share].next;
    if (isfinite(next)) ends_push(&run->ends, next, (float)(next - run->now), END_SHARE, share);
}

void simrun_expect_share(SimRun *run, int share) {
    expect_(run, share);
    const Share *rival = run->shares->share[share].rival;
    if (rival != NULL) expect_(run, (int)(rival - run->shares->share));
}

void simrun_ends_in(SimRun *run, double duration, int share, EndKind kind, int where) {
    if (share < 0) {
        ends_push(&run->ends, run->now + duration, (float)duration, kind, where);
        return;
    }
    contention_add(run->shares, share, run->now, duration, (ContentionUser){.kind = (int)kind, .stage = where});
    simrun_expect_share(run, share);
}

void simrun_message_is_beside(SimRun *run, const Edge *edge, int more) {
    const SimulateShares *shares = run->costs->shares;
    if (edge->share < 0 || shares->beside == NULL) return;
    for (int i = 0, s = edge->from; i < 2; i++, s = edge->to) {
        int *count = &run->stages[s].messages, before = *count;
        *count += more;
        if ((before > 0) == (*count > 0)) continue;
        contention_slow(run->shares, shares->compute[s], run->now, *count > 0 ? shares->beside[s] : 1);
        simrun_expect_share(run, shares->compute[s]);
    }
}

void simrun_start_messages(SimRun *run) {
    for (int i = 0; i < run->leaving_count; i++) {
        const Edge *edge = &run->down[run->leaving[i]];
        simrun_message_is_beside(run, edge, 1);
        simrun_ends_in(run, edge->time, edge->share, END_MESSAGE, run->leaving[i]);
    }
    run->leaving_count = 0;
}

void simrun_post(SimStage *stage) {
    stage->posted = stage->compute + 1;
    while (stage->posted < stage->count && stage->actions[stage->posted].peer != SCHEDULE_NO_PEER) stage->posted++;
}

int64_t simrun_next_transfer(const SimStage *stage, int64_t at) {
    while (at < stage->count && stage->actions[at].peer == SCHEDULE_NO_PEER) at++;
    return at;
}

void simrun_take_next(SimRun *run, int s, int64_t at) {
    const Schedule *schedule = run->schedule;
    SimStage *stage = &run->stages[s];
    for (; at < stage->count && stage->actions[at].peer != SCHEDULE_NO_PEER; at++) {
        if (stage->actions[at].kind != ACTION_LOAD) continue;
        if (stage->load == NULL) stage->load = xcalloc(run->bundles, sizeof *stage->load);
        stage->load[schedule_bundle(schedule, stage->actions[at])] = (int32_t)at + 1;
    }
    stage->compute = stage->posted = at;
    if (at == stage->count) return;
    __builtin_prefetch(&stage->actions[at + 4]);
    Action action = stage->actions[at];
    const SimChunk *chunk = &run->chunks[s * schedule->chunks + action.chunk];
    bool forward = action.kind == ACTION_FORWARD, weight = action.kind == ACTION_WEIGHT;
    stage->kind = action.kind;
    stage->in = forward ? chunk->forward_in : weight ? NULL : chunk->backward_in;
    stage->out = forward ? chunk->forward_out : weight ? NULL : chunk->backward_out;
    stage->place = schedule_place(schedule, action);
    if (stage->load != NULL && !forward) stage->loaded = stage->load[schedule_bundle(schedule, action)];
    stage->duration = simrun_duration(run, s, action, at);
}

void simrun_leave_queue(SimRun *run, int s, double now) {
    SimStage *stage = &run->stages[s];
    StageTimeline *line = &run->timeline->stage[s];
    stage->transferring = false;
    simrun_note_times(run, line, stage->queue, stage->transfer_start, now);
    stage->queue = simrun_next_transfer(stage, stage->queue + 1);
    simrun_stir(run, s);
}
