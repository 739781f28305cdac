// V-Half and V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024): two chunks in a V, and a
// pattern that repeats every 6 units of time, in which F, I and W of a chunk take one unit each. The distance between F
// and I of a microbatch in the pattern determines how many bundles a stage keeps: about half as many as 1F1B for
// V-Half, a third for V-Min.
//
// The bare pattern wastes time before and after its stable phase, so the schedule is made in three steps:
//   1. Lay the pattern of all microbatches on a grid of stages and units, and put W into the holes, oldest I first.
//   2. Pull the passes outside the stable phase into earlier holes, as far as their inputs and the number of slots
//      allow, and close the gaps.
//   3. Remove W, pack F and I after the stable phase again, filling the holes before them with W, and close the gaps.
//      Then put W into the holes again.
// For V-Half this reaches the bound of the paper, 6p-3k-1 idle units with k slots, for every p and m; V-Min comes
// within 4 units of it. The order is used whatever the real durations are.
#include "kinds.h"

#include "base/alloc.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

typedef enum PassKind { PASS_F, PASS_I, PASS_W, PASS_KINDS } PassKind;
enum { CHUNKS = 2, PERIOD = 6, NO_PASS = -1 };

// A pass is the number of an action: ((stage * PASS_KINDS + kind) * CHUNKS + chunk) * microbatches + microbatch.
typedef struct PassGrid {
    int stages, microbatches, slots;
    int length;  // units
    int *time;   // [passes] unit in which the pass runs; -1: not on the grid
    int *pass;   // [stages*length] pass that runs in the unit, or NO_PASS
    int *in_use; // [stages*length] bundles in slots in the unit, including the bundle of the running pass
    int *order;  // [passes] scratch list of passes
    int *free;   // [stages] the first unit after all placed passes
} PassGrid;

// The units in which microbatch 0 runs F and I of each chunk on a stage. Example: V-Half with p = 2 and two
// microbatches, with capital letters for chunk 0 and small letters for chunk 1. W goes into the holes:
//
//   stage 0  F0 .  .  .  f0 .  F1 .  i0 .  f1 .  .  I0 i1 .  .  .  .  I1
//   stage 1  .  .  F0 f0 .  .  .  .  F1 f1 i0 .  I0 .  .  .  i1 .  I1 .
//
// F goes down the V and up again, and I follows in the opposite direction. Microbatch 1 repeats this pattern PERIOD
// units later.
typedef struct PatternStart {
    int forward[CHUNKS], input[CHUNKS];
} PatternStart;

static PatternStart v_half_start_(int p, int s) {
    int even = p % 2 == 0 ? 3 : 0;
    return (PatternStart){{2 * s, 3 * p - s - 2}, {6 * p + even - s - 2, 3 * p + even + 2 * s - 1}};
}

static PatternStart v_min_start_(int p, int s) {
    int third = p % 3 == 0 ? 2 : 0;
    return (PatternStart){{s, 2 * p - s - 1}, {4 * p + third - s - 1, 2 * p + third + s}};
}

// ---------------------------------------------------------------------------------------------------------------------
// The grid

static int pass_of_(const PassGrid *grid, int stage, PassKind kind, int chunk, int microbatch) {
    return ((stage * PASS_KINDS + (int)kind) * CHUNKS + chunk) * grid->microbatches + microbatch;
}

static int grid_microbatch_(const PassGrid *grid, int pass) { return pass % grid->microbatches; }

static int grid_chunk_(const PassGrid *grid, int pass) { return pass / grid->microbatches % CHUNKS; }

static PassKind grid_kind_(const PassGrid *grid, int pass) {
    return (PassKind)(pass / grid->microbatches / CHUNKS % PASS_KINDS);
}

static int grid_stage_(const PassGrid *grid, int pass) { return pass / grid->microbatches / CHUNKS / PASS_KINDS; }

static int grid_passes_(const PassGrid *grid) { return grid->stages * PASS_KINDS * CHUNKS * grid->microbatches; }

static int *grid_at_(const PassGrid *grid, int stage, int time) {
    return &grid->pass[(int64_t)stage * grid->length + time];
}

static void put_(PassGrid *grid, int pass, int time) {
    grid->time[pass] = time;
    *grid_at_(grid, grid_stage_(grid, pass), time) = pass;
}

static void take_out_(PassGrid *grid, int pass) {
    *grid_at_(grid, grid_stage_(grid, pass), grid->time[pass]) = NO_PASS;
    grid->time[pass] = -1;
}

// Returns the first unit after a pass. Virtual stages 0 .. p-1 go down the V, virtual stages p .. 2p-1 up again.
static int end_of_(const PassGrid *grid, PassKind kind, int virtual_stage, int microbatch) {
    int chunk = virtual_stage / grid->stages;
    int stage = chunk == 0 ? virtual_stage : 2 * grid->stages - 1 - virtual_stage;
    return grid->time[pass_of_(grid, stage, kind, chunk, microbatch)] + 1;
}

