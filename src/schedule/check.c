// schedule_check: the proof that a schedule is sound. It does not rely on the functions that make schedules, and shares
// with them only the placement of chunks and the pairs of stages (schedule_home, schedule_virtual, bpipe_partner).
//
// There are two passes. The first checks every property that follows from the order of a stage's list. The second
// proves progress, which depends on durations. A schedule can hang exactly if there is a state in which nothing runs
// and nothing can start. In such a state stage s has completed c[s] compute actions and q[s] transfers, and these two
// numbers determine the slots in use. So:
//   - Per stage, all states (c, q) that the stage's own rules allow are visited. Running one action at a time is
//     enough: slots are taken at starts and freed at ends, so concurrent actions reach no other states. Posting a
//     transfer at the launch of the compute action before it, instead of at its end, reaches no other states either.
//   - If all slots are taken and F is next, the head of the queue is a posted E, and F depends on that E.
//   - If all slots are taken and L is at the head, an F that comes after L in the list has overtaken L. This is
//     refused: a later backward might still free a slot, but then the schedule would depend on the outcome of a race.
//   - These dependences of F in all states, together with data, order, queues, posting and edge buffers, must form a
//     graph without a cycle. Then the schedule cannot hang: in a hung state every next action waits for an incomplete
//     action that comes before it in the graph. In a finite graph without cycles such a chain of waits must end.
// The graph consists of chains (a stage's compute, a stage's queue) and of dependences "that chain has come this far".
// So it has no cycle if advancing the chains as far as they go, in any order, completes all of them.

#include "bpipe.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

// One entry of a stage's compute chain or of its transfer queue.
typedef struct ChainEntry {
    Action action;
    int64_t needs; // actions of the stage's other chain that must be complete before this action
} ChainEntry;

// A virtual stage before or after a chunk, given by stage and chunk. stage -1: the pipeline begins or ends there.
typedef struct Neighbour {
    int stage, chunk;
} Neighbour;

typedef struct Neighbours {
    Neighbour before, after;
} Neighbours;

typedef struct Chains {
    ChainEntry *compute;
    ChainEntry *queue;
    int64_t computes, transfers; // lengths of `compute` and `queue`
    int64_t c, q;                // completed actions of `compute` and of `queue`
    int *forwards, *gradients;   // [chunks] number of F, and of B or I: listed (first pass) or completed (second)
    int own, lent;               // slots in use, in list order
    bool evicts;
} Chains;

typedef struct Proof {
    const Schedule *schedule;
    Chains *chains;   // [stages]
    Neighbours *near; // [stages*chunks]
    int *counts;      // storage for `forwards` and `gradients` of all chains
    int *weights;     // [chunks] B or W of the current stage listed so far
    int *home; // [chunks*microbatches*slices] where the stage's bundle is: a stage, SCHEDULE_HOST, or a BUNDLE_ value
    int64_t *load; // [chunks*microbatches*slices] queue index of the bundle's last load, plus one; 0: not loaded
    bool *lent;    // [chunks*microbatches*slices] true: the partner's bundle is in a lent slot
    Error *err;
} Proof;

enum { BUNDLE_HERE = -3, BUNDLE_NOT_YET = -4, BUNDLE_HALF_DONE = -5, BUNDLE_DONE = -6 };

static int check_refuse_(const Proof *proof, int s, Action action, const char *why) {
    char text[ACTION_TEXT];
    return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %s %s", proof->schedule->name, s,
                     action_text(proof->schedule, action, text), why);
}

static int64_t bundle_(const Proof *proof, Action action) {
    int64_t microbatch = (int64_t)action.chunk * proof->schedule->microbatches + action.microbatch;
    return microbatch * proof->schedule->slices + action.slice;
}

// Returns how many actions of the same kind precede the action on its chunk. Backwards take slices in descending order.
static int64_t check_turn_(const Proof *proof, Action action) {
    int slices = proof->schedule->slices;
    int within = action.kind == ACTION_FORWARD ? action.slice : slices - 1 - action.slice;
    return (int64_t)action.microbatch * slices + within;
}

static bool check_frees_(ActionKind kind) { return kind == ACTION_BACKWARD || kind == ACTION_WEIGHT; }

// Sets the virtual stages from which an action's input (or gradient) comes, and to which its output goes.
static void ends_(const Proof *proof, int s, Action action, Neighbour *from, Neighbour *to) {
    Neighbours near = proof->near[s * proof->schedule->chunks + action.chunk];
    bool forward = action.kind == ACTION_FORWARD;
    *from = forward ? near.before : near.after;
    *to = forward ? near.after : near.before;
}

