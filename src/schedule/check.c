// schedule_check: the proof that a schedule is sound. It does not rely on the functions that make schedules, and shares
// with them only the placement of chunks, the pairs of stages and the numbers of bundles (schedule_home,
// schedule_virtual, bpipe_partner, schedule_bundle).
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

// One entry of a chain.
typedef struct ChainEntry {
    Action action;
    int64_t needs; // actions of the stage's other chain that must be complete before this action
} ChainEntry;

// A stage's compute or its transfer queue. Chain 2s + COMPUTE and chain 2s + QUEUE belong to stage s.
typedef struct ActionChain {
    ChainEntry *entries;
    int64_t count, done; // listed and completed actions
} ActionChain;

enum { COMPUTE, QUEUE, NO_CHAIN = -1 };

typedef struct StageProof {
    ActionChain chain[2];
    int *forwards, *gradients, *weights; // [chunks] number of F, of B or I, and of B or W: listed (first pass); number
                                         // of completed F, and of completed B or I (second pass)
    int own, lent;                       // slots in use, in list order
    bool evicts;
} StageProof;

enum { BUNDLE_HERE = -3, BUNDLE_NOT_YET = -4, BUNDLE_HALF_DONE = -5, BUNDLE_DONE = -6 };

typedef struct Bundle {
    int64_t load; // queue index of the bundle's last load, plus one; 0: not loaded
    int home;     // where the stage's bundle is: a stage, SCHEDULE_HOST, or a BUNDLE_ value
    bool lent;    // the partner's bundle is in a lent slot
} Bundle;

typedef struct Proof {
    const Schedule *schedule;
    StageProof *stages; // [stages]
    int *counts;        // storage for the arrays of all stages
    Bundle *bundles;    // [chunks*microbatches*slices] of the stage whose list is read
    Error *err;
} Proof;

static int check_refuse_(const Proof *proof, int s, Action action, const char *why) {
    char text[ACTION_TEXT];
    return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %s %s", proof->schedule->name, s,
                     action_text(proof->schedule, action, text), why);
}

// Returns how many actions of the same kind precede the action on its chunk. Backwards take slices in descending order.
static int64_t check_turn_(const Proof *proof, Action action) {
    int slices = proof->schedule->slices;
    int within = action.kind == ACTION_FORWARD ? action.slice : slices - 1 - action.slice;
    return (int64_t)action.microbatch * slices + within;
}

static bool check_frees_(ActionKind kind) { return kind == ACTION_BACKWARD || kind == ACTION_WEIGHT; }

// The virtual stage that makes an action's input (or gradient), or that uses its output; stage -1: there is none.
typedef struct Neighbour {
    int stage, chunk;
} Neighbour;

static Neighbour neighbour_(const Schedule *schedule, int s, Action action, bool uses) {
    Neighbour found = {-1, 0};
    int at = schedule_virtual(schedule, s, action.chunk) + ((action.kind == ACTION_FORWARD) == uses ? 1 : -1);
    if (at >= 0 && at < schedule->stages * schedule->chunks) schedule_home(schedule, at, &found.stage, &found.chunk);
    return found;
}

