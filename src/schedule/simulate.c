// The discrete-event loop. All ends of the current instant are processed. Then the stages and messages that waited for
// one of them start, if they can. Then time moves to the next end. A stage has at most one compute action and one
// transfer in progress, a boundary between virtual stages at most one message per direction in transit. A schedule in
// which nothing but messages connects the stages needs no such loop (simulate_ahead.c): its times are the same, to the
// bit.
#include "simulate_run.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Starts

static void start_compute_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    if (stage->computing || stage->compute == stage->count) return;
    Edge *in = stage->in, *out = stage->out;
    if (in != NULL && (in->from == in->to ? in->made : in->arrived) <= stage->place) return;
    if (out != NULL && out->made - (out->from == out->to ? out->consumed : out->arrived) >= run->schedule->edge_buffers)
        return;
    bool forward = stage->kind == ACTION_FORWARD;
    bool ready = forward ? stage->own < run->schedule->stage[s].own_slots : stage->queue >= stage->loaded;
    // A wait for a slot or a load counts from the moment at which every other condition holds.
    if (!ready && !stage->waiting) stage->waiting_since = run->now;
    StageTimeline *line = &run->timeline->stage[s];
    if (ready && stage->waiting) *(forward ? &line->wait_slot : &line->wait_load) += run->now - stage->waiting_since;
    stage->waiting = !ready;
    if (!ready) return;
    if (forward) line->own_peak = max_int(line->own_peak, ++stage->own);
    stage->computing = true;
    stage->compute_start = run->now;
    run->beyond |= simrun_is_beyond(run, stage, run->now, stage->left);
    stage->left -= stage->duration;
    int share = run->shares == NULL ? -1 : simrun_share(run->costs->shares->compute, s);
    simrun_ends_in(run, stage->duration, share, END_COMPUTE, s);
    double queued = simrun_queued_after(run, s);
    if (queued <= 0) simrun_post(stage);
    else if (queued < stage->duration) simrun_ends_in(run, queued, -1, END_QUEUED, s);
}

// Sets *action to the head of stage s's queue. Returns false if the head is in progress or not yet posted.
static bool simulate_head_(const SimRun *run, int s, Action *action) {
    const SimStage *stage = &run->stages[s];
    if (stage->transferring || stage->queue >= stage->posted) return false;
    *action = stage->actions[stage->queue];
    return true;
}

// Starts the transfer at the head of the queue of stage s if both sides are ready. If the head is A or R, starts
// the transfer at the head of the evictor's queue, which is the same transfer if both sides are ready.
static void simulate_start_transfer_(SimRun *run, int s) {
    Action action;
    if (!simulate_head_(run, s, &action)) return;
    if (action.kind == ACTION_ACCEPT || action.kind == ACTION_RETURN) {
        s = action.peer;
        if (!simulate_head_(run, s, &action)) return;
    }
    bool evict = action.kind == ACTION_EVICT, load = action.kind == ACTION_LOAD;
    SimStage *stage = &run->stages[s];
    if (evict ? simrun_makes(run, s, action) : !(load && stage->own < run->schedule->stage[s].own_slots)) return;
    if (action.peer != SCHEDULE_HOST) { // the peer must have reached the transfer; an eviction needs a free slot
        Action other;
        if (!simulate_head_(run, action.peer, &other) || other.peer != s) return;
        if (schedule_bundle(run->schedule, other) != schedule_bundle(run->schedule, action)) return;
        if (other.kind != (evict ? ACTION_ACCEPT : ACTION_RETURN)) return;
        SimStage *partner = &run->stages[action.peer];
        StageTimeline *line = &run->timeline->stage[action.peer];
        if (evict && partner->lent >= run->schedule->stage[action.peer].lent_slots) return;
        if (evict) line->lent_peak = max_int(line->lent_peak, ++partner->lent);
        partner->transferring = true;
        partner->transfer_start = run->now;
    }
    stage->transferring = true;
    stage->transfer_start = run->now;
    if (load) stage->own++;
    run->timeline->stage[s].own_peak = max_int(run->timeline->stage[s].own_peak, stage->own);
    run->beyond |= simrun_is_beyond(run, stage, run->now, stage->moving);
    stage->moving -= simrun_transfer_seconds(run, s);
    const SimulateShares *shares = run->costs->shares;
    int share = run->shares == NULL ? -1 : simrun_share(evict ? shares->evict : shares->load, s);
    simrun_ends_in(run, simrun_transfer_seconds(run, s), share, END_TRANSFER, s);
}