// Proves, for neighbouring virtual stages on the same stage, that the producer of an action's input (or gradient) comes
// before the action in the list, and that a buffer is free for the action's output.
static int prove_turn_(const Proof *proof, int s, Action action, const int *done) {
    Neighbour from, to;
    ends_(proof, s, action, &from, &to);
    if (from.stage == s && done[from.chunk] <= check_turn_(proof, action))
        return check_refuse_(proof, s, action, "comes before the action on the same stage that produces its input");
    if (to.stage == s && done[to.chunk] <= check_turn_(proof, action) - proof->schedule->edge_buffers)
        return check_refuse_(proof, s, action,
                             "needs a free buffer between two chunks of the stage, but all are in use");
    return 0;
}

// Proves that F, B, I and W are each in order, that a bundle is on the stage for its B or I, that W comes after its I,
// and the properties of prove_turn_. B and W add the gradients of the weights, and free the bundle's slot.
static int prove_compute_(Proof *proof, int s, Action action) {
    Chains *chains = &proof->chains[s];
    bool forward = action.kind == ACTION_FORWARD, weight = action.kind == ACTION_WEIGHT;
    int *home = &proof->home[bundle_(proof, action)];
    int64_t load = forward || weight ? 0 : proof->load[bundle_(proof, action)];
    if (action.peer != SCHEDULE_NO_PEER)
        return check_refuse_(proof, s, action, "has a peer; F, B, I and W must have no peer");
    if (!weight) {
        int *done = forward ? chains->forwards : chains->gradients;
        if (check_turn_(proof, action) != done[action.chunk])
            return check_refuse_(
                proof, s, action,
                proof->schedule->slices == 1
                    ? "is out of order; microbatches go forward and backward in ascending order"
                    : "is out of order; slices go forward in ascending and backward in descending order");
        if (!forward && *home == BUNDLE_NOT_YET) return check_refuse_(proof, s, action, "comes before its forward");
        if (!forward && *home != BUNDLE_HERE)
            return check_refuse_(proof, s, action, "needs its bundle, which is evicted");
        if (prove_turn_(proof, s, action, done) != 0) return -1;
        done[action.chunk]++;
        chains->own += forward;
        *home = forward ? BUNDLE_HERE : BUNDLE_HALF_DONE;
    } else if (*home != BUNDLE_HALF_DONE) {
        return check_refuse_(proof, s, action,
                             *home == BUNDLE_DONE ? "comes after the complete backward" : "comes before its I");
    }
    if (check_frees_(action.kind)) {
        if (check_turn_(proof, action) != proof->weights[action.chunk])
            return check_refuse_(proof, s, action,
                                 "is out of order; weight gradients are summed in ascending order of microbatches");
        proof->weights[action.chunk]++;
        *home = BUNDLE_DONE;
        chains->own--;
    }
    chains->compute[chains->computes++] = (ChainEntry){action, load};
    return 0;
}

static int prove_transfer_(Proof *proof, int s, Action action) {
    Chains *chains = &proof->chains[s];
    int *home = &proof->home[bundle_(proof, action)];
    bool *lent = &proof->lent[bundle_(proof, action)], accept = action.kind == ACTION_ACCEPT;
    bool evict = action.kind == ACTION_EVICT, own = evict || action.kind == ACTION_LOAD;
    bool partner = action.peer >= 0 && action.peer == bpipe_partner(proof->schedule->stages, s);
    if (!partner && !(own && action.peer == SCHEDULE_HOST))
        return check_refuse_(proof, s, action, "names a stage that is not its partner, p-1-s");
    if (proof->schedule->forward_only)
        return check_refuse_(proof, s, action, "is not allowed in a forward-only schedule");
    if (proof->schedule->placement == PLACEMENT_V && proof->schedule->chunks > 1 && partner)
        return check_refuse_(proof, s, action, "moves between stages; with placement v, evict to the host");
    if (evict && *home == BUNDLE_HALF_DONE)
        return check_refuse_(proof, s, action, "comes after I; evict the bundle before its I");
    if (evict && *home != BUNDLE_HERE)
        return check_refuse_(proof, s, action, "evicts a bundle that is not on the stage");
    if (own && !evict && *home != action.peer)
        return check_refuse_(proof, s, action, "loads a bundle that was not evicted there");
    if (accept && *lent) return check_refuse_(proof, s, action, "accepts a bundle that is already on the stage");
    if (!own && !accept && !*lent) return check_refuse_(proof, s, action, "returns a bundle that is not on the stage");
    chains->queue[chains->transfers++] = (ChainEntry){action, chains->computes};
    if (own) {
        *home = evict ? action.peer : BUNDLE_HERE;
        chains->own += evict ? -1 : 1;
        chains->evicts |= evict;
        if (!evict) proof->load[bundle_(proof, action)] = chains->transfers;
    } else {
        *lent = accept;
        chains->lent += accept ? 1 : -1;
    }
    return 0;
}

