// The state of a simulation, and the code shared by its two ways to run: with a clock (simulate.c) and ahead of it
// (simulate_ahead.c).
#pragma once

#include "simulate.h"

#include "base/units.h"
#include "contention.h"
#include "ends.h"

#include <math.h>

// Messages across one boundary in one direction, in the order of schedule_place. The sender's F (or B, or I) makes
// them. If sender and receiver are the same stage, nothing is sent: the receiver reads the sender's buffer.
typedef struct Edge {
    int from, to;                               // stages
    int made;                                   // actions of the sender that are complete
    int arrived;                                // messages that have arrived
    int consumed;                               // actions of the receiver that are complete
    bool sending;                               // a message is in transit, or leaves at this instant
    int share;                                  // resource that a message uses in transit; -1: not shared
    double time;                                // seconds per message
    double *made_at, *arrived_at, *consumed_at; // [window] of message k at k % window; for simulate_ahead.c
} Edge;

typedef struct SimStage {
    const Action *actions;  // the stage's list
    int64_t count;          // length of `actions`
    int64_t compute, queue; // indices of the first compute action and of the first transfer that are not complete
    int64_t posted;         // transfers before this index are posted: the host has queued the actions before them
    ActionKind kind;        // kind of the next compute action, copied because a long list is not in the cache
    Edge *in, *out;         // edges of the next compute action; NULL: none
    int64_t place;          // the next compute action's place in the order of its edges
    int64_t loaded;         // entry of `load` of its bundle
    double duration;        // its seconds
    double compute_start, transfer_start;
    // Set only with SimulateCosts.most: total duration of the compute actions that have not started; of the transfers
    // that have not started and of the compute actions after the last one's bundle is back; index of the last compute
    // action whose message a lower stage waits for; until that action starts, a lower bound of the seconds from the end
    // of the stage's list to the end of the run.
    double left, moving, tail;
    int64_t last_sent;
    int64_t completes; // index of the first action that completes a chunk's gradients: a last B, or a last W
    bool computing, transferring;
    // Only in simulate_ahead.c: end of the last compute action; since when the next transfer might start; end of the
    // transfer in progress.
    double computed, since, transferred;
    int32_t *load; // [chunks*microbatches*slices] index after the bundle's last posted load; NULL: none is
    int own, lent; // own and lent slots in use
    int messages;  // in transit, to or from the stage, that share a resource
    double waiting_since;
    bool waiting;
    bool stirred; // true: its next compute action or transfer may be able to start
} SimStage;

// The edges of one chunk of a stage. NULL: the pipeline begins or ends there.
typedef struct SimChunk {
    Edge *forward_in, *forward_out, *backward_in, *backward_out;
} SimChunk;

typedef struct SimRun {
    const Schedule *schedule;
    const SimulateCosts *costs;
    Timeline *timeline;
    SimStage *stages;
    SimChunk *chunks; // [stages*chunks]
    Edge *down;       // [stages*chunks] edge of F from virtual stage g to g+1; the last is unused
    Edge *up;         // [stages*chunks] edge of B and I from virtual stage g+1 to g; continues the array `down`
    Ends ends;
    int *stirred; // [stages] stages to check for actions that can start
    int *leaving; // [2*stages*chunks] edges whose next message leaves at this instant
    int stirred_count, leaving_count;
    double now;
    size_t bundles;     // bundles per stage
    int window;         // a power of two
    bool beyond;        // a stage must end after SimulateCosts.most
    Contention *shares; // NULL: nothing is shared
} SimRun;

static inline int simrun_share(const int *resources, int i) { return resources == NULL ? -1 : resources[i]; }

// Returns whether the run must exceed SimulateCosts.most if a stage is busy for `left` seconds from `start` on.
static inline bool simrun_is_beyond(const SimRun *run, const SimStage *stage, double start, double left) {
    double tail = stage->compute <= stage->last_sent ? stage->tail : 0;
    return run->costs->most > 0 && start + left + tail > run->costs->most * (1 + 1e-9);
}