static void start_all_(SimRun *run) {
    simrun_start_messages(run);
    for (int i = 0; i < run->stirred_count; i++) {
        int s = run->stirred[i];
        if (run->costs->queue_first) simulate_start_transfer_(run, s);
        start_compute_(run, s);
        simulate_start_transfer_(run, s);
        run->stages[s].stirred = false;
    }
    run->stirred_count = 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends

// Lets the next message of an edge leave at this instant, if there is one and a receive buffer is free.
static void offer_(SimRun *run, Edge *edge) {
    if (edge->from == edge->to || edge->sending || edge->made == edge->arrived) return;
    if (edge->arrived - edge->consumed >= run->schedule->edge_buffers) return;
    edge->sending = true;
    run->leaving[run->leaving_count++] = (int)(edge - run->down);
}

static void end_compute_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    Edge *in = stage->in, *out = stage->out;
    stage->computing = false;
    stage->own -= action_frees(stage->kind, run->schedule->forward_only);
    simrun_note_compute(run, s, stage->compute_start, run->now);
    simrun_take_next(run, s, stage->compute + 1);
    simrun_stir(run, s);
    if (out != NULL) {
        out->made++;
        offer_(run, out);
    }
    if (in == NULL) return;
    in->consumed++;
    offer_(run, in);
}

// An action that shares its resource with fewer than expected may have ended before.
static void end_queued_(SimRun *run, int s) {
    if (run->stages[s].computing) simrun_post(&run->stages[s]);
    simrun_stir(run, s);
}

static void end_transfer_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    Action action = stage->actions[stage->queue];
    bool evict = action.kind == ACTION_EVICT;
    if (evict) stage->own--;
    simrun_leave_queue(run, s, run->now);
    if (action.peer == SCHEDULE_HOST) return;
    if (!evict) run->stages[action.peer].lent--;
    simrun_leave_queue(run, action.peer, run->now);
}

static void end_message_(SimRun *run, Edge *edge) {
    const SimStage *from = &run->stages[edge->from], *to = &run->stages[edge->to];
    edge->sending = false;
    edge->arrived++;
    simrun_message_is_beside(run, edge, -1);
    offer_(run, edge);
    if (!from->computing && from->out == edge) simrun_stir(run, edge->from);
    if (!to->computing && to->in == edge) simrun_stir(run, edge->to);
}

// ---------------------------------------------------------------------------------------------------------------------
// The run

// Fills in the edge between chunks of stages `from` and `to`: seconds per message and the resource of the link.
static void prepare_edge_(SimRun *run, Edge *edge, int from, int to) {
    const SimulateCosts *costs = run->costs;
    bool onward = to == from + 1 || (to == 0 && from != 1);
    int link = onward ? from : to;
    *edge = (Edge){.from = from, .to = to, .share = -1};
    if (from == to) return;
    if (costs->edge != NULL) edge->time = costs->edge[link];
    if (run->shares != NULL) edge->share = simrun_share(onward ? costs->shares->down : costs->shares->up, link);
}

// Returns the total duration of the compute actions of stage s from index `at` on.
static double work_(const SimRun *run, int s, int64_t at) {
    const SimStage *stage = &run->stages[s];
    double work = 0;
    for (; at < stage->count; at++)
        if (stage->actions[at].peer == SCHEDULE_NO_PEER) work += simrun_duration(run, s, stage->actions[at], at);
    return work;
}

// Returns the edge on which a backward sends (sends: true) or receives its gradient; NULL: there is none.
static const Edge *gradient_(const SimRun *run, int s, Action action, bool sends) {
    const SimChunk *chunk = &run->chunks[s * run->schedule->chunks + action.chunk];
    if (action.kind != ACTION_BACKWARD && action.kind != ACTION_INPUT) return NULL;
    return sends ? chunk->backward_out : chunk->backward_in;
}