static int prove_action_(Proof *proof, int s, Action action) {
    Chains *chains = &proof->chains[s];
    const StageSchedule *stage = &proof->schedule->stage[s];
    bool own = action.kind == ACTION_EVICT || action.kind == ACTION_LOAD;
    bool transfer = own || action.kind == ACTION_ACCEPT || action.kind == ACTION_RETURN;
    bool backward = action.kind == ACTION_INPUT || check_frees_(action.kind);
    bool compute = action.kind == ACTION_FORWARD || backward;
    if (!transfer && !compute)
        return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: an action of unknown kind %d",
                         proof->schedule->name, s, (int)action.kind);
    if (action.microbatch < 0 || action.microbatch >= proof->schedule->microbatches)
        return check_refuse_(proof, s, action, "names a microbatch that does not exist");
    if (action.chunk < 0 || action.chunk >= proof->schedule->chunks)
        return check_refuse_(proof, s, action, "names a chunk that does not exist");
    if (action.slice < 0 || action.slice >= proof->schedule->slices)
        return check_refuse_(proof, s, action, "names a slice that does not exist");
    if (proof->schedule->forward_only && backward)
        return check_refuse_(proof, s, action, "is not allowed in a forward-only schedule");
    if ((transfer ? prove_transfer_ : prove_compute_)(proof, s, action) != 0) return -1;
    if (chains->own > stage->own_slots)
        return check_refuse_(proof, s, action, "needs an own slot of the stage, but all are in use");
    if (chains->lent > stage->lent_slots)
        return check_refuse_(proof, s, action, "needs a lent slot of the stage, but all are in use");
    if (proof->schedule->forward_only) chains->own = 0;
    return 0;
}

static int prove_complete_(const Proof *proof, int s) {
    const Schedule *schedule = proof->schedule;
    const Chains *chains = &proof->chains[s];
    int n = schedule->slices, all = schedule->microbatches * n;
    ActionKind kinds[] = {ACTION_FORWARD, schedule->split ? ACTION_INPUT : ACTION_BACKWARD, ACTION_WEIGHT};
    for (int c = 0; c < schedule->chunks; c++) {
        int counts[] = {chains->forwards[c], chains->gradients[c], proof->weights[c]};
        for (int k = 0; k < (schedule->forward_only ? 1 : 3); k++) {
            int slice = k == 0 ? counts[k] % n : n - 1 - counts[k] % n;
            Action next = {kinds[k], slice, c, SCHEDULE_NO_PEER, counts[k] / n};
            if (counts[k] != all) return check_refuse_(proof, s, next, "is missing");
        }
    }
    return 0;
}

// Proves order, residency and slots in list order, and splits the list into its two chains.
static int prove_stage_(Proof *proof, int s) {
    const Schedule *schedule = proof->schedule;
    const StageSchedule *stage = &schedule->stage[s];
    for (int64_t i = 0; i < (int64_t)schedule->chunks * schedule->microbatches * schedule->slices; i++) {
        proof->home[i] = BUNDLE_NOT_YET;
        proof->load[i] = 0;
        proof->lent[i] = false;
    }
    memset(proof->weights, 0, (size_t)schedule->chunks * sizeof *proof->weights);
    if (stage->own_slots < 0 || stage->lent_slots < 0 ||
        (int64_t)stage->own_slots + stage->lent_slots > schedule->slots) {
        return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %d own and %d lent slots; the limit is %d",
                         schedule->name, s, stage->own_slots, stage->lent_slots, schedule->slots);
    }
    for (int64_t i = 0; i < stage->count; i++)
        if (prove_action_(proof, s, stage->actions[i]) != 0) return -1;
    return prove_complete_(proof, s);
}