// Proves that F, B, I and W are each in order, that a bundle is on the stage for its B or I, and that W comes after its
// I. For neighbouring virtual stages on the same stage it also proves that the producer of an action's input (or
// gradient) comes before the action, and that a buffer is free for its output. B and W add the gradients of the
// weights, and free the bundle's slot. Returns why the action is refused, or NULL.
static const char *prove_compute_(Proof *proof, int s, Action action, Bundle *bundle) {
    StageProof *stage = &proof->stages[s];
    bool forward = action.kind == ACTION_FORWARD, weight = action.kind == ACTION_WEIGHT;
    int64_t load = forward || weight ? 0 : bundle->load, turn = check_turn_(proof, action);
    if (action.peer != SCHEDULE_NO_PEER) return "has a peer; F, B, I and W must have no peer";
    if (!weight) {
        int *done = forward ? stage->forwards : stage->gradients;
        if (turn != done[action.chunk])
            return proof->schedule->slices == 1
                       ? "is out of order; microbatches go forward and backward in ascending order"
                       : "is out of order; slices go forward in ascending and backward in descending order";
        if (!forward && bundle->home == BUNDLE_NOT_YET) return "comes before its forward";
        if (!forward && bundle->home != BUNDLE_HERE) return "needs its bundle, which is evicted";
        Neighbour from = neighbour_(proof->schedule, s, action, false);
        Neighbour to = neighbour_(proof->schedule, s, action, true);
        if (from.stage == s && done[from.chunk] <= turn)
            return "comes before the action on the same stage that produces its input";
        if (to.stage == s && done[to.chunk] <= turn - proof->schedule->edge_buffers)
            return "needs a free buffer between two chunks of the stage, but all are in use";
        done[action.chunk]++;
        stage->own += forward;
        bundle->home = forward ? BUNDLE_HERE : BUNDLE_HALF_DONE;
    } else if (bundle->home != BUNDLE_HALF_DONE) {
        return bundle->home == BUNDLE_DONE ? "comes after the complete backward" : "comes before its I";
    }
    if (check_frees_(action.kind)) {
        if (turn != stage->weights[action.chunk])
            return "is out of order; weight gradients are summed in ascending order of microbatches";
        stage->weights[action.chunk]++;
        bundle->home = BUNDLE_DONE;
        stage->own--;
    }
    stage->chain[COMPUTE].entries[stage->chain[COMPUTE].count++] = (ChainEntry){action, load};
    return NULL;
}

static const char *prove_transfer_(Proof *proof, int s, Action action, Bundle *bundle) {
    StageProof *stage = &proof->stages[s];
    bool evict = action.kind == ACTION_EVICT, own = evict || action.kind == ACTION_LOAD;
    bool accept = action.kind == ACTION_ACCEPT;
    bool partner = action.peer >= 0 && action.peer == bpipe_partner(proof->schedule->stages, s);
    if (!partner && !(own && action.peer == SCHEDULE_HOST)) return "names a stage that is not its partner, p-1-s";
    if (proof->schedule->forward_only) return "is not allowed in a forward-only schedule";
    if (proof->schedule->placement == PLACEMENT_V && proof->schedule->chunks > 1 && partner)
        return "moves between stages; with placement v, evict to the host";
    if (evict && bundle->home == BUNDLE_HALF_DONE) return "comes after I; evict the bundle before its I";
    if (evict && bundle->home != BUNDLE_HERE) return "evicts a bundle that is not on the stage";
    if (own && !evict && bundle->home != action.peer) return "loads a bundle that was not evicted there";
    if (accept && bundle->lent) return "accepts a bundle that is already on the stage";
    if (!own && !accept && !bundle->lent) return "returns a bundle that is not on the stage";
    ActionChain *queue = &stage->chain[QUEUE];
    queue->entries[queue->count++] = (ChainEntry){action, stage->chain[COMPUTE].count};
    if (own) {
        bundle->home = evict ? action.peer : BUNDLE_HERE;
        stage->own += evict ? -1 : 1;
        stage->evicts |= evict;
        if (!evict) bundle->load = queue->count;
    } else {
        bundle->lent = accept;
        stage->lent += accept ? 1 : -1;
    }
    return NULL;
}

// Proves an action of a known kind in list order. Returns why it is refused, or NULL.
static const char *prove_action_(Proof *proof, int s, Action action, bool transfer) {
    const Schedule *schedule = proof->schedule;
    StageProof *stage = &proof->stages[s];
    if (action.microbatch < 0 || action.microbatch >= schedule->microbatches)
        return "names a microbatch that does not exist";
    if (action.chunk < 0 || action.chunk >= schedule->chunks) return "names a chunk that does not exist";
    if (action.slice < 0 || action.slice >= schedule->slices) return "names a slice that does not exist";
    if (schedule->forward_only && !transfer && action.kind != ACTION_FORWARD)
        return "is not allowed in a forward-only schedule";
    Bundle *bundle = &proof->bundles[schedule_bundle(schedule, action)];
    const char *why = (transfer ? prove_transfer_ : prove_compute_)(proof, s, action, bundle);
    if (why != NULL) return why;
    if (stage->own > schedule->stage[s].own_slots)
        return "needs an own slot of the stage, but all are in use; raise slots, or end or evict a bundle before it";
    if (stage->lent > schedule->stage[s].lent_slots)
        return "needs a lent slot of the stage, but all are in use; raise slots, or return a bundle before it";
    if (schedule->forward_only) stage->own = 0;
    return NULL;
}