// Returns the seconds of the transfers of stage s as evictor, and of its compute actions from the one on that needs the
// last bundle that is loaded.
static double moving_(const SimRun *run, int s) {
    const SimStage *stage = &run->stages[s];
    double moving = (double)run->schedule->stage[s].moves * simrun_transfer_seconds(run, s);
    int64_t last = stage->count - 1;
    while (last >= 0 && stage->actions[last].kind != ACTION_LOAD) last--;
    for (int64_t i = last + 1; last >= 0 && i < stage->count; i++) {
        const Action *action = &stage->actions[i];
        if (action->kind != ACTION_WEIGHT && action->peer == SCHEDULE_NO_PEER &&
            schedule_bundle(run->schedule, *action) == schedule_bundle(run->schedule, stage->actions[last]))
            return moving + work_(run, s, i);
    }
    return moving;
}

// Sets `left`, `moving` and `tail` of stage s; the lower stages are prepared already. The last gradient that stage s
// sends still has to pass through the rest of the list of the stage that waits for it.
static void prepare_limit_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    const Edge *out = NULL;
    int64_t sent = stage->count;
    stage->left = work_(run, s, 0);
    stage->moving = stage->queue < stage->count ? moving_(run, s) : 0;
    stage->last_sent = -1;
    while (sent > 0 && out == NULL) out = gradient_(run, s, stage->actions[--sent], true);
    if (out == NULL || out->to >= s) return;
    const SimStage *next = &run->stages[out->to];
    const Action *last = &stage->actions[sent];
    int64_t at = next->count - 1;
    while (next->actions[at].microbatch != last->microbatch || next->actions[at].slice != last->slice ||
           gradient_(run, out->to, next->actions[at], false) != out)
        at--;
    double rest = work_(run, out->to, at) + (at <= next->last_sent ? next->tail : 0);
    stage->tail = max_double(0, out->time + rest - work_(run, s, sent + 1));
    stage->last_sent = sent;
}

static void stage_prepare_(SimRun *run, int s) {
    const Schedule *schedule = run->schedule;
    SimStage *stage = &run->stages[s];
    StageTimeline *line = &run->timeline->stage[s];
    stage->actions = schedule->stage[s].actions;
    stage->count = schedule->stage[s].count;
    stage->queue = simrun_next_transfer(stage, 0);
    for (stage->completes = 0; stage->completes < stage->count; stage->completes++) {
        const Action *action = &stage->actions[stage->completes];
        bool completes = action->kind == ACTION_BACKWARD || action->kind == ACTION_WEIGHT;
        if (completes && action->microbatch == schedule->microbatches - 1 && action->slice == 0) break;
    }
    if (!run->costs->totals_only) line->times = xcalloc((size_t)stage->count, sizeof *line->times);
    for (int c = 0; c < schedule->chunks; c++) {
        int g = schedule_virtual(schedule, s, c);
        Edge *before = g > 0 ? &run->down[g - 1] : NULL, *back = g > 0 ? &run->up[g - 1] : NULL;
        bool last = g == schedule->stages * schedule->chunks - 1;
        run->chunks[s * schedule->chunks + c] = (SimChunk){.forward_in = before,
                                                           .backward_out = back,
                                                           .forward_out = last ? NULL : &run->down[g],
                                                           .backward_in = last ? NULL : &run->up[g]};
    }
    simrun_take_next(run, s, 0);
    simrun_stir(run, s);
}