// Returns the seconds of a transfer of stage s as evictor.
static inline double simrun_transfer_seconds(const SimRun *run, int s) {
    return run->costs->transfer == NULL ? 0 : run->costs->transfer[s];
}

// Returns the duration of a compute action, at `place` in its stage's list.
static inline double simrun_duration(const SimRun *run, int s, Action action, int64_t place) {
    const SimulateCosts *costs = run->costs;
    double times = costs->last != NULL && place >= run->stages[s].completes ? costs->last[s] : 1;
    if (costs->action != NULL) return times * costs->action[s][place];
    int at = (s * run->schedule->chunks + action.chunk) * run->schedule->slices + action.slice;
    return times * (action.kind == ACTION_FORWARD    ? costs->forward
                    : action.kind == ACTION_BACKWARD ? costs->backward
                    : action.kind == ACTION_INPUT    ? costs->input
                                                     : costs->weight)[at];
}

// Returns the seconds after which the host has queued the next compute action of stage s, if a transfer is after it in
// the list; else INFINITY.
static inline double simrun_queued_after(const SimRun *run, int s) {
    const SimStage *stage = &run->stages[s];
    int64_t after = stage->compute + 1;
    if (run->costs->queued == NULL || after == stage->count || stage->actions[after].peer == SCHEDULE_NO_PEER)
        return INFINITY;
    return stage->duration * run->costs->queued[s * run->schedule->chunks + stage->actions[stage->compute].chunk];
}

// Returns whether stage s is computing the forward of a bundle.
static inline bool simrun_makes(const SimRun *run, int s, Action bundle) {
    const SimStage *stage = &run->stages[s];
    return stage->computing && stage->kind == ACTION_FORWARD &&
           schedule_bundle(run->schedule, stage->actions[stage->compute]) == schedule_bundle(run->schedule, bundle);
}

// Marks a stage to be checked.
static inline void simrun_stir(SimRun *run, int s) {
    SimStage *stage = &run->stages[s];
    if (!stage->stirred) run->stirred[run->stirred_count++] = s;
    stage->stirred = true;
}

static inline void simrun_note_times(const SimRun *run, StageTimeline *line, int64_t place, double start, double end) {
    line->last = max_double(line->last, end);
    if (!run->costs->totals_only) line->times[place] = (ActionTime){start, end};
}

// Notes the next compute action of stage s, which is complete.
static inline void simrun_note_compute(const SimRun *run, int s, double start, double end) {
    const SimStage *stage = &run->stages[s];
    StageTimeline *line = &run->timeline->stage[s];
    simrun_note_times(run, line, stage->compute, start, end);
    line->busy += end - start;
    run->timeline->ended[s * run->schedule->chunks + stage->actions[stage->compute].chunk] = end;
}

// Expects the ends of the next users of the resource and of its rival. A user that is added meanwhile may change them.
void simrun_expect_share(SimRun *run, int share);
// Starts an action or a message that takes `duration`. share: the resource that it shares, or -1.
void simrun_ends_in(SimRun *run, double duration, int share, EndKind kind, int where);
// A message begins (more: 1) or ends (-1) to slow down compute at both of its ends.
void simrun_message_is_beside(SimRun *run, const Edge *edge, int more);
// Starts the messages of `leaving`.
void simrun_start_messages(SimRun *run);
// Posts the transfers between the next compute action of a stage, which its host has queued, and the one after it.
void simrun_post(SimStage *stage);
// Returns the index of the first transfer from index `at` on; the list's length if there is none.
int64_t simrun_next_transfer(const SimStage *stage, int64_t at);
// Makes the first compute action from index `at` on the next action of stage s.
void simrun_take_next(SimRun *run, int s, int64_t at);
// Ends the transfer at the head of stage s's queue at the time `now`.
void simrun_leave_queue(SimRun *run, int s, double now);

// Returns whether a run needs no clock; then simrun_run_ahead runs it.
bool simrun_needs_no_clock(const SimRun *run);
void simrun_run_ahead(SimRun *run);
