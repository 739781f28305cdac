// The lists that schedules are made of, GPipe and 1F1B, and the BPipe pass, which levels the memory of any schedule.
// The other schedules, the text form, the proof and the simulator are in src/schedule. The proof (check.c) shares
// nothing with the pass but bpipe_partner.
#include "bpipe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/alloc.h"
#include "src/base/number_set.h"
#include "src/base/units.h"

// ---------------------------------------------------------------------------------------------------------------------
// Lists and schedules

static_assert(sizeof(Action) == 12, "kind and slice share four bytes");

void list_push(ActionList *list, Action action) {
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        list->actions = xrealloc(list->actions, (size_t)list->capacity * sizeof *list->actions);
    }
    list->actions[list->count++] = action;
}

void list_compute(ActionList *list, ActionKind kind, int chunk, int microbatch) {
    list_push(list, (Action){kind, 0, chunk, SCHEDULE_NO_PEER, microbatch});
}

void list_place(ActionList *list, ActionKind kind, int chunk, int slices, int place) {
    int slice = kind == ACTION_FORWARD ? place % slices : slices - 1 - place % slices;
    list_push(list, (Action){kind, slice, chunk, SCHEDULE_NO_PEER, place / slices});
}

void list_finish(ActionList *list, StageSchedule *stage) {
    free(stage->actions);
    stage->actions = list->actions;
    stage->count = list->count;
}

Schedule *schedule_new(const char *name, int stages, int microbatches) {
    Schedule *schedule = xcalloc(1, sizeof *schedule);
    snprintf(schedule->name, sizeof schedule->name, "%s", name);
    schedule->stages = stages;
    schedule->chunks = 1;
    schedule->placement = PLACEMENT_LOOP;
    schedule->microbatches = microbatches;
    schedule->slices = 1;
    schedule->edge_buffers = SCHEDULE_EDGE_BUFFERS;
    schedule->forward_only = strcmp(name, "forward") == 0;
    schedule->stage = xcalloc((size_t)stages, sizeof *schedule->stage);
    return schedule;
}

void schedule_free(Schedule *schedule) {
    if (schedule == NULL) return;
    for (int s = 0; s < schedule->stages; s++) free_all(schedule->stage[s].actions, schedule->stage[s].kept);
    free_all(schedule->stage, schedule);
}

bool schedule_stage_moves(const StageSchedule *stage) {
    int64_t i = 0;
    while (i < stage->count && action_computes(stage->actions[i].kind)) i++;
    return i < stage->count;
}

int schedule_virtual(const Schedule *schedule, int stage, int chunk) {
    bool back = schedule->placement == PLACEMENT_V && chunk % 2 == 1;
    return chunk * schedule->stages + (back ? schedule->stages - 1 - stage : stage);
}

void schedule_home(const Schedule *schedule, int virtual_stage, int *stage, int *chunk) {
    int at = virtual_stage % schedule->stages;
    *chunk = virtual_stage / schedule->stages;
    *stage = schedule->placement == PLACEMENT_V && *chunk % 2 == 1 ? schedule->stages - 1 - at : at;
}

// Peaks over a stage's list. own: the stage's bundles between their F and the B or W that frees their slot. lent: the
// partner's bundles in lent slots. away: the stage's bundles in host memory. moves: number of E and L. split: whether a
// backward is split.
typedef struct ListCounts {
    int own, lent, away;
    int64_t moves;
    bool split;
} ListCounts;