static bool two_sides_(Action a, Action b) {
    bool evict =
        (a.kind == ACTION_EVICT && b.kind == ACTION_ACCEPT) || (a.kind == ACTION_ACCEPT && b.kind == ACTION_EVICT);
    bool load =
        (a.kind == ACTION_LOAD && b.kind == ACTION_RETURN) || (a.kind == ACTION_RETURN && b.kind == ACTION_LOAD);
    return (evict || load) && a.microbatch == b.microbatch && a.chunk == b.chunk && a.slice == b.slice;
}

// Returns the index, from `at` on, of the next transfer with the partner; the queue's length if no transfer is left.
static int64_t next_paired_(const Chains *chains, int64_t at) {
    while (at < chains->transfers && chains->queue[at].action.peer == SCHEDULE_HOST) at++;
    return at;
}

// Proves that both stages of a pair list the same transfers in the same order.
static int prove_pair_(const Proof *proof, int s) {
    const Chains *one = &proof->chains[s], *two = &proof->chains[bpipe_partner(proof->schedule->stages, s)];
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = next_paired_(one, i);
        j = next_paired_(two, j);
        bool last_one = i == one->transfers, last_two = j == two->transfers;
        if (last_one && last_two) return 0;
        Action action = last_one ? two->queue[j].action : one->queue[i].action;
        int stage = last_one ? bpipe_partner(proof->schedule->stages, s) : s;
        if (last_one || last_two || !two_sides_(action, two->queue[j].action))
            return check_refuse_(proof, stage, action, "has no counterpart at its place in its partner's list");
    }
}

// ---- the states of one stage ----------------------------------------------------------------------------------------

// One row of states: all (c, q) with the same c.
typedef struct StateRow {
    bool *reached; // [transfers+1]
    int64_t low, high;
} StateRow;

typedef struct ActionGrid {
    Proof *proof;
    int stage;
    int in_flight; // number of F less the number of B and W among the first c compute actions
    int *away;     // [transfers+1] own bundles evicted and not yet loaded after the first q transfers
    StateRow row, next;
} ActionGrid;

static void row_add_(StateRow *row, int64_t q) {
    row->reached[q] = true;
    if (q < row->low) row->low = q;
    if (q > row->high) row->high = q;
}

// Visits one reachable state: marks the states that can follow it, and notes the E that a waiting F depends on.
static int grid_visit_(ActionGrid *grid, int64_t c, int64_t q) {
    const Chains *chains = &grid->proof->chains[grid->stage];
    bool full = grid->in_flight - grid->away[q] >= grid->proof->schedule->stage[grid->stage].own_slots;
    if (q < chains->transfers) {
        const ChainEntry *head = &chains->queue[q];
        ActionKind kind = head->action.kind;
        // Lent slots are taken and freed in queue order, and prove_stage_ has checked that they suffice in this order.
        // So A and R never wait for a slot.
        if (kind == ACTION_ACCEPT || kind == ACTION_RETURN) return row_add_(&grid->row, q + 1), 0;
        bool posted = head->needs <= c;
        if (posted && kind == ACTION_LOAD && full)
            return check_refuse_(grid->proof, grid->stage, head->action,
                                 "can find its slot taken by a forward later in the list");
        if (posted) row_add_(&grid->row, q + 1);
    }
    if (c == chains->computes) return 0;
    ChainEntry *next = &chains->compute[c];
    bool forward = next->action.kind == ACTION_FORWARD;
    // In list order F finds a slot, so a transfer listed before F is still in the queue. After the checks above, the
    // head of the queue can only be a posted E. F depends on the latest such E of all states.
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
        ActionKind kind = chains->compute[c].action.kind;
        grid->in_flight += (kind == ACTION_FORWARD) - check_frees_(kind);
        StateRow row = grid->row;
        grid->row = grid->next;
        grid->next = row;
    }
    return 0;
}

// Proves one stage's states. A stage without evictions needs no walk: only its compute uses its slots, in list order.
static int prove_states_(Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    if (!chains->evicts) return 0;
    size_t size = (size_t)chains->transfers + 1;
    ActionGrid grid = {.proof = proof, .stage = s};
    grid.away = xcalloc(size, sizeof *grid.away);
    grid.row.reached = xcalloc(size, sizeof(bool));
    grid.next.reached = xcalloc(size, sizeof(bool));
    for (int64_t q = 0; q < chains->transfers; q++) {
        ActionKind kind = chains->queue[q].action.kind;
        grid.away[q + 1] = grid.away[q] + (kind == ACTION_EVICT) - (kind == ACTION_LOAD);
    }
    grid.row.reached[0] = true;
    int status = grid_walk_(&grid);
    free_all(grid.away, grid.row.reached, grid.next.reached);
    return status;
}