// Proves order, residency, slots and completeness in list order, and splits the list into its two chains.
static int prove_stage_(Proof *proof, int s) {
    const Schedule *schedule = proof->schedule;
    const StageSchedule *list = &schedule->stage[s];
    const StageProof *stage = &proof->stages[s];
    int n = schedule->slices, all = schedule->microbatches * n;
    for (int64_t i = 0; i < (int64_t)schedule->chunks * schedule->microbatches * n; i++)
        proof->bundles[i] = (Bundle){.home = BUNDLE_NOT_YET};
    if (list->own_slots < 0 || list->lent_slots < 0 || (int64_t)list->own_slots + list->lent_slots > schedule->slots)
        return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: %d own and %d lent slots; the limit is %d",
                         schedule->name, s, list->own_slots, list->lent_slots, schedule->slots);
    for (int64_t i = 0; i < list->count; i++) {
        Action action = list->actions[i];
        bool transfer = strchr("EARL", (int)action.kind) != NULL;
        if (action.kind == 0 || (!transfer && !action_computes(action.kind)))
            return error_set(proof->err, EXIT_USAGE, "schedule %s: stage %d: an action of unknown kind %d",
                             schedule->name, s, (int)action.kind);
        const char *why = prove_action_(proof, s, action, transfer);
        if (why != NULL) return check_refuse_(proof, s, action, why);
    }
    ActionKind kinds[] = {ACTION_FORWARD, schedule->split ? ACTION_INPUT : ACTION_BACKWARD, ACTION_WEIGHT};
    for (int c = 0; c < schedule->chunks; c++) {
        int counts[] = {stage->forwards[c], stage->gradients[c], stage->weights[c]};
        for (int k = 0; k < (schedule->forward_only ? 1 : 3); k++) {
            int slice = k == 0 ? counts[k] % n : n - 1 - counts[k] % n;
            Action next = {kinds[k], slice, c, SCHEDULE_NO_PEER, counts[k] / n};
            if (counts[k] != all) return check_refuse_(proof, s, next, "is missing");
        }
    }
    return 0;
}

static bool two_sides_(Action a, Action b) {
    bool evict =
        (a.kind == ACTION_EVICT && b.kind == ACTION_ACCEPT) || (a.kind == ACTION_ACCEPT && b.kind == ACTION_EVICT);
    bool load =
        (a.kind == ACTION_LOAD && b.kind == ACTION_RETURN) || (a.kind == ACTION_RETURN && b.kind == ACTION_LOAD);
    return (evict || load) && a.microbatch == b.microbatch && a.chunk == b.chunk && a.slice == b.slice;
}

// Proves that both stages of a pair list the same transfers in the same order.
static int prove_pair_(const Proof *proof, int s) {
    int partner = bpipe_partner(proof->schedule->stages, s);
    const ActionChain *one = &proof->stages[s].chain[QUEUE], *two = &proof->stages[partner].chain[QUEUE];
    for (int64_t i = 0, j = 0;; i++, j++) {
        while (i < one->count && one->entries[i].action.peer == SCHEDULE_HOST) i++;
        while (j < two->count && two->entries[j].action.peer == SCHEDULE_HOST) j++;
        bool last_one = i == one->count, last_two = j == two->count;
        if (last_one && last_two) return 0;
        if (!last_one && !last_two && two_sides_(one->entries[i].action, two->entries[j].action)) continue;
        return check_refuse_(proof, last_one ? partner : s, last_one ? two->entries[j].action : one->entries[i].action,
                             "has no counterpart at its place in its partner's list");
    }
}

