// Runs a simulation without a clock. If every stage moves bundles only to its own host, and stages share resources only
// for their messages, the times of a stage's actions follow from those of its messages. So the stages run in any order,
// each as far as its messages are known. Only messages that share a network card need a clock: before the next of them
// leaves or arrives, all stages run as far as they can, so no message that leaves earlier is missed.
#include "simulate_run.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

bool simrun_needs_no_clock(const SimRun *run) {
    const SimulateCosts *costs = run->costs;
    const SimulateShares *shares = costs->shares;
    bool moves = false, instant = false; // instant: a message takes no time
    for (int s = 0; s < run->schedule->stages; s++) {
        const StageSchedule *of = &run->schedule->stage[s];
        if (shares != NULL && simrun_share(shares->compute, s) >= 0) return false;
        if (of->lent_slots > 0) return false; // bundles move between stages
        if (of->moves == 0) continue;
        if (shares != NULL && (simrun_share(shares->evict, s) >= 0 || simrun_share(shares->load, s) >= 0)) return false;
        if (simrun_transfer_seconds(run, s) <= 0) return false;
        moves = true;
    }
    for (int g = 0; g + 1 < run->schedule->stages * run->schedule->chunks; g++)
        instant |= run->down[g].from != run->down[g].to && (run->down[g].time <= 0 || run->up[g].time <= 0);
    // A message that takes no time may arrive when the clock has already given a slot to a load.
    return !(moves && instant);
}

static void arrive_(SimRun *run, Edge *edge, double time) {
    edge->sending = false;
    edge->arrived_at[edge->arrived++ & (run->window - 1)] = time;
    if (run->stages[edge->from].out == edge) simrun_stir(run, edge->from);
    if (run->stages[edge->to].in == edge) simrun_stir(run, edge->to);
}

// Sends the next messages of an edge whose times are known, and computes their arrivals.
static void deliver_(SimRun *run, Edge *edge) {
    int buffers = run->schedule->edge_buffers, mask = run->window - 1;
    if (edge->from == edge->to) return;
    for (int k; !edge->sending && (k = edge->arrived) < edge->made && k - edge->consumed < buffers;) {
        double leaves = edge->made_at[k & mask];
        if (k > 0) leaves = max_double(leaves, edge->arrived_at[(k - 1) & mask]);
        if (k >= buffers) leaves = max_double(leaves, edge->consumed_at[(k - buffers) & mask]);
        edge->sending = edge->share >= 0 && edge->time > 0;
        if (edge->sending) ends_push(&run->ends, leaves, (float)edge->time, END_MESSAGE, (int)(edge - run->down));
        else arrive_(run, edge, leaves + edge->time);
    }
}

// Ends the transfer in progress, or starts the next one. Returns false if none can start yet.
static bool move_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    StageTimeline *line = &run->timeline->stage[s];
    if (stage->queue >= stage->posted) return false;
    Action action = stage->actions[stage->queue];
    bool evict = action.kind == ACTION_EVICT;
    if (stage->transferring) {
        stage->own -= evict;
        stage->since = stage->transferred;
        simrun_leave_queue(run, s, stage->since);
        return true;
    }
    if (evict ? simrun_makes(run, s, action) : stage->own >= run->schedule->stage[s].own_slots) return false;
    run->beyond |= simrun_is_beyond(run, stage, stage->since, stage->moving);
    stage->own += !evict;
    line->own_peak = max_int(line->own_peak, stage->own);
    stage->moving -= simrun_transfer_seconds(run, s);
    stage->transferring = true;
    stage->transfer_start = stage->since;
    stage->transferred = stage->since + simrun_transfer_seconds(run, s);
    return true;
}

// Runs the transfers that end by `now`, or start before `now`; with `first`, also those that start at `now`, and so
// before an action that starts then.
static void move_until_(SimRun *run, int s, double now, bool first) {
    const SimStage *stage = &run->stages[s];
    while (stage->transferring ? stage->transferred <= now : stage->since < now || (first && stage->since == now))
        if (!move_(run, s)) return;
}