static ListCounts list_counts_(const StageSchedule *stage) {
    int own = 0, lent = 0, away = 0, most_own = 0, most_lent = 0, most_away = 0;
    int64_t moves = 0;
    bool split = false;
    for (int64_t i = 0; i < stage->count; i++) {
        ActionKind kind = stage->actions[i].kind;
        if (!action_computes(kind)) {
            if (stage->actions[i].peer == SCHEDULE_HOST) away += kind == ACTION_EVICT ? 1 : -1;
            lent += (kind == ACTION_ACCEPT) - (kind == ACTION_RETURN);
            moves += kind == ACTION_EVICT || kind == ACTION_LOAD;
            most_away = max_int(most_away, away);
            most_lent = max_int(most_lent, lent);
            continue;
        }
        own += (kind == ACTION_FORWARD) - action_frees(kind, false);
        most_own = max_int(most_own, own);
        split |= kind == ACTION_INPUT || kind == ACTION_WEIGHT;
    }
    return (ListCounts){most_own, most_lent, most_away, moves, split};
}

// Returns the peak number of a stage's bundles between their F and the B or W that frees their slot, evicted or not.
// The bound may have cut own_slots only where the stage's slots reach it.
static int in_flight_(const Schedule *schedule, int s) {
    const StageSchedule *stage = &schedule->stage[s];
    return stage->own_slots + stage->lent_slots < schedule->slots ? stage->own_slots : list_counts_(stage).own;
}

// Counts StageSchedule.kept of a list with slices and backwards. A list from a file is not checked yet.
static void count_kept_(StageSchedule *stage, int chunks) {
    int *now = xcalloc((size_t)chunks, sizeof *now);
    free(stage->kept);
    stage->kept = xcalloc((size_t)chunks, sizeof *stage->kept);
    for (int64_t i = 0; i < stage->count; i++) {
        Action action = stage->actions[i];
        if (action.slice != 0 || action.chunk < 0 || action.chunk >= chunks) continue;
        now[action.chunk] += action.kind == ACTION_FORWARD;
        stage->kept[action.chunk] = max_int(stage->kept[action.chunk], now[action.chunk]);
        now[action.chunk] -= action.kind == ACTION_BACKWARD || action.kind == ACTION_INPUT;
    }
    free(now);
}

// Counts own slots as if nothing were evicted, then limits them to the bound. So a stage that evicts nothing gets
// exactly the slots that it uses.
static void finish_stage_(Schedule *schedule, StageSchedule *stage, int slots) {
    ListCounts counts = list_counts_(stage);
    stage->lent_slots = counts.lent;
    stage->host_slots = counts.away;
    stage->moves = counts.moves;
    stage->own_slots = schedule->forward_only ? 1 : counts.own;
    schedule->split = schedule->split || counts.split;
    bool keeps = schedule->slices > 1 && !schedule->forward_only && schedule->chunks <= stage->count;
    if (keeps) count_kept_(stage, schedule->chunks);
    if (slots > 0) stage->own_slots = min_int(stage->own_slots, slots - stage->lent_slots);
    if (slots == 0) schedule->slots = max_int(schedule->slots, stage->own_slots);
}

void schedule_finish(Schedule *schedule, int slots) {
    schedule->slots = slots;
    schedule->split = false;
    for (int s = 0; s < schedule->stages; s++) finish_stage_(schedule, &schedule->stage[s], slots);
}

Schedule *schedule_fill(const char *name, const ScheduleSpec *spec, Placement placement, StageMaker *maker) {
    Schedule *schedule = schedule_new(name, spec->stages, spec->microbatches);
    schedule->chunks = spec->chunks;
    schedule->slices = max_int(spec->slices, 1);
    schedule->placement = placement;
    for (int s = 0; s < spec->stages; s++) {
        ActionList list = {.capacity = 2 * (int64_t)spec->chunks * spec->microbatches * schedule->slices};
        list.actions = xmalloc((size_t)list.capacity * sizeof *list.actions);
        maker(spec, s, &list);
        list_finish(&list, &schedule->stage[s]);
        finish_stage_(schedule, &schedule->stage[s], 0); // at once, while the list is in the cache
    }
    return schedule;
}

// ---------------------------------------------------------------------------------------------------------------------
// GPipe and 1F1B