// ---- all stages: the chains run as far as they go -------------------------------------------------------------------

// The chain for which an action waits: the compute chain of a stage, or its transfer queue.
typedef struct Cause {
    int stage; // -1: the action waits for nothing
    bool queue;
} Cause;

// Returns whether a chunk on another stage has not completed its F (or B or I) number i. Returns false for a chunk on
// stage s, because prove_turn_ has checked the order there.
static bool neighbour_lacks_(const Proof *proof, int s, Neighbour of, bool forward, int64_t i) {
    if (of.stage < 0 || of.stage == s) return false;
    const Chains *chains = &proof->chains[of.stage];
    return (forward ? chains->forwards : chains->gradients)[of.chunk] <= i;
}

// Returns the stage that an F, B or I waits for: the producer of its input, or the consumer of an earlier message that
// occupies the buffer for its output. A message occupies a send buffer until it is in a receive buffer, and the receive
// buffer until the action that consumes the message is complete.
static Cause edge_cause_(const Proof *proof, int s, Action action) {
    bool forward = action.kind == ACTION_FORWARD;
    Neighbour from, to;
    ends_(proof, s, action, &from, &to);
    int64_t turn = check_turn_(proof, action), earlier = turn - 2 * (int64_t)proof->schedule->edge_buffers;
    if (neighbour_lacks_(proof, s, from, forward, turn)) return (Cause){from.stage, false};
    if (neighbour_lacks_(proof, s, to, forward, earlier)) return (Cause){to.stage, false};
    return (Cause){-1, false};
}

static Cause compute_cause_(const Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    const ChainEntry *next = &chains->compute[chains->c];
    Cause cause = {-1, false};
    if (next->action.kind != ACTION_WEIGHT) cause = edge_cause_(proof, s, next->action);
    if (cause.stage >= 0) return cause;
    return next->needs > chains->q ? (Cause){s, true} : cause;
}

static Cause transfer_cause_(const Proof *proof, int s) {
    const Chains *chains = &proof->chains[s];
    const ChainEntry *next = &chains->queue[chains->q];
    if (next->needs > chains->c) return (Cause){s, false};
    if (next->action.peer == SCHEDULE_HOST) return (Cause){-1, false};
    const Chains *peer = &proof->chains[next->action.peer];
    const ChainEntry *other = &peer->queue[peer->q];
    // Both sides list their transfers in the same order: the peer has reached the transfer if its queue's head matches.
    if (!two_sides_(next->action, other->action)) return (Cause){next->action.peer, true};
    return other->needs > peer->c ? (Cause){next->action.peer, false} : (Cause){-1, false};
}

static bool advance_stage_(Proof *proof, int s) {
    Chains *chains = &proof->chains[s];
    bool moved = false;
    while (chains->c < chains->computes && compute_cause_(proof, s).stage < 0) {
        Action action = chains->compute[chains->c++].action;
        chains->forwards[action.chunk] += action.kind == ACTION_FORWARD;
        chains->gradients[action.chunk] += action.kind == ACTION_BACKWARD || action.kind == ACTION_INPUT;
        moved = true;
    }
    while (chains->q < chains->transfers && transfer_cause_(proof, s).stage < 0) {
        int peer = chains->queue[chains->q++].action.peer;
        if (peer != SCHEDULE_HOST) proof->chains[peer].q++;
        moved = true;
    }
    return moved;
}

// Returns the first action left in a chain.
static Action front_(const Proof *proof, Cause at) {
    const Chains *chains = &proof->chains[at.stage];
    return at.queue ? chains->queue[chains->q].action : chains->compute[chains->c].action;
}

static Cause cause_(const Proof *proof, Cause at) {
    return at.queue ? transfer_cause_(proof, at.stage) : compute_cause_(proof, at.stage);
}

// Reports the cycle of waiting actions, from one action back to itself. Cuts the report off if it is too long.
static int refuse_circle_(const Proof *proof, int s) {
    Cause first = {s, proof->chains[s].c == proof->chains[s].computes};
    // There are two chains per stage, so after 2 * stages steps the walk is on the cycle.
    for (int step = 0; step < 2 * proof->schedule->stages; step++) first = cause_(proof, first);
    char text[700], name[ACTION_TEXT];
    size_t used = (size_t)snprintf(text, sizeof text, "%s of stage %d",
                                   action_text(proof->schedule, front_(proof, first), name), first.stage);
    Cause at = first;
    do {
        const char *link = at.stage == first.stage && at.queue == first.queue ? "" : ", which";
        at = cause_(proof, at);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s may wait for %s of stage %d", link,
                                 action_text(proof->schedule, front_(proof, at), name), at.stage);
    } while ((at.stage != first.stage || at.queue != first.queue) && used + 80 < sizeof text);
    return error_set(proof->err, EXIT_USAGE, "schedule %s can hang: %s", proof->schedule->name, text);
}