// Visits all states (c, q) of one stage that its own rules allow, row by row: the q of one c. Notes the E that a
// waiting F depends on. A stage without evictions needs no walk: only its compute uses its slots, in list order.
static int prove_states_(Proof *proof, int s) {
    const StageProof *stage = &proof->stages[s];
    const ActionChain *compute = &stage->chain[COMPUTE], *queue = &stage->chain[QUEUE];
    if (!stage->evicts) return 0;
    size_t size = (size_t)queue->count + 1;
    int *away = xcalloc(size, sizeof *away); // own bundles evicted and not yet loaded after the first q transfers
    bool *both = xcalloc(2 * size, sizeof *both), *row = both, *next = both + size;
    for (int64_t q = 0; q < queue->count; q++) {
        ActionKind kind = queue->entries[q].action.kind;
        away[q + 1] = away[q] + (kind == ACTION_EVICT) - (kind == ACTION_LOAD);
    }
    int in_flight = 0, status = 0; // number of F less the number of B and W among the first c compute actions
    row[0] = true;
    for (int64_t c = 0, low = 0, high = 0; c <= compute->count && status == 0; c++) {
        ChainEntry *then = c < compute->count ? &compute->entries[c] : NULL;
        int64_t first = INT64_MAX, last = -1; // range of q in the next row
        for (int64_t q = low; q <= high && status == 0; q++) {
            const ChainEntry *head = q < queue->count ? &queue->entries[q] : NULL;
            bool full = in_flight - away[q] >= proof->schedule->stage[s].own_slots;
            if (!row[q]) continue;
            row[q] = false;
            // Lent slots are taken and freed in queue order, and prove_stage_ has checked that they suffice in this
            // order. So A and R never wait for a slot.
            bool lends = head != NULL && (head->action.kind == ACTION_ACCEPT || head->action.kind == ACTION_RETURN);
            if (lends || (head != NULL && head->needs <= c)) {
                if (!lends && head->action.kind == ACTION_LOAD && full)
                    status =
                        check_refuse_(proof, s, head->action, "can find its slot taken by a forward later in the list");
                row[q + 1] = true;
                high = q + 1 > high ? q + 1 : high;
            }
            if (lends || then == NULL) continue;
            // In list order F finds a slot, so a transfer listed before F is still in the queue. After the checks
            // above, the head of the queue can only be a posted E. F depends on the latest such E of all states.
            bool forward = then->action.kind == ACTION_FORWARD;
            if (forward && full && then->needs < q + 1) then->needs = q + 1;
            if (forward ? full : then->needs > q) continue;
            next[q] = true;
            first = q < first ? q : first;
            last = q;
        }
        if (then == NULL || status != 0) break;
        if (last < 0) status = check_refuse_(proof, s, then->action, "can never start");
        in_flight += (then->action.kind == ACTION_FORWARD) - check_frees_(then->action.kind);
        bool *visited = row;
        row = next, next = visited;
        low = first, high = last;
    }
    free_all(away, both);
    return status;
}

// ---- all stages: the chains run as far as they go -------------------------------------------------------------------

static const ChainEntry *front_(const Proof *proof, int at) {
    const ActionChain *chain = &proof->stages[at / 2].chain[at % 2];
    return &chain->entries[chain->done];
}

// Returns the chain for which the next action of a chain waits, or NO_CHAIN.
static int waits_for_(const Proof *proof, int at) {
    int s = at / 2;
    const ChainEntry *next = front_(proof, at);
    Action action = next->action;
    bool computes = at % 2 == COMPUTE, forward = action.kind == ACTION_FORWARD;
    // F, B and I wait for the producer of their input, and for the consumer of an earlier message that occupies the
    // buffer for their output. A message occupies a send buffer until it is in a receive buffer, and the receive buffer
    // until the action that consumes the message is complete. prove_compute_ has checked chunks of the same stage.
    for (int uses = 0; uses < 2 && computes && action.kind != ACTION_WEIGHT; uses++) {
        Neighbour of = neighbour_(proof->schedule, s, action, uses);
        if (of.stage < 0 || of.stage == s) continue;
        const StageProof *other = &proof->stages[of.stage];
        int64_t turn = check_turn_(proof, action) - (uses ? 2 * (int64_t)proof->schedule->edge_buffers : 0);
        if ((forward ? other->forwards : other->gradients)[of.chunk] <= turn) return 2 * of.stage + COMPUTE;
    }
    if (next->needs > proof->stages[s].chain[1 - at % 2].done) return at ^ 1;
    if (computes || action.peer == SCHEDULE_HOST) return NO_CHAIN;
    // Both sides list their transfers in the same order: the peer has reached the transfer if its queue's head matches.
    const ChainEntry *other = front_(proof, 2 * action.peer + QUEUE);
    if (!two_sides_(action, other->action)) return 2 * action.peer + QUEUE;
    return other->needs > proof->stages[action.peer].chain[COMPUTE].done ? 2 * action.peer + COMPUTE : NO_CHAIN;
}

