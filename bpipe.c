// Schedules by hand: GPipe, 1F1B and forward-only lists, and the BPipe pass that levels the memory of any of them. The
// other makers, the text form, the proof and the simulator are in src/schedule. The proof (check.c) shares nothing with
// the pass but bpipe_partner.
#include "bpipe.h"

#include <stdlib.h>
#include <string.h>

#include "src/schedule/build.h"
#include "src/schedule/turns.h"

// ---------------------------------------------------------------------------------------------------------------------
// Making schedules

static int least_(int a, int b) {
    return a < b ? a : b;
}

// GPipe and 1F1B differ in one number: the forwards that a stage runs before its first backward.
static int stage_fill_(StageSchedule *stage, int microbatches, int warm_up, bool forward_only, Error *err) {
    ActionList list = {0};
    for (int i = 0; i < warm_up; i++) list_compute(&list, ACTION_FORWARD, 0, i);
    for (int i = 0; i < microbatches && !forward_only; i++) {
        list_compute(&list, ACTION_BACKWARD, 0, i);
        if (i < microbatches - warm_up) list_compute(&list, ACTION_FORWARD, 0, i + warm_up);
    }
    return list_finish(&list, stage, err);
}

int schedule_possible(int stages, int microbatches, Error *err) {
    if (stages < 1 || microbatches < 1) {
        return error_set(err, EXIT_USAGE, "a schedule needs at least 1 stage and 1 microbatch, not %d and %d", stages,
                         microbatches);
    }
    if (microbatches >= stages) return 0;
    return error_set(
        err, EXIT_USAGE,
        "%d microbatches cannot fill %d pipeline stages; use at least %d microbatches per step or fewer stages",
        microbatches, stages, stages);
}

// Makes a schedule of one chunk. Stage s begins with p-s forwards, at least `least_warm_up` and at most all of them.
static Schedule *schedule_make_(const char *name, int stages, int microbatches, int slots, int least_warm_up,
                                Error *err) {
    Schedule *schedule = schedule_new(name, stages, microbatches, err);
    if (schedule == NULL) return NULL;
    for (int s = 0; s < stages; s++) {
        int warm_up = stages - s > least_warm_up ? stages - s : least_warm_up;
        warm_up = least_(warm_up, microbatches);
        if (stage_fill_(&schedule->stage[s], microbatches, warm_up, schedule->forward_only, err) != 0) {
            schedule_free(schedule);
            return NULL;
        }
    }
    schedule_finish(schedule, slots);
    return schedule;
}

Schedule *schedule_gpipe(int stages, int microbatches, Error *err) {
    if (schedule_possible(stages, microbatches, err) != 0) return NULL;
    return schedule_make_("gpipe", stages, microbatches, microbatches, microbatches, err);
}

Schedule *schedule_1f1b(int stages, int microbatches, Error *err) {
    if (schedule_possible(stages, microbatches, err) != 0) return NULL;
    return schedule_make_("1f1b", stages, microbatches, stages, 0, err);
}

Schedule *schedule_forward(int stages, int microbatches, Error *err) {
    // Fewer microbatches than stages are allowed here; no microbatch or no stage is not.
    if ((stages < 1 || microbatches < 1) && schedule_possible(stages, microbatches, err) != 0) return NULL;
    return schedule_make_("forward", stages, microbatches, 1, microbatches, err);
}

static int split_stage_(StageSchedule *stage, Error *err) {
    ActionList list = {0};
    for (int64_t i = 0; i < stage->count; i++) {
        Action action = stage->actions[i];
        if (action.kind != ACTION_BACKWARD) {
            list_push(&list, action);
            continue;
        }
        list_compute(&list, ACTION_INPUT, action.chunk, action.microbatch);
        list_compute(&list, ACTION_WEIGHT, action.chunk, action.microbatch);
    }
    return list_finish(&list, stage, err);
}