static void run_prepare_(SimRun *run) {
    size_t stages = (size_t)run->schedule->stages, virtual_stages = stages * (size_t)run->schedule->chunks;
    const SimulateShares *shared = run->costs->shares;
    run->bundles = (size_t)run->schedule->chunks * (size_t)run->schedule->microbatches * (size_t)run->schedule->slices;
    run->timeline = xcalloc(1, sizeof *run->timeline);
    run->timeline->stages = run->schedule->stages;
    run->timeline->stage = xcalloc(stages, sizeof *run->timeline->stage);
    run->timeline->ended = xcalloc(virtual_stages, sizeof *run->timeline->ended);
    run->stages = xcalloc(stages, sizeof *run->stages);
    run->chunks = xcalloc(virtual_stages, sizeof *run->chunks);
    run->down = xcalloc(2 * virtual_stages, sizeof *run->down);
    run->up = run->down + virtual_stages;
    run->leaving = xcalloc(2 * virtual_stages, sizeof *run->leaving);
    run->stirred = xcalloc(stages, sizeof *run->stirred);
    ends_open(&run->ends);
    if (shared != NULL && shared->count > 0)
        run->shares = contention_create(shared->count, shared->capacity, shared->part, shared->rival);
    for (int s = 0; s < run->schedule->stages; s++) stage_prepare_(run, s);
    for (int g = 0; g + 1 < (int)virtual_stages; g++) {
        int below, above, chunk;
        schedule_home(run->schedule, g, &below, &chunk);
        schedule_home(run->schedule, g + 1, &above, &chunk);
        prepare_edge_(run, &run->down[g], below, above);
        prepare_edge_(run, &run->up[g], above, below);
    }
    for (int s = 0; run->costs->most > 0 && s < run->schedule->stages; s++) prepare_limit_(run, s);
}

static void run_with_clock_(SimRun *run) {
    for (start_all_(run); run->ends.chains > 0 && !run->beyond; start_all_(run)) {
        run->now = run->ends.heap[0].time;
        while (run->ends.chains > 0 && run->ends.heap[0].time == run->now) {
            End end = ends_pop(&run->ends);
            int share = end.kind == END_SHARE ? end.at : -1;
            if (share >= 0) { // the end of the resource's next user, unless another user has delayed it
                if (run->shares->share[share].next != run->now) continue;
                ContentionUser user = contention_pop(run->shares, share);
                end.kind = (EndKind)user.kind, end.at = user.stage;
            }
            if (end.kind == END_COMPUTE) end_compute_(run, end.at);
            else if (end.kind == END_QUEUED) end_queued_(run, end.at);
            else if (end.kind == END_MESSAGE) end_message_(run, &run->down[end.at]);
            else end_transfer_(run, end.at);
            if (share >= 0) simrun_expect_share(run, share);
        }
    }
}

Timeline *simulate_run(const Schedule *schedule, const SimulateCosts *costs, Error *err) {
    SimRun run = {.schedule = schedule, .costs = costs};
    int status = 0;
    run_prepare_(&run);
    if (simrun_needs_no_clock(&run)) simrun_run_ahead(&run);
    else run_with_clock_(&run);
    for (int s = 0; s < schedule->stages && !run.beyond && status == 0; s++) {
        const SimStage *stage = &run.stages[s];
        if (stage->compute == stage->count && stage->queue == stage->count) continue;
        char text[ACTION_TEXT];
        int64_t place = stage->compute < stage->count ? stage->compute : stage->queue;
        status = error_set(err, EXIT_FAILED, "schedule %s deadlocks: stage %d waits at %s", schedule->name, s,
                           action_text(schedule, stage->actions[place], text));
    }
    Timeline *timeline = run.timeline;
    double busy = 0, last = 0;
    for (int s = 0; s < timeline->stages; s++) {
        const StageTimeline *line = &timeline->stage[s];
        busy += line->busy;
        last = max_double(last, line->last);
        timeline->exposed = max_double(timeline->exposed, line->wait_slot + line->wait_load);
    }
    timeline->makespan = run.beyond ? INFINITY : last;
    timeline->bubble = timeline->makespan > 0 ? 1 - busy / (timeline->makespan * timeline->stages) : 0;
    for (int s = 0; s < schedule->stages; s++) free(run.stages[s].load);
    free_all(run.stages, run.chunks, run.down, run.ends.ends, run.ends.heap, run.stirred, run.leaving);
    contention_free(run.shares);
    if (status == 0) return timeline;
    timeline_free(timeline);
    return NULL;
}

void timeline_free(Timeline *timeline) {
    if (timeline == NULL) return;
    for (int s = 0; s < timeline->stages; s++) free(timeline->stage[s].times);
    free_all(timeline->stage, timeline->ended, timeline);
}