// Completes the actions of a chain that wait for nothing. Returns whether there were any.
static bool advance_(Proof *proof, int at) {
    StageProof *stage = &proof->stages[at / 2];
    ActionChain *chain = &stage->chain[at % 2];
    int64_t before = chain->done;
    while (chain->done < chain->count && waits_for_(proof, at) == NO_CHAIN) {
        Action action = chain->entries[chain->done++].action;
        stage->forwards[action.chunk] += action.kind == ACTION_FORWARD;
        stage->gradients[action.chunk] += action.kind == ACTION_BACKWARD || action.kind == ACTION_INPUT;
        if (action.peer >= 0) proof->stages[action.peer].chain[QUEUE].done++;
    }
    return chain->done > before;
}

// Reports the cycle of waiting actions, from one action back to itself. Cuts the report off if it is too long.
static int refuse_circle_(const Proof *proof, int first) {
    // There are two chains per stage, so after 2 * stages steps the walk is on the cycle.
    for (int step = 0; step < 2 * proof->schedule->stages; step++) first = waits_for_(proof, first);
    char text[700], name[ACTION_TEXT];
    int at = first;
    snprintf(text, sizeof text, "%s of stage %d", action_text(proof->schedule, front_(proof, first)->action, name),
             first / 2);
    do {
        const char *link = at == first ? "" : ", which";
        at = waits_for_(proof, at);
        text_add(text, sizeof text, "%s may wait for %s of stage %d", link,
                 action_text(proof->schedule, front_(proof, at)->action, name), at / 2);
    } while (at != first && strlen(text) + 80 < sizeof text);
    return error_set(proof->err, EXIT_USAGE, "schedule %s can hang: %s", proof->schedule->name, text);
}

static int prove_progress_(Proof *proof) {
    int chains = 2 * proof->schedule->stages;
    memset(proof->counts, 0, 3 * (size_t)proof->schedule->stages * (size_t)proof->schedule->chunks * sizeof(int));
    for (bool moved = true; moved;) {
        moved = false;
        for (int at = 0; at < chains; at++) moved |= advance_(proof, at);
    }
    for (int at = 0; at < chains; at++) {
        const ActionChain *chain = &proof->stages[at / 2].chain[at % 2];
        if (chain->done < chain->count) return refuse_circle_(proof, at);
    }
    return 0;
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
    size_t chunks = (size_t)schedule->chunks, stages = (size_t)schedule->stages;
    proof.stages = xcalloc(stages, sizeof *proof.stages);
    proof.counts = xcalloc(3 * stages * chunks, sizeof *proof.counts);
    proof.bundles = xcalloc(chunks * (size_t)schedule->microbatches * (size_t)schedule->slices, sizeof *proof.bundles);
    for (size_t s = 0; s < stages; s++) {
        StageProof *stage = &proof.stages[s];
        stage->forwards = proof.counts + 3 * s * chunks;
        stage->gradients = stage->forwards + chunks;
        stage->weights = stage->gradients + chunks;
        for (int k = 0; k < 2; k++)
            stage->chain[k].entries = xmalloc((size_t)schedule->stage[s].count * sizeof(ChainEntry));
    }
    int status = 0;
    for (int s = 0; s < schedule->stages && status == 0; s++) status = prove_stage_(&proof, s);
    for (int s = 0; s < schedule->stages / 2 && status == 0; s++) status = prove_pair_(&proof, s);
    for (int s = 0; s < schedule->stages && status == 0; s++) status = prove_states_(&proof, s);
    if (status == 0) status = prove_progress_(&proof);
    for (size_t s = 0; s < stages; s++)
        free_all(proof.stages[s].chain[COMPUTE].entries, proof.stages[s].chain[QUEUE].entries);
    free_all(proof.stages, proof.counts, proof.bundles);
    return status;
}