int schedule_split(Schedule *schedule, Error *err) {
    for (int s = 0; s < schedule->stages; s++) {
        if (split_stage_(&schedule->stage[s], err) != 0) return -1;
    }
    schedule_finish(schedule, schedule->slots);
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// The BPipe pass
//
// In its steady state an evictor of 1F1B has no idle moment: F(k) B(i) F(k+1) B(i+1) ... follow without a gap, and all
// its slots are full. If bundle i+1 was evicted, it has to be back when F(k+1) ends. The newest bundle is needed last,
// so it is the one to evict, which keeps transfers few (Belady); and F(k)'s is the newest whose slot can still change
// hands in time. Hence the swap E(k) L(i+1), listed before B(i): B(i) and F(k+1) hide it, and because L only takes the
// slot that E freed, F(k+1) always gets the slot of B(i).
//
// The same holds for any other list, with "newest" and "next" read off the list: a bundle's *turn* is the place of its
// B or I among all B and I of the stage; the newest bundle is the one with the last turn, and the next one has the
// following turn. B or W frees the slot. If more forwards than B and W come before the turn of a bundle that is loaded,
// they need slots too (`walk_rise_`), or L would find its slot taken by one of them.

int bpipe_partner(int stages, int stage) {
    int partner = stages - 1 - stage;
    return partner == stage ? SCHEDULE_NO_PEER : partner;
}

int bpipe_min_slots(int stages) {
    return stages == 1 ? 1 : (stages + 3) / 2;
}

int bpipe_min_slots_host(int stages) {
    return stages == 1 ? 1 : 2;
}

// The walk along the compute actions of one stage: what its slots would hold.
typedef struct Walk {
    ActionList list;
    const StageSchedule *base;
    int64_t *place;   // [turns] of the B or I of this turn in the base list
    int *turn;        // [chunks*microbatches] of a bundle
    Turns home, away; // whose bundles are in own slots before their turn, and whose are evicted
    int64_t at;       // the current place
    int64_t last_forward;
    int turns, microbatches;
    int now;    // turns done
    int newest; // no later turn has been here so far
    int used;   // own slots taken, in list order
    int slots;
    int ahead;
    int peer;
    bool failed; // these slots are too few
    bool silent; // writes no list
} Walk;

static bool frees_(ActionKind kind) {
    return kind == ACTION_BACKWARD || kind == ACTION_WEIGHT;
}

static bool turns_(ActionKind kind) {
    return kind == ACTION_BACKWARD || kind == ACTION_INPUT;
}

static int walk_turn_(const Walk *walk, Action action) {
    return walk->turn[(int64_t)action.chunk * walk->microbatches + action.microbatch];
}

static void walk_move_(Walk *walk, ActionKind kind, int turn) {
    bool evict = kind == ACTION_EVICT;
    turns_remove(evict ? &walk->home : &walk->away, turn);
    turns_add(evict ? &walk->away : &walk->home, turn);
    walk->used += evict ? -1 : 1;
    if (walk->silent) return;
    Action action = walk->base->actions[walk->place[turn]];
    list_push(&walk->list, (Action){kind, action.microbatch, action.chunk, walk->peer});
}

// Evicts the newest bundles that are needed after `needed` until `wanted` more fit. If they cannot, evicts none.
static bool walk_make_room_(Walk *walk, int wanted, int needed) {
    int missing = walk->used + wanted - walk->slots, turn = walk->newest + 1;
    for (int found = 0; found < missing; found++) {
        turn = turns_before(&walk->home, turn);
        if (turn <= needed) return false;
    }
    for (turn = walk->newest + 1; missing > 0; missing--) {
        turn = turns_before(&walk->home, turn);
        walk_move_(walk, ACTION_EVICT, turn);
    }
    return true;
}

static void walk_load_(Walk *walk, int turn) {
    walk_move_(walk, ACTION_LOAD, turn);
    if (turn > walk->newest) walk->newest = turn;
}

// Makes a slot free before a forward. If the list frees no slot between this forward and the next, it also frees the
// next one's slot while this one runs, so that compute does not wait for it.
static void walk_before_forward_(Walk *walk) {
    bool follows = walk->at < walk->last_forward;
    for (int64_t i = walk->at + 1; follows && walk->base->actions[i].kind != ACTION_FORWARD; i++) {
        if (frees_(walk->base->actions[i].kind)) follows = false;
    }
    if (follows && walk_make_room_(walk, 2, walk->now)) return;
    if (!walk_make_room_(walk, 1, walk->now)) walk->failed = true;
}

// Returns the most slots that the actions before a turn take at a time beyond those that they free.
static int walk_rise_(const Walk *walk, int turn) {
    int rise = 0, most = 0;
    for (int64_t i = walk->at; i < walk->place[turn]; i++) {
        ActionKind kind = walk->base->actions[i].kind;
        rise += (kind == ACTION_FORWARD) - frees_(kind);
        if (rise > most) most = rise;
    }
    return most;
}

// Before a turn, loads the first evicted bundle of the next `ahead` turns into the slot of the newest.
static void walk_swap_(Walk *walk) {
    int next = walk->now + 1, last = walk->now + least_(walk->ahead, walk->newest - walk->now);
    while (next <= last && !turns_has(&walk->away, next)) next++;
    if (next > last || !walk_make_room_(walk, 1 + walk_rise_(walk, next), next)) return;
    walk_load_(walk, next);
}

static bool freed_before_(const Walk *walk, int turn) {
    for (int64_t i = walk->at; i < walk->place[turn]; i++) {
        if (frees_(walk->base->actions[i].kind)) return true;
    }
    return false;
}

// After the last forward little has to be evicted: each B or W frees a slot, and the next evicted bundle takes it. Only
// if no slot is freed before the next turn does the newest bundle make room.
static void walk_home_(Walk *walk) {
    int next = walk->now - 1;
    while (walk->used < walk->slots && (next = turns_after(&walk->away, next)) >= 0) walk_load_(walk, next);
    next = walk->now + 1;
    if (next > walk->newest || !turns_has(&walk->away, next) || freed_before_(walk, next)) return;
    if (walk_make_room_(walk, 1, next)) walk_load_(walk, next);
}

// Loads the bundle of this very turn, if a slot for it came too late to load it earlier.
static void walk_late_(Walk *walk) {
    if (!turns_has(&walk->away, walk->now)) return;
    if (walk_make_room_(walk, 1, walk->now))
        walk_load_(walk, walk->now);
    else
        walk->failed = true;
}

static void walk_action_(Walk *walk, Action action) {
    bool forward = action.kind == ACTION_FORWARD;
    if (walk->at > walk->last_forward) walk_home_(walk);
    if (forward) walk_before_forward_(walk);
    if (turns_(action.kind)) walk_late_(walk);
    if (turns_(action.kind) && walk->at < walk->last_forward) walk_swap_(walk);
    if (!walk->silent) list_push(&walk->list, action);
    if (forward) {
        int turn = walk_turn_(walk, action);
        turns_add(&walk->home, turn);
        if (turn > walk->newest) walk->newest = turn;
    }
    if (turns_(action.kind)) turns_remove(&walk->home, walk->now++);
    walk->used += forward - frees_(action.kind);
}

// Reads where the turns of stage s are. Call walk_free_ in any case. -1: memory ran out.
static int walk_prepare_(Walk *walk, const Schedule *base, int s) {
    size_t bundles = (size_t)base->chunks * (size_t)base->microbatches;
    walk->base = &base->stage[s];
    walk->microbatches = base->microbatches;
    walk->place = calloc(bundles, sizeof *walk->place);
    walk->turn = calloc(bundles, sizeof *walk->turn);
    if (walk->place == NULL || walk->turn == NULL) return -1;
    if (turns_create(&walk->home, (int)bundles) != 0 || turns_create(&walk->away, (int)bundles) != 0) return -1;
    for (int64_t i = 0; i < walk->base->count; i++) {
        Action action = walk->base->actions[i];
        if (action.kind == ACTION_FORWARD) walk->last_forward = i;
        if (!turns_(action.kind)) continue;
        walk->turn[(int64_t)action.chunk * walk->microbatches + action.microbatch] = walk->turns;
        walk->place[walk->turns++] = i;
    }
    return 0;
}

static void walk_free_(Walk *walk) {
    free(walk->list.actions);
    free(walk->place);
    free(walk->turn);
    turns_free(&walk->home);
    turns_free(&walk->away);
}

// Walks from the start of the list with as many slots.
static void walk_(Walk *walk, int slots) {
    turns_clear(&walk->home);
    turns_clear(&walk->away);
    walk->slots = slots;
    walk->newest = -1;
    walk->now = walk->used = 0;
    walk->failed = false;
    for (walk->at = 0; walk->at < walk->base->count && !walk->failed; walk->at++) {
        walk_action_(walk, walk->base->actions[walk->at]);
    }
}

static int no_memory_(Error *err) {
    return error_set(err, EXIT_FAILED, "no memory for a schedule of this size");
}

static int balance_stage_(Schedule *schedule, int s, const Schedule *base, EvictTarget target, int ahead, Error *err) {
    int peer = target == EVICT_TO_HOST ? SCHEDULE_HOST : bpipe_partner(schedule->stages, s);
    Walk walk = {.ahead = ahead, .peer = peer};
    int status = walk_prepare_(&walk, base, s);
    if (status == 0) walk_(&walk, schedule->slots);
    if (status != 0 || walk.list.failed) {
        status = -1;
        no_memory_(err);
    } else if (walk.failed) {
        status = error_set(err, EXIT_USAGE,
                           "%d slots are too few to balance %s on stage %d with schedule.load_ahead %d; use more slots "
                           "or a smaller load_ahead",
                           walk.slots, base->name, s, ahead);
    } else {
        status = list_finish(&walk.list, &schedule->stage[s], err);
        walk.list.actions = NULL;
    }
    walk_free_(&walk);
    return status;
}

// Writes A and R into the acceptor's list: what the evictor posts after its B or I(c,i), the acceptor posts right after
// its own B or I(c,i). That one is complete before the evictor's can begin, whatever the durations, so no transfer ever
// waits for the acceptor to reach it.
static int balance_acceptor_(Schedule *schedule, int s, Error *err) {
    const StageSchedule *evictor = &schedule->stage[s];
    StageSchedule *acceptor = &schedule->stage[bpipe_partner(schedule->stages, s)];
    ActionList list = {0};
    int64_t next = 0;
    for (int64_t i = 0; i < evictor->count; i++) {
        Action action = evictor->actions[i];
        if (action.kind == ACTION_EVICT) list_push(&list, (Action){ACTION_ACCEPT, action.microbatch, action.chunk, s});
        if (action.kind == ACTION_LOAD) list_push(&list, (Action){ACTION_RETURN, action.microbatch, action.chunk, s});
        while (turns_(action.kind) && next < acceptor->count) {
            Action own = acceptor->actions[next++];
            list_push(&list, own);
            if (turns_(own.kind) && own.microbatch == action.microbatch && own.chunk == action.chunk) break;
        }
    }
    while (next < acceptor->count) list_push(&list, acceptor->actions[next++]);
    return list_finish(&list, acceptor, err);
}

// Returns the most bundles that at one time wait for their W or are needed by the current action: with fewer slots, no
// eviction helps, since what waits for its W cannot leave.
static int held_(const StageSchedule *stage) {
    int waiting = 0, most = 1;
    for (int64_t i = 0; i < stage->count; i++) {
        ActionKind kind = stage->actions[i].kind;
        if (kind != ACTION_WEIGHT && waiting + 1 > most) most = waiting + 1;
        waiting += (kind == ACTION_INPUT) - (kind == ACTION_WEIGHT);
    }
    return most;
}

// Returns the fewest slots with which the walk to host memory succeeds: at most as many as the stage has bundles in
// flight.
static int host_needs_(const Schedule *base, int s) {
    int in_flight = schedule_in_flight(&base->stage[s]), slots = held_(&base->stage[s]);
    Walk walk = {.ahead = 1, .peer = SCHEDULE_HOST, .silent = true};
    if (slots < 2) slots = 2;
    bool ready = slots < in_flight && walk_prepare_(&walk, base, s) == 0;
    for (walk.failed = true; ready && walk.failed && slots < in_flight; slots += walk.failed) walk_(&walk, slots);
    walk_free_(&walk);
    return ready ? slots : in_flight;
}

// Returns the fewest slots for a stage: to the host what its walk succeeds with; to a partner the bundles that both
// keep in flight and one slot to move to, over two stages.
static int balance_needs_(const Schedule *base, int s, EvictTarget target) {
    if (target == EVICT_TO_HOST) return host_needs_(base, s);
    int in_flight = schedule_in_flight(&base->stage[s]), partner = bpipe_partner(base->stages, s);
    if (partner == SCHEDULE_NO_PEER) return in_flight;
    return least_(in_flight, (in_flight + schedule_in_flight(&base->stage[partner])) / 2 + 1);
}

int bpipe_least_slots(const Schedule *base, EvictTarget target) {
    int least = 1;
    for (int s = 0; s < base->stages; s++) {
        int needed = balance_needs_(base, s, target);
        if (needed > least) least = needed;
    }
    return least;
}

int bpipe_load_ahead(const Schedule *base, EvictTarget target) {
    if (target == EVICT_TO_HOST && base->placement == PLACEMENT_V) return 3;
    return base->split ? 2 : 1;
}

static bool evicts_(const Schedule *schedule) {
    for (int s = 0; s < schedule->stages; s++) {
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            if (!action_computes(schedule->stage[s].actions[i].kind)) return true;
        }
    }
    return false;
}

