// schedule_check: the proof that a schedule is sound. It trusts nothing that bpipe.c has done, and shares none of its code.
//
// Two passes. The first goes through each stage's list and settles everything that order alone settles. What is left is
// progress, and with it the one thing that durations decide: who is where when. Nothing can hang exactly when there is
// no state in which nothing runs and nothing can start. In such a state stage s has completed c[s] compute actions and
// q[s] transfers, and the slots it uses are a function of these two. So:
//   - Per stage, all (c, q) that its own rules can reach are visited. Running actions one after the other reaches
//     whatever running them at once does, since slots are taken at starts and given up at ends; and posting at the
//     launch of the action before, instead of at its end, reaches nothing more.
//   - Where a state has all slots taken and F next, the head of the queue is a posted E, and F needs that.
//   - Where a state has all slots taken and L at the head, an F that stands after L in the list has overtaken it. That is
//     refused: a later backward might yet make room, but nobody needs a schedule that depends on the outcome of a race.
//   - These needs of F in all states, added to data, order, queues, posting and edge buffers, must leave a graph without a
//     cycle. Then the schedule cannot hang: in a hung state every next action waits for one that is not complete and
//     comes before it in the graph, and so on backwards for ever, in a finite graph.
// The graph has only chains (a stage's compute, a stage's queue) and needs of the form "that chain has come this far",
// so it has no cycle when running the chains as far as they go, in any order, runs all of them to their ends.

#include "bpipe.h"

#include <stdlib.h>

// One entry of a stage's compute chain or of its transfer queue.
typedef struct Link {
    Action action;
    int64_t needs; // how far the stage's other chain has to be
} Link;

typedef struct Chains {
    Link *compute;
    Link *queue;
    int64_t computes, transfers; // lengths
    int64_t c, q;                // how far each has come
    int forwards, backwards;     // done: in the list at first, later among the first c
    bool evicts;
} Chains;

typedef struct Proof {
    const Schedule *schedule;
    Chains *chains; // [stages]
    int *home;      // [microbatches] where a bundle of the stage in hand is: a stage, SCHEDULE_HOST, or one below
    int64_t *load;  // [microbatches] place in the queue, plus one, of its last load
    bool *lent;     // [microbatches] whether the partner's bundle is here
    Error *err;
} Proof;

enum { BUNDLE_HERE = -3, BUNDLE_NOT_YET = -4, BUNDLE_DONE = -5 };

static int check_refuse_(const Proof *proof, int s, Action action, const char *why) {
    char text[32];
    return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %s %s", proof->schedule->name, s,
                     action_text(proof->schedule, action, text), why);
}

// The slots in use after an action, in list order.
typedef struct Used {
    int own;
    int lent;
} Used;

static int prove_compute_(Proof *proof, int s, Action action, Used *used) {
    Chains *chains = &proof->chains[s];
    int i = action.microbatch;
    bool forward = action.kind == ACTION_FORWARD;
    if (action.peer != SCHEDULE_NO_PEER)
        return check_refuse_(proof, s, action, "has a peer; forwards and backwards have none");
    if (i != (forward ? chains->forwards : chains->backwards)) {
        return check_refuse_(proof, s, action,
                             "is out of order; microbatches go forward and backward in ascending order");
    }
    if (forward) {
        chains->forwards++;
        used->own++;
        proof->home[i] = BUNDLE_HERE;
    } else {
        if (proof->home[i] == BUNDLE_NOT_YET) return check_refuse_(proof, s, action, "comes before its forward");
        if (proof->home[i] != BUNDLE_HERE) return check_refuse_(proof, s, action, "has its bundle still away");
        chains->backwards++;
        used->own--;
        proof->home[i] = BUNDLE_DONE;
    }
    chains->compute[chains->computes++] = (Link){action, forward ? 0 : proof->load[i]};
    return 0;
}

static int prove_own_transfer_(Proof *proof, int s, Action action, Used *used) {
    Chains *chains = &proof->chains[s];
    int i = action.microbatch;
    if (action.kind == ACTION_EVICT) {
        if (proof->home[i] != BUNDLE_HERE) return check_refuse_(proof, s, action, "evicts what is not there");
        proof->home[i] = action.peer;
        chains->evicts = true;
        used->own--;
    } else {
        if (proof->home[i] != action.peer)
            return check_refuse_(proof, s, action, "loads what was not evicted to there");
        proof->home[i] = BUNDLE_HERE;
        proof->load[i] = chains->transfers + 1;
        used->own++;
    }
    return 0;
}

