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
enum { CHUNKS = 2, PERIOD = 6 };

typedef struct GridPass {
    PassKind kind;
    int stage, chunk, microbatch;
    int time; // unit in which the pass runs; -1: not on the grid
} GridPass;

typedef struct PassGrid {
    int stages, microbatches, slots;
    int length;       // units
    GridPass *passes; // [stages][PASS_KINDS][CHUNKS][microbatches]
    GridPass **at;    // [stages*length] pass that runs in the unit, or NULL
    GridPass **order; // [passes] scratch list
    int count;        // passes
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

static GridPass *pass_of_(const PassGrid *grid, int stage, PassKind kind, int chunk, int microbatch) {
    return &grid->passes[((stage * PASS_KINDS + (int)kind) * CHUNKS + chunk) * grid->microbatches + microbatch];
}

static GridPass **grid_at_(const PassGrid *grid, int stage, int time) {
    return &grid->at[(int64_t)stage * grid->length + time];
}

// Moves a pass to a unit; -1: off the grid.
static void move_(PassGrid *grid, GridPass *pass, int time) {
    if (pass->time >= 0) *grid_at_(grid, pass->stage, pass->time) = NULL;
    if (time >= 0) *grid_at_(grid, pass->stage, time) = pass;
    pass->time = time;
}

// Returns the first unit after a pass. Virtual stages 0 .. p-1 go down the V, virtual stages p .. 2p-1 up again.
static int end_of_(const PassGrid *grid, PassKind kind, int virtual_stage, int microbatch) {
    int chunk = virtual_stage / grid->stages;
    int stage = chunk == 0 ? virtual_stage : 2 * grid->stages - 1 - virtual_stage;
    return pass_of_(grid, stage, kind, chunk, microbatch)->time + 1;
}

// Returns the first unit in which the inputs of a pass are ready and the previous pass of its kind and chunk is done.
static int ready_(const PassGrid *grid, const GridPass *pass) {
    int at = pass->chunk == 0 ? pass->stage : 2 * grid->stages - 1 - pass->stage, i = pass->microbatch;
    int time = i > 0 ? pass[-1].time + 1 : 0;
    if (pass->kind == PASS_W) return max_int(time, end_of_(grid, PASS_I, at, i));
    if (pass->kind == PASS_F) return at > 0 ? max_int(time, end_of_(grid, PASS_F, at - 1, i)) : time;
    if (at < CHUNKS * grid->stages - 1) time = max_int(time, end_of_(grid, PASS_I, at + 1, i));
    return max_int(time, end_of_(grid, PASS_F, at, i));
}

// Writes all passes on the grid in order of time into `order`; returns how many.
static int list_passes_(const PassGrid *grid) {
    int count = 0;
    for (int t = 0; t < grid->length; t++)
        for (int s = 0; s < grid->stages; s++)
            if (*grid_at_(grid, s, t) != NULL) grid->order[count++] = *grid_at_(grid, s, t);
    return count;
}

// ---------------------------------------------------------------------------------------------------------------------
// The steps

static void remove_weights_(PassGrid *grid) {
    for (int i = 0; i < grid->count; i++)
        if (grid->passes[i].kind == PASS_W) move_(grid, &grid->passes[i], -1);
}

// The state of the walk that fills one stage's holes: the next unit, and the queue of W that may fill a hole, because
// their I is done. The queue is waiting[first] to waiting[count - 1].
typedef struct Filler {
    int time;
    GridPass **waiting; // [CHUNKS*microbatches]
    int first, count;
    int in_use; // bundles in slots before `time`
} Filler;

// Fills the holes of one stage, from the end of the last call to unit `until`, with waiting W, oldest first.
static void fill_holes_(PassGrid *grid, Filler *filler, int stage, int until) {
    for (; filler->time < until; filler->time++) {
        const GridPass *pass = *grid_at_(grid, stage, filler->time);
        if (pass == NULL && filler->first < filler->count) {
            move_(grid, filler->waiting[filler->first++], filler->time);
            filler->in_use--;
        }
        if (pass == NULL) continue;
        if (pass->kind == PASS_I)
            filler->waiting[filler->count++] = pass_of_(grid, stage, PASS_W, pass->chunk, pass->microbatch);
        if (pass->kind == PASS_F) filler->in_use++;
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
    *first = pass_of_(grid, 0, PASS_I, 0, 0)->time;
    *last = 0;
    for (int s = 0; s < grid->stages; s++)
        *last = max_int(*last, pass_of_(grid, s, PASS_F, 0, grid->microbatches - 1)->time);
}

// Moves the passes outside the stable phase to the earliest hole at which their inputs are ready. An F then takes a
// slot earlier, so it moves only across units that all have a free slot.
static void pull_outside_(PassGrid *grid) {
    int first, last, count = list_passes_(grid);
    // Bundles in slots in each unit, including the bundle of the running pass.
    int *all = xcalloc((size_t)grid->stages * (size_t)grid->length, sizeof *all);
    stable_phase_(grid, &first, &last);
    for (int s = 0; s < grid->stages; s++)
        for (int t = 0, held = 0; t < grid->length; t++) {
            const GridPass *pass = *grid_at_(grid, s, t);
            held += pass != NULL && pass->kind == PASS_F;
            all[(int64_t)s * grid->length + t] = held;
            held -= pass != NULL && pass->kind == PASS_W;
        }
    for (int i = 0; i < count; i++) {
        GridPass *pass = grid->order[i];
        int from = pass->time, to = ready_(grid, pass), *in_use = all + (int64_t)pass->stage * grid->length;
        if (from >= first && from <= last) continue;
        if (pass->kind == PASS_F) {
            int allowed = from;
            while (allowed > to && in_use[allowed - 1] < grid->slots) allowed--;
            to = allowed;
        }
        while (to < from && *grid_at_(grid, pass->stage, to) != NULL) to++;
        if (to >= from) continue;
        move_(grid, pass, to);
        for (int t = to; t < from && pass->kind == PASS_F; t++) in_use[t]++;
        for (int t = to + 1; t <= from && pass->kind == PASS_W; t++) in_use[t]--;
    }
    free(all);
}

// Moves every pass as early as its inputs and its place in its stage's order allow.
static void close_up_(PassGrid *grid) {
    int count = list_passes_(grid);
    int *ends = xcalloc((size_t)grid->stages, sizeof *ends); // the first unit after all placed passes
    for (int i = 0; i < count; i++) {
        GridPass *pass = grid->order[i];
        move_(grid, pass, max_int(ready_(grid, pass), ends[pass->stage]));
        ends[pass->stage] = pass->time + 1;
    }
    free(ends);
}

// Removes the F and I after the stable phase and places them again in the same order, each in the first free unit. The
// holes before that unit are first filled with waiting W.
static void repack_(PassGrid *grid) {
    int first, last, count, passes = 0;
    size_t weights = (size_t)CHUNKS * (size_t)grid->microbatches;
    Filler *filler = xcalloc((size_t)grid->stages, sizeof *filler);
    GridPass **waiting = xmalloc((size_t)grid->stages * weights * sizeof *waiting);
    for (int s = 0; s < grid->stages; s++) filler[s].waiting = waiting + (size_t)s * weights;
    stable_phase_(grid, &first, &last);
    remove_weights_(grid);
    count = list_passes_(grid);
    for (int i = 0; i < count; i++)
        if (grid->order[i]->time > last) grid->order[passes++] = grid->order[i];
    for (int i = 0; i < passes; i++) move_(grid, grid->order[i], -1);
    for (int i = 0; i < passes; i++) {
        GridPass *pass = grid->order[i];
        Filler *at = &filler[pass->stage];
        int time = max_int(ready_(grid, pass), at->time);
        fill_holes_(grid, at, pass->stage, time);
        while (*grid_at_(grid, pass->stage, time) != NULL || (pass->kind == PASS_F && at->in_use >= grid->slots))
            fill_holes_(grid, at, pass->stage, ++time);
        move_(grid, pass, time);
    }
    for (int s = 0; s < grid->stages; s++) fill_holes_(grid, &filler[s], s, grid->length);
    free_all(filler, waiting);
}

static Schedule *make_pattern_(const char *name, const ScheduleSpec *spec, int slots, PatternStart (*start)(int, int)) {
    static const ActionKind kinds[PASS_KINDS] = {ACTION_FORWARD, ACTION_INPUT, ACTION_WEIGHT};
    int p = spec->stages, m = spec->microbatches;
    // The pattern ends within 6(p+m) units; the remaining W need at most a few times p more.
    PassGrid grid = {.stages = p,
                     .microbatches = m,
                     .slots = slots,
                     .length = PERIOD * m + 14 * p + 16,
                     .count = p * PASS_KINDS * CHUNKS * m};
    grid.passes = xmalloc((size_t)grid.count * sizeof *grid.passes);
    grid.order = xmalloc((size_t)grid.count * sizeof *grid.order);
    grid.at = xcalloc((size_t)p * (size_t)grid.length, sizeof *grid.at);
    for (int i = 0; i < grid.count; i++) {
        int kind = i / m / CHUNKS % PASS_KINDS, stage = i / m / CHUNKS / PASS_KINDS;
        grid.passes[i] = (GridPass){(PassKind)kind, stage, i / m % CHUNKS, i % m, -1};
    }
    // 1. The pattern
    for (int i = 0; i < grid.count; i++) {
        GridPass *pass = &grid.passes[i];
        PatternStart at = start(p, pass->stage);
        const int *begin = pass->kind == PASS_F ? at.forward : at.input;
        if (pass->kind != PASS_W) move_(&grid, pass, begin[pass->chunk] + PERIOD * pass->microbatch);
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
            const GridPass *pass = *grid_at_(&grid, s, t);
            if (pass != NULL) list_compute(&list, kinds[pass->kind], pass->chunk, pass->microbatch);
        }
        list_finish(&list, &schedule->stage[s]);
    }
    free_all(grid.passes, grid.order, grid.at);
    schedule_finish(schedule, 0);
    return schedule;
}

Schedule *make_v_half_(const ScheduleSpec *spec, int slots) {
    return make_pattern_("v-half", spec, slots, v_half_start_);
}

Schedule *make_v_min_(const ScheduleSpec *spec, int slots) { return make_pattern_("v-min", spec, slots, v_min_start_); }