static int balance_allowed_(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err) {
    if (base->forward_only || evicts_(base)) {
        return error_set(err, EXIT_USAGE, "schedule %s cannot be balanced: it %s", base->name,
                         base->forward_only ? "keeps no bundles" : "moves bundles already");
    }
    if (target == EVICT_TO_PEER && base->placement == PLACEMENT_V) {
        return error_set(err, EXIT_USAGE,
                         "schedule %s fills both stages of a pair alike, so neither has slots to lend; set "
                         "schedule.evict_to to host",
                         base->name);
    }
    if (ahead < 1) {
        return error_set(err, EXIT_USAGE, "schedule.load_ahead has to be at least 1, not %d", ahead);
    }
    int least = slots == 0 ? 0 : bpipe_least_slots(base, target);
    if (slots >= least) return 0;
    return error_set(err, EXIT_USAGE,
                     "%d slots are too few to balance %s on %d stages; the smallest number that works is %d", slots,
                     base->name, base->stages, least);
}

// Returns an empty copy of the base: "bpipe" over 1F1B and GPipe, "bpipe-gis" over gis.
static Schedule *balance_new_(const Schedule *base, int slots, Error *err) {
    bool plain = strcmp(base->name, "1f1b") == 0 || strcmp(base->name, "gpipe") == 0;
    char name[sizeof base->name];
    snprintf(name, sizeof name, "bpipe%s%.24s", plain ? "" : "-", plain ? "" : base->name);
    Schedule *schedule = schedule_new(name, base->stages, base->microbatches, err);
    if (schedule == NULL) return NULL;
    schedule->chunks = base->chunks;
    schedule->placement = base->placement;
    schedule->edge_buffers = base->edge_buffers;
    schedule->slots = slots;
    return schedule;
}