static int prove_progress_(Proof *proof) {
    int stages = proof->schedule->stages;
    memset(proof->counts, 0, 2 * (size_t)stages * (size_t)proof->schedule->chunks * sizeof *proof->counts);
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

static Neighbour neighbour_(const Schedule *schedule, int virtual_stage) {
    Neighbour at = {-1, 0};
    if (virtual_stage >= 0 && virtual_stage < schedule->stages * schedule->chunks)
        schedule_home(schedule, virtual_stage, &at.stage, &at.chunk);
    return at;
}

static void proof_allocate_(Proof *proof) {
    const Schedule *schedule = proof->schedule;
    size_t chunks = (size_t)schedule->chunks,
           bundles = chunks * (size_t)schedule->microbatches * (size_t)schedule->slices;
    proof->chains = xcalloc((size_t)schedule->stages, sizeof *proof->chains);
    proof->near = xcalloc((size_t)schedule->stages * chunks, sizeof *proof->near);
    proof->counts = xcalloc(2 * (size_t)schedule->stages * chunks, sizeof *proof->counts);
    proof->weights = xcalloc(chunks, sizeof *proof->weights);
    proof->home = xcalloc(bundles, sizeof *proof->home);
    proof->load = xcalloc(bundles, sizeof *proof->load);
    proof->lent = xcalloc(bundles, sizeof *proof->lent);
    for (int s = 0; s < schedule->stages; s++) {
        for (int c = 0; c < schedule->chunks; c++) {
            int at = schedule_virtual(schedule, s, c);
            proof->near[(size_t)s * chunks + (size_t)c] =
                (Neighbours){neighbour_(schedule, at - 1), neighbour_(schedule, at + 1)};
        }
        size_t count = (size_t)schedule->stage[s].count;
        proof->chains[s].forwards = proof->counts + 2 * (size_t)s * chunks;
        proof->chains[s].gradients = proof->chains[s].forwards + chunks;
        proof->chains[s].compute = xmalloc(count * sizeof(ChainEntry));
        proof->chains[s].queue = xmalloc(count * sizeof(ChainEntry));
    }
}

int schedule_check(const Schedule *schedule, Error *err) {
    if (schedule->stages < 1 || schedule->microbatches < 1 || schedule->chunks < 1 || schedule->slices < 1 ||
        schedule->edge_buffers < 1) {
        return error_set(err, EXIT_USAGE, "schedule %s: stages, chunks, slices, microbatches and edges must be >= 1",
                         schedule->name);
    }
    // The lengths of the lists are checked before any allocation that grows with the number of microbatches, because a
    // schedule file may name any number of microbatches.
    for (int s = 0; s < schedule->stages; s++) {
        int64_t each = (schedule->forward_only ? 1 : 2) * (int64_t)schedule->microbatches;
        if (schedule->stage[s].count / schedule->chunks / schedule->slices >= each) continue;
        return error_set(err, EXIT_USAGE,
                         "schedule %s: stage %d lists %lld actions; %d microbatches take at least %lld on each chunk%s",
                         schedule->name, s, (long long)schedule->stage[s].count, schedule->microbatches,
                         (long long)each, schedule->slices > 1 ? " for each slice" : "");
    }
    Proof proof = {.schedule = schedule, .err = err};
    proof_allocate_(&proof);
    int status = 0;
    for (int s = 0; s < schedule->stages && status == 0; s++) status = prove_stage_(&proof, s);
    for (int s = 0; s < schedule->stages / 2 && status == 0; s++) status = prove_pair_(&proof, s);
    for (int s = 0; s < schedule->stages && status == 0; s++) status = prove_states_(&proof, s);
    if (status == 0) status = prove_progress_(&proof);
    for (int s = 0; s < schedule->stages; s++) free_all(proof.chains[s].compute, proof.chains[s].queue);
    free_all(proof.chains, proof.near, proof.counts, proof.weights, proof.home, proof.load, proof.lent);
    return status;
}
