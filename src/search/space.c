// Enumerates shapes and schedules and turns layouts into configurations. All of this is arithmetic on keys, except for
// recomputed layers: the number that a stage needs is found by counting bytes.
#include "space.h"

#include <stdlib.h>
#include <string.h>

SearchSpace space_make(const Config *base, const Planner *planner, int64_t world) {
    return (SearchSpace){{base, layout_of(base), layout_decided(base, true), world}, planner};
}

bool space_fixes(const SearchSpace *space, LayoutMask keys) { return (space->keys.fixed & keys) != 0; }

RunLayout space_start(const SearchSpace *space) {
    RunLayout start = {.tensor = 1,
                       .pipeline = 1,
                       .context = 1,
                       .data = 1,
                       .micro_batch = 1,
                       .attention = ATTENTION_FLASH,
                       .name = schedule_kind_plain(),
                       .chunks = 1,
                       .slices = 1,
                       .split = SPLIT_OFF,
                       .bpipe = BPIPE_OFF,
                       .evict_to = space->keys.given.evict_to};
    LayoutMask lists = LAYOUT_BIT(layers) | LAYOUT_BIT(recompute) | LAYOUT_BIT(attention) | LAYOUT_BIT(pointwise);
    for (int i = 0; i < LAYOUT_COUNT; i++)
        if ((space->keys.fixed & lists) >> i & 1) layout_put(&start, i, layout_get(&space->keys.given, i));
    return start;
}

// ---------------------------------------------------------------- shapes and schedules

PartTimes space_times(const SearchSpace *space, const RunLayout *shape) {
    Config config = *space->keys.base;
    StageShape at;
    RunLayout plain = *shape;
    plain.name = schedule_kind_plain();
    plain.chunks = 1;
    plain.layers = LAYERS_EVEN;
    layout_set(&plain, &config);
    Schedule one = {.stages = 1, .chunks = 1};
    stage_shape(&at, space->planner->model, &config, &one, space->planner->be, 0, 0);
    CountSource source = {.hardware = &space->planner->hardware,
                          .config = &config,
                          .model = space->planner->model,
                          .cache = space->planner->counted};
    return counted_parts(&source, &at);
}

// Returns whether a shape with NCCL is no faster per layer than the same shape in which the tensor ranks of a node copy
// to each other. The shape with NCCL is then no candidate, since it would only save the receive buffers of the copies.
static bool copies_suffice_(const SearchSpace *space, const RunLayout *shape) {
    RunLayout copying = *shape;
    copying.collectives = COLLECTIVES_AUTO;
    if (!space_fixes(space, LAYOUT_BIT(overlap))) copying.overlap = OVERLAP_AUTO;
    if (shape->collectives != COLLECTIVES_NCCL || space_fixes(space, LAYOUT_BIT(collectives))) return false;
    return space_times(space, shape).layer >= space_times(space, &copying).layer;
}

// Measured and modelled times are not comparable, so with a profile only the shapes that it covers are returned.
LayoutList space_shapes(const SearchSpace *space) {
    const Planner *planner = space->planner;
    RunLayout start = space_start(space);
    LayoutList all = layout_walk(&space->keys, LAYOUT_tensor, LAYOUT_pointwise, &start);
    Config config = *space->keys.base;
    char why[256];
    int64_t count = 0;
    for (int64_t i = 0; i < all.count; i++) {
        layout_set(&all.layouts[i], &config);
        if (copies_suffice_(space, &all.layouts[i])) continue;
        if (!planner->measured ||
            profile_differs(&planner->profile, &config, planner->hardware.device, why, sizeof why) == NULL)
            all.layouts[count++] = all.layouts[i];
    }
    all.count = count;
    return all;
}

// Skips chunks and split backwards for a single stage, which has no bubble to fill, unless -o fixes the schedule.
LayoutList space_schedules(const SearchSpace *space, const RunLayout *shape) {
    LayoutList all = layout_walk(&space->keys, LAYOUT_name, LAYOUT_split, shape);
    Config config = *space->keys.base;
    int64_t count = 0;
    for (int64_t i = 0; i < all.count; i++) {
        const RunLayout *at = &all.layouts[i];
        bool useless = at->pipeline == 1 && (at->chunks > 1 || at->split == SPLIT_ON);
        if (useless && !space_fixes(space, LAYOUT_BIT(name))) continue;
        layout_set(at, &config);
        if (config_schedule_legal(&config)) all.layouts[count++] = *at;
    }
    all.count = count;
    return all;
}

void space_evict(const SearchSpace *space, RunLayout *layout, int target) {
    layout->bpipe = BPIPE_ON;
    layout->evict_to = target;
    layout->slots = space_fixes(space, LAYOUT_BIT(slots)) ? space->keys.given.slots : 0;
    layout->load_ahead = space_fixes(space, LAYOUT_BIT(load_ahead)) ? space->keys.given.load_ahead : 0;
}