// Returns the first unit in which the inputs of a pass are ready and the previous pass of its kind and chunk is done.
static int ready_(const PassGrid *grid, int pass) {
    int stage = grid_stage_(grid, pass), chunk = grid_chunk_(grid, pass), i = grid_microbatch_(grid, pass);
    int at = chunk == 0 ? stage : 2 * grid->stages - 1 - stage, time = 0;
    PassKind kind = grid_kind_(grid, pass);
    if (i > 0) time = grid->time[pass - 1] + 1;
    if (kind == PASS_W) return max_int(time, end_of_(grid, PASS_I, at, i));
    if (kind == PASS_F) return at > 0 ? max_int(time, end_of_(grid, PASS_F, at - 1, i)) : time;
    if (at < CHUNKS * grid->stages - 1) time = max_int(time, end_of_(grid, PASS_I, at + 1, i));
    return max_int(time, end_of_(grid, PASS_F, at, i));
}

// Writes all passes on the grid in order of time into `order`; returns how many.
static int list_passes_(const PassGrid *grid) {
    int count = 0;
    for (int t = 0; t < grid->length; t++)
        for (int s = 0; s < grid->stages; s++)
            if (*grid_at_(grid, s, t) != NO_PASS) grid->order[count++] = *grid_at_(grid, s, t);
    return count;
}

// ---------------------------------------------------------------------------------------------------------------------
// The steps

static void remove_weights_(PassGrid *grid) {
    for (int pass = 0; pass < grid_passes_(grid); pass++)
        if (grid_kind_(grid, pass) == PASS_W && grid->time[pass] >= 0) take_out_(grid, pass);
}

// The state of the walk that fills one stage's holes: the next unit, and the queue of W that may fill a hole, because
// their I is done. The queue is waiting[first] to waiting[count - 1].
typedef struct Filler {
    int time;
    int *waiting; // [CHUNKS*microbatches]
    int first, count;
    int in_use; // bundles in slots before `time`
} Filler;

// Fills the holes of one stage, from the end of the last call to unit `until`, with waiting W, oldest first.
static void fill_holes_(PassGrid *grid, Filler *filler, int stage, int until) {
    for (; filler->time < until; filler->time++) {
        int pass = *grid_at_(grid, stage, filler->time);
        if (pass == NO_PASS && filler->first < filler->count) {
            put_(grid, filler->waiting[filler->first++], filler->time);
            filler->in_use--;
        }
        if (pass == NO_PASS) continue;
        PassKind kind = grid_kind_(grid, pass);
        int weight = pass_of_(grid, stage, PASS_W, grid_chunk_(grid, pass), grid_microbatch_(grid, pass));
        if (kind == PASS_I) filler->waiting[filler->count++] = weight;
        if (kind == PASS_F) filler->in_use++;
    }
}

static void fill_all_holes_(PassGrid *grid) {
    for (int s = 0; s < grid->stages; s++) {
        Filler filler = {.waiting = grid->order};
        fill_holes_(grid, &filler, s, grid->length);
    }
}

// Finds the stable phase: from the first I of chunk 0 on stage 0 to the last F of chunk 0 on any stage.
static void stable_phase_(const PassGrid *grid, int *first, int *last) {
    *first = grid->time[pass_of_(grid, 0, PASS_I, 0, 0)];
    *last = 0;
    for (int s = 0; s < grid->stages; s++)
        *last = max_int(*last, grid->time[pass_of_(grid, s, PASS_F, 0, grid->microbatches - 1)]);
}

// Moves the passes outside the stable phase to the earliest hole at which their inputs are ready. An F then takes a
// slot earlier, so it moves only across units that all have a free slot.
static void pull_outside_(PassGrid *grid) {
    int first, last, count = list_passes_(grid);
    stable_phase_(grid, &first, &last);
    for (int s = 0; s < grid->stages; s++) {
        int held = 0;
        for (int t = 0; t < grid->length; t++) {
            int pass = *grid_at_(grid, s, t);
            if (pass != NO_PASS && grid_kind_(grid, pass) == PASS_F) held++;
            grid->in_use[(int64_t)s * grid->length + t] = held;
            if (pass != NO_PASS && grid_kind_(grid, pass) == PASS_W) held--;
        }
    }
    for (int i = 0; i < count; i++) {
        int pass = grid->order[i], stage = grid_stage_(grid, pass), from = grid->time[pass];
        if (from >= first && from <= last) continue;
        int *in_use = grid->in_use + (int64_t)stage * grid->length, to = ready_(grid, pass);
        PassKind kind = grid_kind_(grid, pass);
        if (kind == PASS_F) {
            int allowed = from;
            while (allowed > to && in_use[allowed - 1] < grid->slots) allowed--;
            to = allowed;
        }
        while (to < from && *grid_at_(grid, stage, to) != NO_PASS) to++;
        if (to >= from) continue;
        take_out_(grid, pass);
        put_(grid, pass, to);
        for (int t = to; t < from && kind == PASS_F; t++) in_use[t]++;
        for (int t = to + 1; t <= from && kind == PASS_W; t++) in_use[t]--;
    }
}