// Writes `warm_up` forwards, then a backward and a forward in turn. GPipe and 1F1B differ only in `warm_up`. With
// slices, slices - 1 more forwards come first, because the first backward is that of the last slice.
static void write_stage_(ActionList *list, const ScheduleSpec *spec, int warm_up) {
    int slices = max_int(spec->slices, 1), all = spec->microbatches * slices;
    warm_up = min_int(warm_up + slices - 1, all);
    for (int i = 0; i < warm_up; i++) list_place(list, ACTION_FORWARD, 0, slices, i);
    for (int i = 0; i < all; i++) {
        list_place(list, ACTION_BACKWARD, 0, slices, i);
        if (i + warm_up < all) list_place(list, ACTION_FORWARD, 0, slices, i + warm_up);
    }
}

void gpipe_stage(const ScheduleSpec *spec, int s, ActionList *list) {
    (void)s;
    write_stage_(list, spec, spec->microbatches);
}

void one_f_one_b_stage(const ScheduleSpec *spec, int s, ActionList *list) {
    write_stage_(list, spec, spec->stages - s);
}

int schedule_possible(int stages, int microbatches, Error *err) {
    if (stages < 1 || microbatches < 1)
        return error_set(err, EXIT_USAGE, "a schedule needs at least 1 stage and 1 microbatch, not %d and %d", stages,
                         microbatches);
    if (microbatches >= stages) return 0;
    return error_set(
        err, EXIT_USAGE,
        "%d microbatches cannot fill %d pipeline stages; use at least %d microbatches per step, fewer stages, or "
        "schedule.slices",
        microbatches, stages, stages);
}

Schedule *schedule_1f1b(int stages, int microbatches, Error *err) {
    ScheduleSpec spec = {.stages = stages, .microbatches = microbatches, .chunks = 1};
    if (schedule_possible(stages, microbatches, err) != 0) return NULL;
    return schedule_fill("1f1b", &spec, PLACEMENT_LOOP, one_f_one_b_stage);
}