static int prove_lent_transfer_(Proof *proof, int s, Action action, Used *used) {
    bool accept = action.kind == ACTION_ACCEPT;
    if (accept && proof->lent[action.microbatch])
        return check_refuse_(proof, s, action, "accepts what is here already");
    if (!accept && !proof->lent[action.microbatch]) return check_refuse_(proof, s, action, "returns what is not here");
    proof->lent[action.microbatch] = accept;
    used->lent += accept ? 1 : -1;
    return 0;
}

static int prove_transfer_(Proof *proof, int s, Action action, Used *used) {
    Chains *chains = &proof->chains[s];
    bool own = action.kind == ACTION_EVICT || action.kind == ACTION_LOAD;
    bool partner = action.peer >= 0 && action.peer == bpipe_partner(proof->schedule->stages, s);
    if (!partner && !(own && action.peer == SCHEDULE_HOST)) {
        return check_refuse_(proof, s, action, "names a stage that is not its partner, p-1-s");
    }
    if (proof->schedule->forward_only)
        return check_refuse_(proof, s, action, "has no place in a forward-only schedule");
    int status = own ? prove_own_transfer_(proof, s, action, used) : prove_lent_transfer_(proof, s, action, used);
    if (status == 0) chains->queue[chains->transfers++] = (Link){action, chains->computes};
    return status;
}

static int prove_action_(Proof *proof, int s, Action action, Used *used) {
    const StageSchedule *stage = &proof->schedule->stage[s];
    bool own = action.kind == ACTION_EVICT || action.kind == ACTION_LOAD;
    bool transfer = own || action.kind == ACTION_ACCEPT || action.kind == ACTION_RETURN;
    bool compute = action.kind == ACTION_FORWARD || action.kind == ACTION_BACKWARD;
    if (!transfer && !compute) {
        return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: an action of unknown kind %d",
                         proof->schedule->name, s, (int)action.kind);
    }
    if (action.microbatch < 0 || action.microbatch >= proof->schedule->microbatches) {
        return check_refuse_(proof, s, action, "is of no microbatch of this schedule");
    }
    if (proof->schedule->forward_only && action.kind == ACTION_BACKWARD) {
        return check_refuse_(proof, s, action, "has no place in a forward-only schedule");
    }
    int status = transfer ? prove_transfer_(proof, s, action, used) : prove_compute_(proof, s, action, used);
    if (status != 0) return status;
    if (used->own > stage->own_slots) return check_refuse_(proof, s, action, "finds all own slots of the stage taken");
    if (used->lent > stage->lent_slots)
        return check_refuse_(proof, s, action, "finds all lent slots of the stage taken");
    if (proof->schedule->forward_only) used->own = 0;
    return 0;
}

// Order, residency and slots in list order; splits the list into its two chains.
static int prove_stage_(Proof *proof, int s) {
    const Schedule *schedule = proof->schedule;
    const StageSchedule *stage = &schedule->stage[s];
    Chains *chains = &proof->chains[s];
    for (int i = 0; i < schedule->microbatches; i++) {
        proof->home[i] = BUNDLE_NOT_YET;
        proof->load[i] = 0;
        proof->lent[i] = false;
    }
    if (stage->own_slots < 0 || stage->lent_slots < 0 ||
        (int64_t)stage->own_slots + stage->lent_slots > schedule->slots) {
        return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %d own and %d lent slots are not within %d",
                         schedule->name, s, stage->own_slots, stage->lent_slots, schedule->slots);
    }
    Used used = {0};
    for (int64_t i = 0; i < stage->count; i++) {
        if (prove_action_(proof, s, stage->actions[i], &used) != 0) return -1;
    }
    int m = schedule->microbatches;
    if (chains->forwards != m)
        return check_refuse_(proof, s, (Action){ACTION_FORWARD, chains->forwards, 0, SCHEDULE_NO_PEER}, "is missing");
    if (!schedule->forward_only && chains->backwards != m) {
        return check_refuse_(proof, s, (Action){ACTION_BACKWARD, chains->backwards, 0, SCHEDULE_NO_PEER}, "is missing");
    }
    return 0;
}