// ---------------------------------------------------------------- layers

// Writes the number of layers of each chunk, dealt out to balance time.
static void balance_(const SearchSpace *space, const RunLayout *layout, int16_t *layers) {
    int parts = layout->pipeline * layout->chunks;
    Schedule placed = {
        .stages = layout->pipeline, .chunks = layout->chunks, .placement = schedule_kinds[layout->name].placement};
    PartTimes times = space_times(space, layout);
    double load[CONFIG_MAX_STAGES] = {0};
    load[0] += times.embedding;
    load[parts - 1] += times.head;
    layout_deal_layers(&placed, space->keys.base->model.layers, times.layer, load, layers);
}

bool space_balance_matters(const SearchSpace *space, const RunLayout *layout) {
    Config config = *space->keys.base;
    RunLayout even = *layout;
    int16_t balanced[CONFIG_MAX_STAGES];
    if (space_fixes(space, LAYOUT_BIT(layers))) return false;
    even.layers = LAYERS_EVEN;
    layout_set(&even, &config);
    balance_(space, layout, balanced);
    size_t bytes = (size_t)(layout->pipeline * layout->chunks) * sizeof *balanced;
    return memcmp(balanced, config.parallel.layers_per_stage, bytes) != 0;
}

// ---------------------------------------------------------------- recomputed layers

// Finds by bisection, on all stages at once, the fewest recomputed layers that let a stage fit. Both stages of a pair
// have slots for the pair's larger bundle, so the caller has to count the bytes of the result again.
static bool recompute_(const SearchSpace *space, Config *config) {
    int64_t p = config->parallel.pipeline;
    int16_t *of = config->schedule.recompute_of_stage;
    const Planner *planner = space->planner;
    Error ignored = {0};
    ScheduleLoan loan = planner_borrow(planner, config, &ignored);
    if (loan.schedule == NULL) return false;
    int16_t low[LAYOUT_MOST_STAGES], high[LAYOUT_MOST_STAGES];
    double limit = (double)planner->hardware.memory_bytes;
    config->schedule.recompute_given = p;
    bool all = true, open = true;
    for (int64_t s = 0; s < p; s++) low[s] = -1, high[s] = of[s] = (int16_t)config->model.layers;
    for (bool first = true; open && all; first = false) {
        Plan plan = planner_plan(planner, config, loan.schedule);
        open = false;
        for (int64_t s = 0; s < p; s++) {
            double bytes = (double)memory_total(&plan.stage[s].memory);
            bool fits = plan_lacks(bytes, limit, config->hardware.reserve_gib) <= 0;
            if (first) high[s] = of[s] = (int16_t)plan.stage[s].at.layers;
            if (first && !fits) all = false;
            *(fits ? &high[s] : &low[s]) = of[s];
        }
        for (int64_t s = 0; s < p; s++) {
            open = open || high[s] - low[s] > 1;
            if (high[s] - low[s] > 1) of[s] = (int16_t)(low[s] + (high[s] - low[s]) / 2);
            else of[s] = high[s];
        }
        plan_free(&plan);
    }
    schedule_cache_return(&loan);
    return all;
}

// Sets `layers` recomputed layers on each evicting stage (half: only in the first half of the stages), which makes its
// bundles smaller. Returns whether this is a separate candidate: with `half`, only if the last stage also evicts.
static bool recompute_evicting_(const SearchSpace *space, int layers, bool half, Config *config) {
    Error ignored = {0};
    ScheduleLoan loan = planner_borrow(space->planner, config, &ignored);
    if (loan.schedule == NULL) return false;
    config->schedule.recompute_given = config->parallel.pipeline;
    int stages = loan.schedule->stages, last = half ? (stages + 1) / 2 : stages;
    bool open = !half || plan_stage_evicts(loan.schedule, stages - 1);
    for (int s = 0; s < stages; s++)
        config->schedule.recompute_of_stage[s] = s < last && plan_stage_evicts(loan.schedule, s) ? (int16_t)layers : 0;
    schedule_cache_return(&loan);
    return open;
}

bool space_config(const SearchSpace *space, const RunLayout *layout, Config *config) {
    *config = *space->keys.base;
    layout_set(layout, config);
    if (layout->layers == LAYERS_BY_TIME) {
        balance_(space, layout, config->parallel.layers_per_stage);
        config->parallel.layers_given = layout->pipeline * layout->chunks;
    }
    int trade = RECOMPUTE_EVICTING - layout->recompute;
    if (trade > 0) return recompute_evicting_(space, trade / 2, trade % 2 == 1, config);
    return layout->recompute != RECOMPUTE_TO_FIT || recompute_(space, config);
}