// From the end of each list to its beginning, since the list grows in place.
void schedule_split(Schedule *schedule) {
    for (int s = 0; s < schedule->stages; s++) {
        StageSchedule *stage = &schedule->stage[s];
        int64_t from = stage->count;
        for (int64_t i = 0; i < from; i++) stage->count += stage->actions[i].kind == ACTION_BACKWARD;
        schedule->split |= stage->count > from;
        stage->actions = xrealloc(stage->actions, (size_t)stage->count * sizeof *stage->actions);
        for (int64_t to = stage->count; from < to;) {
            Action action = stage->actions[--from];
            bool whole = action.kind == ACTION_BACKWARD;
            if (whole) action.kind = ACTION_WEIGHT;
            stage->actions[--to] = action;
            if (!whole) continue;
            action.kind = ACTION_INPUT;
            stage->actions[--to] = action;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The BPipe pass
//
// In its steady state an evictor of 1F1B has no idle moment: F(k) B(i) F(k+1) B(i+1) ... follow without a gap, and all
// its slots are full. If bundle i+1 was evicted, it has to be back when F(k+1) ends. The newest bundle is needed last,
// so evicting it keeps transfers few (Belady). The newest bundle that can still leave its slot in time is that of F(k).
// Hence the swap E(k) L(i+1), listed before B(i): B(i) and F(k+1) hide it, and because L only takes the
// slot that E freed, F(k+1) always gets the slot of B(i).
//
// The same holds for any other list, with "newest" and "next" read off the list: a bundle's *turn* is the place of its
// B or I among all B and I of the stage; the newest bundle is the one with the last turn, and the next one has the
// following turn. B or W frees the slot. If more forwards than B and W come before the turn of a bundle that is loaded,
// they need slots too (`walk_rise_`); without these slots, one of the forwards would take the slot meant for L.

int bpipe_partner(int stages, int stage) {
    int partner = stages - 1 - stage;
    return partner == stage ? SCHEDULE_NO_PEER : partner;
}

int bpipe_min_slots(int stages) { return stages == 1 ? 1 : (stages + 3) / 2; }

int bpipe_min_slots_host(int stages) { return stages == 1 ? 1 : 2; }

// A walk along the compute actions of one stage that tracks which bundles are in its slots.
typedef struct Walk {
    ActionList list;
    const StageSchedule *base;
    const Schedule *schedule; // schedule that contains `base`
    int64_t *place;           // [turns] index in the base list of the turn's B or I
    int *turn;                // [chunks*microbatches*slices] turn of each bundle
    NumberSet home, away;     // turns with a bundle in one of the stage's own slots; turns with an evicted bundle
    int64_t at;               // index of the current action in the base list
    int64_t last_forward;
    int turns;
    int now;    // current turn: number of turns completed
    int newest; // the last turn of any bundle made so far
    int used;   // own slots in use, in list order
    int slots;
    int ahead;
    int peer;
    bool failed; // true: `slots` is too small
    bool silent; // true: no list is written
} Walk;

static bool turns_(ActionKind kind) { return kind == ACTION_BACKWARD || kind == ACTION_INPUT; }

static int walk_turn_(const Walk *walk, Action action) { return walk->turn[schedule_bundle(walk->schedule, action)]; }

static void walk_move_(Walk *walk, ActionKind kind, int turn) {
    bool evict = kind == ACTION_EVICT;
    assert(number_set_has(evict ? &walk->home : &walk->away, turn));
    number_set_remove(evict ? &walk->home : &walk->away, turn);
    number_set_add(evict ? &walk->away : &walk->home, turn);
    walk->used += evict ? -1 : 1;
    if (walk->silent) return;
    Action action = walk->base->actions[walk->place[turn]];
    list_push(&walk->list, (Action){kind, action.slice, action.chunk, walk->peer, action.microbatch});
}

// Evicts the bundles with the last turns, all after `needed`, until `wanted` more fit. Returns false and evicts none if
// they cannot.
static bool walk_make_room_(Walk *walk, int wanted, int needed) {
    int missing = walk->used + wanted - walk->slots, turn = walk->newest + 1;
    for (int found = 0; found < missing; found++) {
        turn = number_set_before(&walk->home, turn);
        if (turn <= needed) return false;
    }
    for (turn = walk->newest + 1; missing > 0; missing--) {
        turn = number_set_before(&walk->home, turn);
        walk_move_(walk, ACTION_EVICT, turn);
    }
    return true;
}

static void walk_load_(Walk *walk, int turn) {
    walk_move_(walk, ACTION_LOAD, turn);
    if (turn > walk->newest) walk->newest = turn;
}

// Frees a slot before a forward. If no slot becomes free between this forward and the next one, also frees a slot for
// the next forward, so that the eviction runs during the current forward.
static void walk_before_forward_(Walk *walk) {
    bool follows = walk->at < walk->last_forward;
    for (int64_t i = walk->at + 1; follows && walk->base->actions[i].kind != ACTION_FORWARD; i++)
        if (action_frees(walk->base->actions[i].kind, false)) follows = false;
    if (follows && walk_make_room_(walk, 2, walk->now)) return;
    if (!walk_make_room_(walk, 1, walk->now)) walk->failed = true;
}

// Returns the largest rise in slots in use between the current action and the B or I of a turn.
static int walk_rise_(const Walk *walk, int turn) {
    int rise = 0, most = 0;
    for (int64_t i = walk->at; i < walk->place[turn]; i++) {
        ActionKind kind = walk->base->actions[i].kind;
        rise += (kind == ACTION_FORWARD) - action_frees(kind, false);
        if (rise > most) most = rise;
    }
    return most;
}

// Loads, before a turn, the first evicted bundle of the next `ahead` turns. If the load needs slots, evicts the newest
// bundles.
static void walk_swap_(Walk *walk) {
    int next = walk->now + 1, last = walk->now + min_int(walk->ahead, walk->newest - walk->now);
    while (next <= last && !number_set_has(&walk->away, next)) next++;
    if (next > last || !walk_make_room_(walk, 1 + walk_rise_(walk, next), next)) return;
    walk_load_(walk, next);
}

// After the last forward, loads evicted bundles as slots become free, in the order of turns. If the bundle of the next
// turn is evicted and no slot is freed before that turn, evicts the newest bundle for it.
static void walk_home_(Walk *walk) {
    int next = walk->now - 1;
    while (walk->used < walk->slots && (next = number_set_after(&walk->away, next)) >= 0) walk_load_(walk, next);
    next = walk->now + 1;
    if (next > walk->newest || !number_set_has(&walk->away, next)) return;
    for (int64_t i = walk->at; i < walk->place[next]; i++)
        if (action_frees(walk->base->actions[i].kind, false)) return;
    if (walk_make_room_(walk, 1, next)) walk_load_(walk, next);
}

static void walk_action_(Walk *walk, Action action) {
    bool forward = action.kind == ACTION_FORWARD;
    if (walk->at > walk->last_forward) walk_home_(walk);
    if (forward) walk_before_forward_(walk);
    if (turns_(action.kind) && number_set_has(&walk->away, walk->now)) { // no slot was free for an earlier load
        if (walk_make_room_(walk, 1, walk->now)) walk_load_(walk, walk->now);
        else walk->failed = true;
    }
    if (turns_(action.kind) && walk->at < walk->last_forward) walk_swap_(walk);
    if (!walk->silent) list_push(&walk->list, action);
    if (forward) {
        int turn = walk_turn_(walk, action);
        number_set_add(&walk->home, turn);
        if (turn > walk->newest) walk->newest = turn;
    }
    if (turns_(action.kind)) number_set_remove(&walk->home, walk->now++);
    walk->used += forward - action_frees(action.kind, false);
    assert(walk->failed || (walk->used >= 0 && walk->used <= walk->slots));
}

// Fills `place` and `turn` from the list of stage s. Call walk_free_ afterwards.
static void walk_prepare_(Walk *walk, const Schedule *base, int s) {
    size_t bundles = (size_t)base->chunks * (size_t)base->microbatches * (size_t)base->slices;
    walk->base = &base->stage[s];
    walk->schedule = base;
    walk->place = xcalloc(bundles, sizeof *walk->place);
    walk->turn = xcalloc(bundles, sizeof *walk->turn);
    number_set_create(&walk->home, (int)bundles);
    number_set_create(&walk->away, (int)bundles);
    for (int64_t i = 0; i < walk->base->count; i++) {
        Action action = walk->base->actions[i];
        if (action.kind == ACTION_FORWARD) walk->last_forward = i;
        if (!turns_(action.kind)) continue;
        walk->turn[schedule_bundle(base, action)] = walk->turns;
        walk->place[walk->turns++] = i;
    }
}

static void walk_free_(Walk *walk) {
    free_all(walk->list.actions, walk->place, walk->turn);
    number_set_free(&walk->home);
    number_set_free(&walk->away);
}

// Walks the list from its start, with `slots` own slots.
static void walk_(Walk *walk, int slots) {
    number_set_clear(&walk->home);
    number_set_clear(&walk->away);
    walk->slots = slots;
    walk->newest = -1;
    walk->now = walk->used = 0;
    walk->failed = false;
    for (walk->at = 0; walk->at < walk->base->count && !walk->failed; walk->at++)
        walk_action_(walk, walk->base->actions[walk->at]);
}

// Writes A and R into the acceptor's list. If E and L follow B or I(c,i) in the evictor's list, their A and R are
// posted right after the acceptor's own B or I(c,i). The acceptor's B or I(c,i) is complete before the evictor's can
// begin, whatever the durations. So no transfer waits for the acceptor to post its A or R.
static void balance_acceptor_(Schedule *schedule, int s) {
    const StageSchedule *evictor = &schedule->stage[s];
    StageSchedule *acceptor = &schedule->stage[bpipe_partner(schedule->stages, s)];
    ActionList list = {.capacity = evictor->count}; // as many compute actions and transfers
    list.actions = xmalloc((size_t)list.capacity * sizeof *list.actions);
    int64_t next = 0;
    for (int64_t i = 0; i < evictor->count; i++) {
        Action action = evictor->actions[i];
        Action side = {ACTION_ACCEPT, action.slice, action.chunk, s, action.microbatch};
        if (action.kind == ACTION_LOAD) side.kind = ACTION_RETURN;
        if (!action_computes(action.kind)) list_push(&list, side);
        while (turns_(action.kind) && next < acceptor->count) {
            Action own = acceptor->actions[next++];
            list_push(&list, own);
            if (turns_(own.kind) && schedule_bundle(schedule, own) == schedule_bundle(schedule, action)) break;
        }
    }
    while (next < acceptor->count) list_push(&list, acceptor->actions[next++]);
    list_finish(&list, acceptor);
}

// Returns the most bundles that must be on the stage at once: the bundles that wait for their W, and the bundle that an
// action uses. With fewer slots no eviction helps, since a bundle that waits for its W cannot be evicted.
static int held_(const StageSchedule *stage) {
    int waiting = 0, most = 1;
    for (int64_t i = 0; i < stage->count; i++) {
        ActionKind kind = stage->actions[i].kind;
        if (kind != ACTION_WEIGHT) most = max_int(most, waiting + 1);
        waiting += (kind == ACTION_INPUT) - (kind == ACTION_WEIGHT);
    }
    return most;
}

// Returns the fewest slots, from `least` on, with which evicting to the host succeeds; never more than the stage's
// bundles in flight.
static int host_needs_(const Schedule *base, int s, int least) {
    int in_flight = in_flight_(base, s), slots = in_flight > least ? held_(&base->stage[s]) : in_flight;
    Walk walk = {.ahead = 1, .peer = SCHEDULE_HOST, .silent = true};
    slots = max_int(slots, max_int(least, 2));
    if (slots >= in_flight) return in_flight;
    walk_prepare_(&walk, base, s);
    for (walk.failed = true; walk.failed && slots < in_flight; slots += walk.failed) walk_(&walk, slots);
    walk_free_(&walk);
    return slots;
}

// To evict to the host, a stage needs the fewest slots with which the pass succeeds. To evict to a partner, a pair
// needs half of its bundles in flight, rounded down, plus 1 because a bundle in transit takes a slot on both stages.
int bpipe_least_slots(const Schedule *base, EvictTarget target) {
    int least = 1;
    for (int s = 0; s < base->stages; s++) {
        int partner = bpipe_partner(base->stages, s);
        bool pairs = target == EVICT_TO_PEER && partner != SCHEDULE_NO_PEER;
        if (pairs && partner < s) continue; // counted together with its partner
        int needs = target == EVICT_TO_HOST ? host_needs_(base, s, least) : in_flight_(base, s);
        if (pairs) {
            int other = in_flight_(base, partner);
            needs = min_int(max_int(needs, other), (needs + other) / 2 + 1);
        }
        least = max_int(least, needs);
    }
    return least;
}

int bpipe_load_ahead(const Schedule *base, EvictTarget target) {
    if (target == EVICT_TO_HOST && base->placement == PLACEMENT_V) return 3;
    return base->split ? 2 : 1;
}

// Refuses slots below bpipe_least_slots.
static int enough_slots_(const Schedule *base, int slots, EvictTarget target, Error *err) {
    int least = bpipe_least_slots(base, target);
    if (slots >= least) return 0;
    return error_set(err, EXIT_USAGE,
                     "%d slots are too few to balance %s on %d stages; the smallest number that works is %d", slots,
                     base->name, base->stages, least);
}

static int balance_stage_(Schedule *schedule, int s, const Schedule *base, EvictTarget target, int ahead, Error *err) {
    int peer = target == EVICT_TO_HOST ? SCHEDULE_HOST : bpipe_partner(schedule->stages, s);
    Walk walk = {.ahead = ahead, .peer = peer};
    walk_prepare_(&walk, base, s);
    walk.list.capacity = 2 * walk.base->count + 2; // a bundle has two compute actions or more; few move twice
    walk.list.actions = xmalloc((size_t)walk.list.capacity * sizeof *walk.list.actions);
    walk_(&walk, schedule->slots);
    if (!walk.failed) {
        list_finish(&walk.list, &schedule->stage[s]);
        walk.list.actions = NULL;
    }
    walk_free_(&walk);
    if (!walk.failed) return 0;
    if (enough_slots_(base, walk.slots, target, err) != 0) return -1;
    return error_set(err, EXIT_USAGE,
                     "%d slots are too few to balance %s on stage %d with schedule.load_ahead %d; use more slots "
                     "or a smaller load_ahead",
                     walk.slots, base->name, s, ahead);
}

static int balance_allowed_(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err) {
    bool moves = false;
    for (int s = 0; s < base->stages; s++) moves |= schedule_stage_moves(&base->stage[s]);
    if (base->forward_only || moves)
        return error_set(err, EXIT_USAGE, "schedule %s cannot be balanced: it %s", base->name,
                         base->forward_only ? "keeps no bundles" : "already moves bundles");
    if (target == EVICT_TO_PEER && base->placement == PLACEMENT_V)
        return error_set(err, EXIT_USAGE,
                         "schedule %s fills both stages of a pair equally, so neither has slots to lend; set "
                         "schedule.evict_to to host",
                         base->name);
    if (ahead < 1) return error_set(err, EXIT_USAGE, "schedule.load_ahead must be at least 1, not %d", ahead);
    // To the host, the fewest slots are those with which the pass succeeds.
    return slots == 0 || (target == EVICT_TO_HOST && slots > 1) ? 0 : enough_slots_(base, slots, target, err);
}

Schedule *bpipe_balance(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err) {
    if (balance_allowed_(base, slots, target, ahead, err) != 0) return NULL;
    if (slots == 0) slots = bpipe_least_slots(base, target);

    // 1. A schedule like the base but with empty lists: "bpipe" for 1F1B and GPipe, else "bpipe-" and the base's name.
    bool plain = strcmp(base->name, "1f1b") == 0 || strcmp(base->name, "gpipe") == 0;
    char name[sizeof base->name];
    snprintf(name, sizeof name, "bpipe%s%.24s", plain ? "" : "-", plain ? "" : base->name);
    Schedule *schedule = schedule_new(name, base->stages, base->microbatches);
    schedule->chunks = base->chunks;
    schedule->slices = base->slices;
    schedule->placement = base->placement;
    schedule->edge_buffers = base->edge_buffers;
    schedule->slots = slots;

    // 2. Each stage's list with its evictions and loads.
    for (int s = 0; s < base->stages; s++) {
        if (balance_stage_(schedule, s, base, target, ahead, err) == 0) continue;
        schedule_free(schedule);
        return NULL;
    }

    // 3. The other side of a partner's evictions and loads.
    for (int s = 0; s < base->stages && target == EVICT_TO_PEER; s++) {
        const StageSchedule *stage = &schedule->stage[s];
        bool evicts = false;
        for (int64_t i = 0; i < stage->count && !evicts; i++) evicts = stage->actions[i].kind == ACTION_EVICT;
        if (evicts) balance_acceptor_(schedule, s);
    }
    schedule_finish(schedule, slots);
    return schedule;
}