static bool two_sides_(Action a, Action b) {
    bool evict =
        (a.kind == ACTION_EVICT && b.kind == ACTION_ACCEPT) || (a.kind == ACTION_ACCEPT && b.kind == ACTION_EVICT);
    bool load =
        (a.kind == ACTION_LOAD && b.kind == ACTION_RETURN) || (a.kind == ACTION_RETURN && b.kind == ACTION_LOAD);
    return (evict || load) && a.microbatch == b.microbatch;
}

// The next transfer with the partner, from place `at` of the queue on.
static int64_t next_paired_(const Chains *chains, int64_t at) {
    while (at < chains->transfers && chains->queue[at].action.peer == SCHEDULE_HOST) at++;
    return at;
}

// Both stages of a pair list the same transfers in the same order.
static int prove_pair_(const Proof *proof, int s) {
    const Chains *one = &proof->chains[s], *two = &proof->chains[bpipe_partner(proof->schedule->stages, s)];
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = next_paired_(one, i);
        j = next_paired_(two, j);
        bool last_one = i == one->transfers, last_two = j == two->transfers;
        if (last_one && last_two) return 0;
        Action action = last_one ? two->queue[j].action : one->queue[i].action;
        int stage = last_one ? bpipe_partner(proof->schedule->stages, s) : s;
        if (last_one || last_two || !two_sides_(action, two->queue[j].action)) {
            return check_refuse_(proof, stage, action, "has no counterpart at its place in its partner's list");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The states of one stage

// One row of states: all (c, q) with the same c.
typedef struct Row {
    bool *reached; // [transfers+1]
    int64_t low, high;
} Row;

typedef struct ActionGrid {
    Proof *proof;
    int stage;
    int in_flight; // forwards less backwards among the first c
    int *away;     // [transfers+1] own bundles evicted and not back, after so many transfers
    Row row, next;
} ActionGrid;

static void row_add_(Row *row, int64_t q) {
    row->reached[q] = true;
    if (q < row->low) row->low = q;
    if (q > row->high) row->high = q;
}

// What comes next in one reachable state, and what waits for what.
static int grid_visit_(ActionGrid *grid, int64_t c, int64_t q) {
    const Chains *chains = &grid->proof->chains[grid->stage];
    bool full = grid->in_flight - grid->away[q] >= grid->proof->schedule->stage[grid->stage].own_slots;
    if (q < chains->transfers) {
        const Link *head = &chains->queue[q];
        ActionKind kind = head->action.kind;
        // Lent slots are taken and given back in queue order, so A and R hold up nothing here that order does not.
        if (kind == ACTION_ACCEPT || kind == ACTION_RETURN) return row_add_(&grid->row, q + 1), 0;
        bool posted = head->needs <= c;
        if (posted && kind == ACTION_LOAD && full) {
            return check_refuse_(grid->proof, grid->stage, head->action,
                                 "can find its slot taken by a forward that stands after it in the list");
        }
        if (posted) row_add_(&grid->row, q + 1);
    }
    if (c == chains->computes) return 0;
    Link *next = &chains->compute[c];
    bool forward = next->action.kind == ACTION_FORWARD;
    // In list order F finds a slot, so something that stands before F is still in the queue; and after the lines above
    // what is at the head can only be an E that is posted. In the end F needs the latest such E of all states.
    if (forward && full && next->needs < q + 1) next->needs = q + 1;
    if (forward ? !full : next->needs <= q) row_add_(&grid->next, q);
    return 0;
}

static int grid_walk_(ActionGrid *grid) {
    const Chains *chains = &grid->proof->chains[grid->stage];
    for (int64_t c = 0; c <= chains->computes; c++) {
        grid->next.low = INT64_MAX;
        grid->next.high = -1;
        for (int64_t q = grid->row.low; q <= grid->row.high; q++) {
            if (grid->row.reached[q] && grid_visit_(grid, c, q) != 0) return -1;
            grid->row.reached[q] = false;
        }
        if (c == chains->computes) return 0;
        if (grid->next.high < 0)
            return check_refuse_(grid->proof, grid->stage, chains->compute[c].action, "can never start");
        grid->in_flight += chains->compute[c].action.kind == ACTION_FORWARD ? 1 : -1;
        Row row = grid->row;
        grid->row = grid->next;
        grid->next = row;
    }
    return 0;
}

// A stage that evicts nothing needs no such walk: its compute alone takes and frees its slots, in list order.
static int prove_states_(Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    if (!chains->evicts) return 0;
    size_t size = (size_t)chains->transfers + 1;
    ActionGrid grid = {.proof = proof, .stage = s};
    grid.away = calloc(size, sizeof *grid.away);
    grid.row.reached = calloc(size, sizeof(bool));
    grid.next.reached = calloc(size, sizeof(bool));
    int status = -1;
    if (grid.away == NULL || grid.row.reached == NULL || grid.next.reached == NULL) {
        error_set(proof->err, EXIT_FAILED, "no memory to prove a schedule of this size");
    } else {
        for (int64_t q = 0; q < chains->transfers; q++) {
            ActionKind kind = chains->queue[q].action.kind;
            grid.away[q + 1] = grid.away[q] + (kind == ACTION_EVICT) - (kind == ACTION_LOAD);
        }
        grid.row.reached[0] = true;
        status = grid_walk_(&grid);
    }
    free(grid.away);
    free(grid.row.reached);
    free(grid.next.reached);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// All stages: the chains run as far as they go

// A message sits in a send buffer until a receive buffer takes it, and there until its consumer is complete.
enum { EDGE_DEPTH = 2 * SCHEDULE_EDGE_BUFFERS };

// A stage at whose progress a chain's next action is held up, and in which chain.
typedef struct Cause {
    int stage; // -1: nothing holds it up
    bool queue;
} Cause;

static Cause compute_cause_(const Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    const Link *next = &chains->compute[chains->c];
    int i = next->action.microbatch, last = proof->schedule->stages - 1;
    bool forward = next->action.kind == ACTION_FORWARD;
    int from = forward ? s - 1 : s + 1, to = forward ? s + 1 : s - 1;
    if (from >= 0 && from <= last) {
        const Chains *source = &proof->chains[from];
        if ((forward ? source->forwards : source->backwards) <= i) return (Cause){from, false};
    }
    if (to >= 0 && to <= last) {
        const Chains *sink = &proof->chains[to];
        if ((forward ? sink->forwards : sink->backwards) <= i - EDGE_DEPTH) return (Cause){to, false};
    }
    return next->needs > chains->q ? (Cause){s, true} : (Cause){-1, false};
}

static Cause transfer_cause_(const Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    const Link *next = &chains->queue[chains->q];
    if (next->needs > chains->c) return (Cause){s, false};
    if (next->action.peer == SCHEDULE_HOST) return (Cause){-1, false};
    const Chains *peer = &proof->chains[next->action.peer];
    const Link *other = &peer->queue[peer->q];
    // Both sides list their transfers in the same order, so a peer that has this one at its head is at the other side.
    if (!two_sides_(next->action, other->action)) return (Cause){next->action.peer, true};
    return other->needs > peer->c ? (Cause){next->action.peer, false} : (Cause){-1, false};
}

static bool advance_stage_(Proof *proof, int s) {
    Chains *chains = &proof->chains[s];
    bool moved = false;
    while (chains->c < chains->computes && compute_cause_(proof, s).stage < 0) {
        bool forward = chains->compute[chains->c++].action.kind == ACTION_FORWARD;
        chains->forwards += forward;
        chains->backwards += !forward;
        moved = true;
    }
    while (chains->q < chains->transfers && transfer_cause_(proof, s).stage < 0) {
        int peer = chains->queue[chains->q++].action.peer;
        if (peer != SCHEDULE_HOST) proof->chains[peer].q++;
        moved = true;
    }
    return moved;
}

// The action at the front of a chain, and the chain that holds it up.
static Action front_(const Proof *proof, Cause at) {
    const Chains *chains = &proof->chains[at.stage];
    return at.queue ? chains->queue[chains->q].action : chains->compute[chains->c].action;
}

static Cause cause_(const Proof *proof, Cause at) {
    return at.queue ? transfer_cause_(proof, at.stage) : compute_cause_(proof, at.stage);
}

// Names the circle of waiting, from some action on it back to itself (or as much of it as a sentence holds).
static int refuse_circle_(const Proof *proof, int s) {
    Cause first = {s, proof->chains[s].c == proof->chains[s].computes};
    // There are two chains a stage: after so many steps back the walk is on the circle.
    for (int step = 0; step < 2 * proof->schedule->stages; step++) first = cause_(proof, first);
    char text[700], name[32];
    size_t used = (size_t)snprintf(text, sizeof text, "%s of stage %d",
                                   action_text(proof->schedule, front_(proof, first), name), first.stage);
    Cause at = first;
    do {
        const char *link = at.stage == first.stage && at.queue == first.queue ? "" : ", which";
        at = cause_(proof, at);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s may wait for %s of stage %d", link,
                                 action_text(proof->schedule, front_(proof, at), name), at.stage);
    } while ((at.stage != first.stage || at.queue != first.queue) && used + 80 < sizeof text);
    return error_set(proof->err, EXIT_USAGE, "schedule %s can stop for good: %s", proof->schedule->name, text);
}

static int prove_progress_(Proof *proof) {
    int stages = proof->schedule->stages;
    for (int s = 0; s < stages; s++) proof->chains[s].forwards = proof->chains[s].backwards = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < stages; s++) moved |= advance_stage_(proof, s);
    }
    for (int s = 0; s < stages; s++) {
        const Chains *chains = &proof->chains[s];
        if (chains->c < chains->computes || chains->q < chains->transfers) return refuse_circle_(proof, s);
    }
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------

static int prove_all_(Proof *proof) {
    int stages = proof->schedule->stages;
    for (int s = 0; s < stages; s++) {
        if (prove_stage_(proof, s) != 0) return -1;
    }
    for (int s = 0; s < stages / 2; s++) {
        if (prove_pair_(proof, s) != 0) return -1;
    }
    for (int s = 0; s < stages; s++) {
        if (prove_states_(proof, s) != 0) return -1;
    }
    return prove_progress_(proof);
}

static int proof_allocate_(Proof *proof) {
    const Schedule *schedule = proof->schedule;
    size_t microbatches = (size_t)schedule->microbatches;
    proof->chains = calloc((size_t)schedule->stages, sizeof *proof->chains);
    proof->home = calloc(microbatches, sizeof *proof->home);
    proof->load = calloc(microbatches, sizeof *proof->load);
    proof->lent = calloc(microbatches, sizeof *proof->lent);
    bool failed = proof->chains == NULL || proof->home == NULL || proof->load == NULL || proof->lent == NULL;
    for (int s = 0; s < schedule->stages && !failed; s++) {
        size_t count = (size_t)schedule->stage[s].count;
        proof->chains[s].compute = malloc(count * sizeof(Link));
        proof->chains[s].queue = malloc(count * sizeof(Link));
        failed = proof->chains[s].compute == NULL || proof->chains[s].queue == NULL;
    }
    return failed ? error_set(proof->err, EXIT_FAILED, "no memory to prove a schedule of this size") : 0;
}

static void proof_free_(Proof *proof) {
    for (int s = 0; s < proof->schedule->stages && proof->chains != NULL; s++) {
        free(proof->chains[s].compute);
        free(proof->chains[s].queue);
    }
    free(proof->chains);
    free(proof->home);
    free(proof->load);
    free(proof->lent);
}

int schedule_check(const Schedule *schedule, Error *err) {
    if (schedule->stages < 1 || schedule->microbatches < 1) {
        return error_set(err, EXIT_USAGE, "schedule %s has no stages or no microbatches", schedule->name);
    }
    // Said before anything is allocated by the number of microbatches, which a text may put at will.
    for (int s = 0; s < schedule->stages; s++) {
        int64_t least = (schedule->forward_only ? 1 : 2) * (int64_t)schedule->microbatches;
        if (schedule->stage[s].count < least) {
            return error_set(
                err, EXIT_USAGE, "schedule %s: stage %d lists %lld actions; %d microbatches take at least %lld",
                schedule->name, s, (long long)schedule->stage[s].count, schedule->microbatches, (long long)least);
        }
    }
    Proof proof = {.schedule = schedule, .err = err};
    int status = proof_allocate_(&proof) == 0 ? prove_all_(&proof) : -1;
    proof_free_(&proof);
    return status;
}