// Moves every pass as early as its inputs and its place in its stage's order allow.
static void close_up_(PassGrid *grid) {
    int count = list_passes_(grid);
    memset(grid->free, 0, (size_t)grid->stages * sizeof *grid->free);
    for (int i = 0; i < count; i++) {
        int pass = grid->order[i], stage = grid_stage_(grid, pass);
        int time = max_int(ready_(grid, pass), grid->free[stage]);
        take_out_(grid, pass);
        put_(grid, pass, time);
        grid->free[stage] = time + 1;
    }
}

// Removes the F and I after the stable phase and places them again in the same order, each in the first free unit. The
// holes before that unit are first filled with waiting W.
static void repack_(PassGrid *grid) {
    int first, last, count, passes = 0;
    size_t weights = (size_t)CHUNKS * (size_t)grid->microbatches;
    Filler *filler = xcalloc((size_t)grid->stages, sizeof *filler);
    int *waiting = xmalloc((size_t)grid->stages * weights * sizeof *waiting);
    for (int s = 0; s < grid->stages; s++) filler[s].waiting = waiting + (size_t)s * weights;
    stable_phase_(grid, &first, &last);
    remove_weights_(grid);
    count = list_passes_(grid);
    for (int i = 0; i < count; i++)
        if (grid->time[grid->order[i]] > last) grid->order[passes++] = grid->order[i];
    for (int i = 0; i < passes; i++) take_out_(grid, grid->order[i]);
    for (int i = 0; i < passes; i++) {
        int pass = grid->order[i], stage = grid_stage_(grid, pass);
        bool forward = grid_kind_(grid, pass) == PASS_F;
        Filler *at = &filler[stage];
        int time = max_int(ready_(grid, pass), at->time);
        fill_holes_(grid, at, stage, time);
        while (*grid_at_(grid, stage, time) != NO_PASS || (forward && at->in_use >= grid->slots))
            fill_holes_(grid, at, stage, ++time);
        put_(grid, pass, time);
    }
    for (int s = 0; s < grid->stages; s++) fill_holes_(grid, &filler[s], s, grid->length);
    free_all(filler, waiting);
}

static Schedule *make_pattern_(const char *name, const ScheduleSpec *spec, int slots, PatternStart (*start)(int, int)) {
    static const ActionKind kinds[PASS_KINDS] = {ACTION_FORWARD, ACTION_INPUT, ACTION_WEIGHT};
    int p = spec->stages, m = spec->microbatches;
    // The pattern ends within 6(p+m) units; the remaining W need at most a few times p more.
    PassGrid grid = {.stages = p, .microbatches = m, .slots = slots, .length = PERIOD * m + 14 * p + 16};
    size_t passes = (size_t)grid_passes_(&grid), units = (size_t)p * (size_t)grid.length;
    grid.time = xmalloc(passes * sizeof *grid.time);
    grid.order = xmalloc(passes * sizeof *grid.order);
    grid.pass = xmalloc(units * sizeof *grid.pass);
    grid.in_use = xmalloc(units * sizeof *grid.in_use);
    grid.free = xmalloc((size_t)p * sizeof *grid.free);
    for (size_t i = 0; i < passes; i++) grid.time[i] = -1;
    for (size_t i = 0; i < units; i++) grid.pass[i] = NO_PASS;
    // 1. The pattern
    for (int s = 0; s < p; s++) {
        PatternStart at = start(p, s);
        for (int c = 0; c < CHUNKS; c++)
            for (int i = 0; i < m; i++) {
                put_(&grid, pass_of_(&grid, s, PASS_F, c, i), at.forward[c] + PERIOD * i);
                put_(&grid, pass_of_(&grid, s, PASS_I, c, i), at.input[c] + PERIOD * i);
            }
    }
    fill_all_holes_(&grid);
    // 2. The passes outside the stable phase, earlier
    pull_outside_(&grid);
    close_up_(&grid);
    // 3. F and I after the stable phase again
    repack_(&grid);
    close_up_(&grid);
    remove_weights_(&grid);
    fill_all_holes_(&grid);
    Schedule *schedule = schedule_new(name, p, m);
    schedule->chunks = CHUNKS;
    schedule->placement = PLACEMENT_V;
    for (int s = 0; s < p; s++) {
        ActionList list = {0};
        for (int t = 0; t < grid.length; t++) {
            int pass = *grid_at_(&grid, s, t);
            if (pass == NO_PASS) continue;
            list_compute(&list, kinds[grid_kind_(&grid, pass)], grid_chunk_(&grid, pass),
                         grid_microbatch_(&grid, pass));
        }
        list_finish(&list, &schedule->stage[s]);
    }
    free_all(grid.time, grid.order, grid.pass, grid.in_use, grid.free);
    schedule_finish(schedule, 0);
    return schedule;
}

Schedule *make_v_half_(const ScheduleSpec *spec, int slots) {
    return make_pattern_("v-half", spec, slots, v_half_start_);
}

Schedule *make_v_min_(const ScheduleSpec *spec, int slots) { return make_pattern_("v-min", spec, slots, v_min_start_); }