// Runs the actions of stage s whose messages are known.
static void advance_(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    StageTimeline *line = &run->timeline->stage[s];
    int buffers = run->schedule->edge_buffers, mask = run->window - 1;
    while (stage->compute < stage->count && !run->beyond) {
        Edge *in = stage->in, *out = stage->out;
        double ready = stage->computed, start;
        bool forward = stage->kind == ACTION_FORWARD;
        if (in != NULL && (in->from == in->to ? in->made : in->arrived) <= stage->place) return;
        if (in != NULL && in->from != in->to) ready = max_double(ready, in->arrived_at[stage->place & mask]);
        if (out != NULL && out->made - (out->from == out->to ? out->consumed : out->arrived) >= buffers) return;
        if (out != NULL && out->from != out->to && out->made >= buffers)
            ready = max_double(ready, out->arrived_at[(out->made - buffers) & mask]);
        // Waits for a slot or a load.
        move_until_(run, s, start = ready, run->costs->queue_first);
        while (forward ? stage->own == run->schedule->stage[s].own_slots : stage->queue < stage->loaded) {
            if (!move_(run, s)) return;
            move_until_(run, s, start = max_double(start, stage->since), run->costs->queue_first);
        }
        *(forward ? &line->wait_slot : &line->wait_load) += start - ready;
        if (forward) line->own_peak = max_int(line->own_peak, ++stage->own);
        run->beyond |= simrun_is_beyond(run, stage, start, stage->left);
        stage->left -= stage->duration;
        double end = stage->computed = start + stage->duration, queued = start + simrun_queued_after(run, s);
        stage->computing = true;
        if (queued < end) {
            move_until_(run, s, queued, false);
            simrun_post(stage);
            stage->since = max_double(stage->since, queued);
        }
        move_until_(run, s, end, false);
        stage->computing = false;
        stage->own -= action_frees(stage->kind, run->schedule->forward_only);
        stage->since = end;
        simrun_note_compute(run, s, start, end);
        if (out != NULL) {
            out->made_at[out->made++ & mask] = end;
            deliver_(run, out);
        }
        if (in != NULL) {
            in->consumed_at[in->consumed++ & mask] = end;
            deliver_(run, in);
        }
        simrun_take_next(run, s, stage->compute + 1);
    }
    while (stage->compute == stage->count && !run->beyond && move_(run, s)) {}
}

static void advance_all_(SimRun *run) {
    while (run->stirred_count > 0) {
        int s = run->stirred[--run->stirred_count];
        advance_(run, s);
        run->stages[s].stirred = false;
    }
}

void simrun_run_ahead(SimRun *run) {
    // The window exceeds the messages in transit on any edge; a file may name more edge buffers than messages.
    int edges = 2 * run->schedule->stages * run->schedule->chunks, window = run->window = 4;
    int64_t messages = (int64_t)run->schedule->microbatches * run->schedule->slices;
    while (window < 4 * min_i64(run->schedule->edge_buffers, messages)) window = run->window *= 2;
    double *times = xmalloc(3 * (size_t)edges * (size_t)window * sizeof *times), *at = times;
    for (int i = 0; i < edges; i++, at += 3 * window) {
        Edge *edge = i % 2 == 0 ? &run->down[i / 2] : &run->up[i / 2];
        edge->made_at = at, edge->arrived_at = at + window, edge->consumed_at = at + 2 * window;
    }
    // At one instant, messages arrive before others leave, as in run_with_clock_.
    for (advance_all_(run); run->ends.chains + run->leaving_count > 0 && !run->beyond; advance_all_(run)) {
        double next = run->ends.chains > 0 ? run->ends.heap[0].time : INFINITY;
        if (run->leaving_count > 0 && next > run->now) {
            simrun_start_messages(run);
            continue;
        }
        run->now = next;
        End end = ends_pop(&run->ends);
        if (end.kind == END_MESSAGE) {
            run->leaving[run->leaving_count++] = end.at;
        } else if (run->shares->share[end.at].next == run->now) {
            Edge *edge = &run->down[contention_pop(run->shares, end.at).stage];
            simrun_expect_share(run, end.at);
            arrive_(run, edge, run->now);
            deliver_(run, edge);
        }
    }
    free(times);
}
