// Finds the fewest ranks on which the model fits: for each number of tensor and data ranks, by bisection over the
// stages. More stages need less memory each, and so do more data ranks, which share the optimizer's state.
#include "space.h"

#include "base/units.h"

#include <stdlib.h>

// Whether one world holds the model.
typedef struct WorldTrial {
    const SearchSpace *space;
    Config config;
    SmallestWorld *smallest;
    bool fits;
    int status;
    Error *err;
} WorldTrial;

static Forecast try_world_(void *argument, const RunLayout *way, const Forecast *kept) {
    WorldTrial *trial = argument;
    Forecast forecast = {0};
    (void)kept;
    if (trial->fits || trial->status != 0) return forecast;
    space_set(trial->space, way, &trial->config);
    trial->status = planner_forecast_config(trial->space->planner, &trial->config, false, &forecast, trial->err);
    trial->fits = trial->status == 0 && forecast.possible && forecast.fits;
    if (trial->fits) trial->smallest->at = *way;
    return forecast;
}

// Tries the ranks of a layout with every number of slices and every schedule, the simplest first. legal: asks only
// whether there is a schedule, whether or not it fits.
static int try_ranks_(WorldTrial *trial, RunLayout *at, bool legal) {
    const SearchSpace *space = trial->space;
    const Hardware *hardware = &space->planner->hardware;
    LayoutSpace keys = space->keys;
    keys.world = (int64_t)at->pipeline * at->tensor * at->context * at->data;
    int64_t values[LAYOUT_CANDIDATES], slices[LAYOUT_CANDIDATES];
    int sequence, expert = layout_candidates(&space->keys, LAYOUT_expert, at, values);
    trial->fits = false;
    if (expert == 0) return 0;
    at->expert = (int32_t)values[expert - 1];
    int count = layout_candidates(&space->keys, LAYOUT_slices, at, slices);
    for (int i = 0; i < count && !trial->fits; i++) {
        at->slices = (int32_t)slices[i];
        if ((sequence = layout_candidates(&space->keys, LAYOUT_sequence, at, values)) == 0) continue;
        at->sequence = (int32_t)values[sequence - 1];
        if (layout_candidates(&keys, LAYOUT_collectives, at, values) == 0) continue;
        if (layout_candidates(&keys, LAYOUT_micro_batch, at, values) == 0) continue;
        at->micro_batch = (int32_t)values[0];
        double least = legal ? 0 : (double)space_least_bytes(space, at, &trial->config);
        if (plan_lacks(least, (double)hardware->memory_bytes, space->keys.base->hardware.reserve_gib) > 0) continue;
        LayoutList lists = space_schedules(space, at, true, &trial->config);
        if (legal) trial->fits = lists.count > 0;
        for (int plain = 1; plain >= 0 && !legal; plain--)
            for (int64_t k = 0; k < lists.count; k++)
                if (schedule_kinds[lists.layouts[k].name].plain == plain)
                    space_ways(space, &lists.layouts[k], 0, try_world_, trial);
        free(lists.layouts);
    }
    return trial->status;
}

// Lists the values of a shape key, from 1 to `most`, that are possible in a world of value * at->tensor ranks. Returns
// their number.
static int64_t world_values_(const SearchSpace *space, int key, const RunLayout *at, int64_t most, int64_t *values) {
    int64_t found[LAYOUT_CANDIDATES], count = 0;
    LayoutSpace keys = space->keys;
    for (int64_t value = 1; value <= most; value++) {
        keys.world = value * at->tensor;
        int all = layout_candidates(&keys, key, at, found);
        if (all > 0 && found[all - 1] == value) values[count++] = value;
    }
    return count;
}

int space_smallest_world(const SearchSpace *space, SmallestWorld *world, Error *err) {
    const Config *base = space->keys.base;
    int64_t tensors[LAYOUT_CANDIDATES], contexts[LAYOUT_CANDIDATES], stages[LAYOUT_MOST_STAGES];
    int64_t batch = base->train.global_batch, longest = base->model.seq_len;
    WorldTrial trial = {.space = space, .config = *base, .smallest = world, .err = err};
    RunLayout at = space_start(space);
    *world = (SmallestWorld){0};
    at.recompute = (int32_t)base->model.layers;
    at.pointwise = RECOMPUTE_POINTWISE;
    for (int key = 0; key < LAYOUT_COUNT; key++)
        if (space->keys.fixed >> key & 1) layout_put(&at, key, layout_get(&space->keys.given, key));
    at.bpipe = BPIPE_OFF; // space_ways adds the evictions
    int64_t all = world_values_(space, LAYOUT_tensor, &at, base->model.heads, tensors);
    for (int64_t i = 0; i < all; i++) {
        at.tensor = (int32_t)tensors[i], at.pipeline = at.context = 1;
        int64_t parts = world_values_(space, LAYOUT_context, &at, min_i64(longest, LAYOUT_CANDIDATES), contexts);
        int64_t count = world_values_(space, LAYOUT_pipeline, &at, LAYOUT_MOST_STAGES, stages);
        for (int64_t d = 1; d <= batch; d++)
            for (int64_t c = 0; c < parts && batch % d == 0; c++) {
                int64_t able[LAYOUT_MOST_STAGES], ranks = at.tensor * d * contexts[c];
                int64_t fails = -1, works = 0, middle = -1;
                if (space_fixes(space, LAYOUT_BIT(data)) && d != space->keys.given.data) continue;
                at.context = (int32_t)contexts[c], at.data = (int32_t)d;
                for (int64_t i = 0; i < count && (world->ranks == 0 || stages[i] * ranks < world->ranks); i++) {
                    at.pipeline = (int32_t)stages[i];
                    if (try_ranks_(&trial, &at, true) != 0) return -1;
                    if (trial.fits) able[works++] = stages[i];
                }
                while (works - fails > 1) { // most worlds are too small even with the largest number of stages
                    middle = middle < 0 ? works - 1 : fails + (works - fails) / 2;
                    at.pipeline = (int32_t)able[middle];
                    if (try_ranks_(&trial, &at, false) != 0) return -1;
                    if (trial.fits) world->ranks = ranks * at.pipeline;
                    *(trial.fits ? &works : &fails) = middle;
                }
            }
    }
    return 0;
}