Schedule *bpipe_balance_ahead(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err) {
    if (balance_allowed_(base, slots, target, ahead, err) != 0) return NULL;
    if (slots == 0) slots = bpipe_least_slots(base, target);
    Schedule *schedule = balance_new_(base, slots, err);
    if (schedule == NULL) return NULL;
    int status = 0;
    for (int s = 0; s < base->stages && status == 0; s++) {
        status = balance_stage_(schedule, s, base, target, ahead, err);
    }
    for (int s = 0; s < base->stages && status == 0 && target == EVICT_TO_PEER; s++) {
        const StageSchedule *stage = &schedule->stage[s];
        bool evicts = false;
        for (int64_t i = 0; i < stage->count && !evicts; i++) evicts = stage->actions[i].kind == ACTION_EVICT;
        if (evicts) status = balance_acceptor_(schedule, s, err);
    }
    if (status != 0) {
        schedule_free(schedule);
        return NULL;
    }
    schedule_finish(schedule, slots);
    return schedule;
}

Schedule *bpipe_balance(const Schedule *base, int slots, EvictTarget target, Error *err) {
    return bpipe_balance_ahead(base, slots, target, 1, err);
}

Schedule *schedule_bpipe(int stages, int microbatches, int slots, Error *err) {
    Schedule *base = schedule_1f1b(stages, microbatches, err);
    if (base == NULL) return NULL;
    Schedule *schedule = bpipe_balance(base, slots, EVICT_TO_PEER, err);
    schedule_free(base);
    return schedule;
}
