// Enumerates shapes and schedules and turns layouts into configurations. All of this is arithmetic on keys, except for
// recomputed layers: the number that a stage needs is found by counting bytes.
#include "space.h"

#include "foreign.h"

#include "base/alloc.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SearchSpace space_make(const Config *base, const Planner *planner, int64_t world) {
    return (SearchSpace){{base, base, layout_of(base), layout_decided(base, true), world, 0, 0}, planner};
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

// Makes one stage with all layers of a shape. config: see space_set.
static void space_stage_(const SearchSpace *space, const RunLayout *shape, Config *config, StageShape *at) {
    RunLayout plain = *shape;
    plain.name = schedule_kind_plain();
    plain.chunks = 1;
    plain.layers = LAYERS_EVEN;
    layout_set(&plain, config);
    Schedule one = {.stages = 1, .chunks = 1};
    stage_shape(at, config, &one, space->planner->be, 0, 0);
}

static CountSource count_source_(const SearchSpace *space, const Config *config) {
    return (CountSource){.hardware = &space->planner->hardware,
                         .config = config,
                         .model = space->planner->model,
                         .memo = space->planner->counted};
}

PartTimes space_times(const SearchSpace *space, const RunLayout *shape, Config *config) {
    RunLayout key[2] = {{0}}; // an even number of integers
    PartTimes times;
    StageShape at;
    for (int i = LAYOUT_tensor; i <= LAYOUT_pointwise; i++) layout_put(key, i, layout_get(shape, i));
    if (memo_find(space->planner->parts, key, &times)) return times;
    space_stage_(space, shape, config, &at);
    CountSource source = count_source_(space, config);
    times = counted_parts(&source, &at, true);
    memo_keep(space->planner->parts, key, &times, sizeof times);
    return times;
}

PartTimes space_layer_times(const SearchSpace *space, const RunLayout *shape, const PartTimes *ends, Config *config) {
    StageShape at;
    space_stage_(space, shape, config, &at);
    CountSource source = count_source_(space, config);
    PartTimes times = counted_parts(&source, &at, false);
    times.embedding = ends->embedding, times.head = ends->head;
    return times;
}

PartTimes space_least_times(const SearchSpace *space, const RunLayout *division, Config *config) {
    PartTimes least = {.layer = INFINITY};
    RunLayout at = *division, fastest = at;
    StageShape stage;
    int64_t modes[LAYOUT_CANDIDATES], sequence[LAYOUT_CANDIDATES];
    int both = layout_candidates(&space->keys, LAYOUT_sequence, &at, sequence);
    if (both > 0) at.sequence = (int32_t)sequence[both - 1];
    at.collectives = COLLECTIVES_NCCL;
    at.overlap = at.tensor > 1 ? OVERLAP_ON : OVERLAP_OFF;
    int count = layout_candidates(&space->keys, LAYOUT_attention, &at, modes);
    CountSource source = count_source_(space, config);
    source.free_groups = true;
    for (int i = 0; i < count; i++) {
        at.attention = (int32_t)modes[i];
        space_stage_(space, &at, config, &stage);
        PartTimes times = counted_parts(&source, &stage, false);
        if (times.layer < least.layer) least = times, fastest = at;
    }
    space_stage_(space, &fastest, config, &stage);
    return counted_parts(&source, &stage, true);
}

LayoutList space_divisions(const SearchSpace *space) {
    RunLayout start = space_start(space);
    return layout_walk(&space->keys, LAYOUT_tensor, LAYOUT_micro_batch, &start);
}

// A shape with the memory and the time of its first layer.
typedef struct Variant {
    RunLayout layout;
    MemoryBytes memory; // memory of one layer, embedding and head
    int64_t bundle, message;
    PartTimes times;
    bool useless;
} Variant;

static Variant variant_(const SearchSpace *space, const RunLayout *shape, Config *config) {
    StateBytes states;
    int64_t staged;
    StageShape at;
    space_stage_(space, shape, config, &at);
    CountSource source = count_source_(space, config);
    Variant variant = {.layout = *shape, .times = counted_parts(&source, &at, false)};
    at.layers = at.chunk[0].layers = 1;
    at.chunk[0].first_layer = config->model.layers - 1, at.chunk[0].dense = 0;
    stage_state_bytes(&variant.memory, &states, &staged, &space->planner->table, config, &at);
    stage_work_bytes(&variant.memory, &space->planner->table, config, &at);
    variant.bundle = at.layer_bundle;
    variant.message = at.message_bytes;
    return variant;
}

// Returns whether a takes at least as much memory and time as b.
static bool no_better_(const Variant *a, const Variant *b) {
    bool worse = a->bundle >= b->bundle && a->message >= b->message && a->times.forward >= b->times.forward &&
                 a->times.layer - a->times.forward >= b->times.layer - b->times.forward;
    for (int i = 0; i < MEMORY_CATEGORIES && worse; i++) worse = a->memory.bytes[i] >= b->memory.bytes[i];
    return worse;
}

// Tries all values of the keys first .. last, and removes layouts that are no better than another layout. Of equal
// layouts, it keeps the first.
static void space_branch_(const SearchSpace *space, LayoutList *list, int first, int last, Config *config) {
    LayoutList kept = {0};
    for (int64_t of = 0; of < list->count; of++) {
        LayoutList all = layout_walk(&space->keys, first, last, &list->layouts[of]);
        Variant *variants = xcalloc((size_t)all.count, sizeof *variants);
        for (int64_t i = 0; i < all.count && all.count > 1; i++) variants[i] = variant_(space, &all.layouts[i], config);
        for (int64_t i = 0; i < all.count; i++)
            for (int64_t k = 0; k < all.count && !variants[i].useless; k++)
                variants[i].useless = i != k && !variants[k].useless && no_better_(&variants[i], &variants[k]) &&
                                      (k < i || !no_better_(&variants[k], &variants[i]));
        kept.layouts = xrealloc(kept.layouts, (size_t)(kept.count + all.count) * sizeof *kept.layouts);
        for (int64_t i = 0; i < all.count; i++)
            if (!variants[i].useless) kept.layouts[kept.count++] = all.layouts[i];
        free_all(variants, all.layouts);
    }
    free(list->layouts);
    *list = kept;
}

// Collectives and attention do not change each other's time, so they are decided one after the other. Recomputing
// outputs saves memory and takes time, so both are kept. Measured and modelled times are not comparable, so with a
// profile only the shapes that it covers are returned.
LayoutList space_shapes(const SearchSpace *space, const RunLayout *division, Config *config) {
    const Planner *planner = space->planner;
    LayoutList list = layout_walk(&space->keys, LAYOUT_COUNT, -1, division), shapes = {0};
    space_branch_(space, &list, LAYOUT_sequence, LAYOUT_overlap, config);
    space_branch_(space, &list, LAYOUT_attention, LAYOUT_attention, config);
    char why[256];
    for (int64_t of = 0; of < list.count; of++) {
        LayoutList all = layout_walk(&space->keys, LAYOUT_pointwise, LAYOUT_pointwise, &list.layouts[of]);
        shapes.layouts = xrealloc(shapes.layouts, (size_t)(shapes.count + all.count) * sizeof *shapes.layouts);
        for (int64_t i = 0; i < all.count; i++) {
            layout_set(&all.layouts[i], config);
            if (!planner->measured ||
                profile_differs(&planner->profile, config, planner->hardware.device, why, sizeof why) == NULL)
                shapes.layouts[shapes.count++] = all.layouts[i];
        }
        free(all.layouts);
    }
    free(list.layouts);
    return shapes;
}

LayoutList space_schedules(const SearchSpace *space, const RunLayout *shape, bool useful, Config *config) {
    LayoutList all = layout_walk(&space->keys, LAYOUT_name, LAYOUT_split, shape);
    Error ignored = {0};
    int64_t count = 0;
    for (int64_t i = 0; i < all.count; i++) {
        const RunLayout *at = &all.layouts[i];
        bool plain = at->chunks == 1 && at->split != SPLIT_ON && !schedule_kinds[at->name].keeps_all;
        if (useful && at->pipeline == 1 && !plain && !space_fixes(space, LAYOUT_BIT(name))) continue;
        layout_set(at, config);
        bool whole = config->parallel.shard_gradients == SHARD_ON && !config_shards_gradients(config);
        if (!whole && config_schedule_legal(config) && config_check_fp8(config, &ignored) == 0)
            all.layouts[count++] = *at;
    }
    all.count = count;
    return all;
}

Schedule space_one_slot(const Config *config) {
    const ScheduleKind *kind = config_schedule_kind(config);
    int p = (int)config->parallel.pipeline;
    StageSchedule *stages = xcalloc((size_t)p, sizeof *stages);
    for (int s = 0; s < p; s++) stages[s].own_slots = 1;
    return (Schedule){.stages = p,
                      .chunks = config_chunks(config),
                      .slices = config_slices(config),
                      .placement = kind->placement,
                      .microbatches = (int)config_microbatches(config),
                      .slots = 1,
                      .edge_buffers = SCHEDULE_EDGE_BUFFERS,
                      .split = kind->splits || config->schedule.split_backward == SPLIT_ON,
                      .stage = stages};
}

// Plans a layout with one slot per stage, of one slice.
static Plan plan_one_slot_(const SearchSpace *space, const RunLayout *layout, Config *config) {
    space_set(space, layout, config);
    Schedule lists = space_one_slot(config);
    lists.slices = 1;
    Plan plan = planner_plan(space->planner, config, &lists);
    free(lists.stage);
    return plan;
}

// Frees the plan. Returns `bytes`, a sum over its stages, per stage, and without a tied embedding's second copy on the
// last stage: where a V has both ends on one rank, there is only one copy.
static int64_t per_stage_(int64_t bytes, Plan *plan, const Config *config) {
    int stages = plan->stages;
    bool tied = config->model.tie_embeddings == TIE_TRUE && stages > 1;
    if (tied) bytes -= plan->stage[stages - 1].memory.bytes[MEMORY_EMBEDDING];
    plan_free(plan);
    return bytes / stages;
}

int64_t space_least_bytes(const SearchSpace *space, const RunLayout *shape, Config *config) {
    bool fixed = space_fixes(space, LAYOUT_BIT(recompute)); // else layers may be recomputed, and bundles nearly empty
    int64_t bytes = 0;
    if (space_fixes(space, LAYOUT_BIT(layers))) return 0;
    Plan plan = plan_one_slot_(space, shape, config);
    for (int s = 0; s < plan.stages; s++) {
        const PlanStage *stage = &plan.stage[s];
        bytes += memory_total(&stage->memory) - stage->memory.bytes[MEMORY_OWN_SLOTS];
        if (fixed) bytes += stage->slot_bytes / layout_most_chunks(&space->keys);
    }
    return per_stage_(bytes, &plan, config);
}

int64_t space_division_bytes(const SearchSpace *space, const RunLayout *division, Config *config) {
    static const double PADDED = 0.999; // a cut may pad fewer tensors to their alignment
    int64_t bytes = 0;
    if (space->keys.base->program != 0 || space_fixes(space, LAYOUT_BIT(layers))) return 0;
    Plan plan = plan_one_slot_(space, division, config);
    for (int s = 0; s < plan.stages; s++) {
        const int64_t *memory = plan.stage[s].memory.bytes;
        bytes += memory[MEMORY_WEIGHTS] + memory[MEMORY_MASTERS] + memory[MEMORY_OPTIMIZER];
        bytes += memory[MEMORY_EMBEDDING] + (config_microbatches(config) > 1 ? memory[MEMORY_GRADIENTS] : 0);
    }
    return (int64_t)(PADDED * (double)per_stage_(bytes, &plan, config));
}

// ---------------------------------------------------------------- ways to keep bundles

typedef struct WayWalk {
    const SearchSpace *space;
    unsigned ways;
    SpaceVisit *visit;
    void *argument;
} WayWalk;

// Recomputes as many layers as needed to fit.
static void walk_to_fit_(const WayWalk *walk, const RunLayout *layout, const Forecast *kept) {
    RunLayout recomputed = *layout;
    if ((walk->ways & WAYS_TO_FIT) == 0 || walk->space->planner->hardware.memory_bytes == 0) return;
    if (space_fixes(walk->space, LAYOUT_BIT(recompute))) return;
    recomputed.recompute = RECOMPUTE_TO_FIT;
    walk->visit(walk->argument, &recomputed, kept);
}

// Trades recomputed layers for shorter transfers: the stages that evict recompute 1, 2, 4, ... layers, which makes
// their bundles smaller. If six of eight stages evict to the host: [1,1,1,1,1,1,0,0], [2,2,2,2,2,2,0,0], ... If every
// stage evicts, trades on the first half of the stages are also tried, [1,1,1,1,0,0,0,0], ..., since these stages keep
// bundles longest. If one does not fit, those with fewer layers do not fit either.
static void walk_trades_(const WayWalk *walk, const RunLayout *evicting, const Forecast *kept) {
    RunLayout layout = *evicting;
    int64_t most = walk->space->keys.base->model.layers / layout.pipeline;
    int largest = 1, halves = evicting->evict_to == EVICT_TO_HOST ? 2 : 1; // to partners, only the first half evicts
    if (space_fixes(walk->space, LAYOUT_BIT(recompute))) return;
    while (2 * largest <= most) largest *= 2;
    for (int half = 0; half < halves; half++)
        for (int layers = largest; layers > 0 && layers <= most; layers /= 2) {
            layout.recompute = RECOMPUTE_EVICTING - (2 * layers + half);
            Forecast tried = walk->visit(walk->argument, &layout, kept);
            if (tried.possible && !tried.fits) break;
        }
}

// Evicts to one target: with the fewest slots, then with the given slots, or with as many as fit.
static void walk_target_(const WayWalk *walk, const RunLayout *list, int target, int placement, const Forecast *kept) {
    const SearchSpace *space = walk->space;
    const RunLayout *given = &space->keys.given;
    if (space_fixes(space, LAYOUT_BIT(bpipe)) && given->bpipe == BPIPE_OFF) return;
    if (space_fixes(space, LAYOUT_BIT(evict_to)) && given->evict_to != target) return;
    if (target == EVICT_TO_PEER && (!schedule_kinds[list->name].pairs || list->pipeline == 1)) return;
    RunLayout layout = *list;
    layout.bpipe = BPIPE_ON;
    layout.evict_to = target;
    layout.placement = placement;
    layout.slots = space_fixes(space, LAYOUT_BIT(slots)) ? given->slots : 0;
    layout.load_ahead = space_fixes(space, LAYOUT_BIT(load_ahead)) ? given->load_ahead : 0;
    Forecast least = walk->visit(walk->argument, &layout, kept);
    if (!least.possible) return;
    // The given slots, if the given configuration evicts to this target in this schedule.
    LayoutMask same = LAYOUT_BIT(evict_to) | LAYOUT_BIT(name) | LAYOUT_BIT(chunks);
    if (given->group > 0) same |= LAYOUT_BIT(group);
    if (given->split != SPLIT_AUTO) same |= LAYOUT_BIT(split);
    bool gives = given->slots > 0 && layout_evicts(given) && layout_keeps(&layout, given, same);
    if ((walk->ways & WAYS_GIVEN) != 0 && gives) {
        layout.slots = given->slots;
        layout.load_ahead = given->load_ahead;
        walk->visit(walk->argument, &layout, kept);
    }
    if ((walk->ways & WAYS_TO_FIT) == 0) return;
    if (!kept->fits) walk_trades_(walk, &layout, kept);
    if (!least.fits) {
        walk_to_fit_(walk, &layout, kept);
        return;
    }
    int64_t slots = least.slots;
    if (kept->fits || space_fixes(space, LAYOUT_BIT(slots)) || least.slot_bytes <= 0) return;
    if (!isinf(least.lacks)) slots += (int64_t)(-least.lacks / (double)least.slot_bytes);
    layout.slots = (int32_t)min_i64(slots, kept->slots - 1);
    if (layout.slots > least.slots) walk->visit(walk->argument, &layout, kept);
}

static void walk_evictions_(const WayWalk *walk, const RunLayout *list, const Forecast *kept) {
    const LayoutSpace *keys = &walk->space->keys;
    bool open = layout_places(keys, list) && !layout_places_both(keys, list);
    for (int placement = PLACEMENT_LINEAR; placement <= PLACEMENT_STAGES; placement++)
        if (placement == list->placement || (open && placement != PLACEMENT_STAGES))
            walk_target_(walk, list, EVICT_TO_PEER, placement, kept);
    walk_target_(walk, list, EVICT_TO_HOST, list->placement, kept);
}

void space_ways(const SearchSpace *space, const RunLayout *list, unsigned ways, SpaceVisit *visit, void *argument) {
    const Config *base = space->keys.base;
    WayWalk walk = {space, ways, visit, argument};
    Forecast kept = {.slots = INT32_MAX};
    if (!space_fixes(space, LAYOUT_BIT(bpipe)) || space->keys.given.bpipe != BPIPE_ON) {
        kept = visit(argument, list, NULL);
        if (!kept.possible) kept.slots = INT32_MAX; // not planned: with evictions it may matter all the same
        if (kept.possible && !kept.fits) walk_to_fit_(&walk, list, &kept);
    }
    walk_evictions_(&walk, list, &kept);
    RunLayout saving = *list;
    saving.recompute = (int32_t)base->model.layers;
    if ((ways & WAYS_ALL_LAYERS) != 0 && !space_fixes(space, LAYOUT_BIT(recompute))) visit(argument, &saving, &kept);
    if ((ways & WAYS_SAVING) == 0) return;
    bool all = true; // every stage of the base recomputes all of its layers, if each has one chunk
    int p = (int)base->parallel.pipeline;
    for (int s = 0; s < p; s++) all = all && config_recompute(base, s) >= config_layers(base, p, s);
    saving = *list;
    // Keeping the experts' rows may save a seventh of a step, so it is tried even if the configuration does not.
    int from = list->pointwise == RECOMPUTE_EXPERTS ? RECOMPUTE_NONE : list->pointwise + 1;
    for (int kind = from; kind <= RECOMPUTE_POINTWISE && list->pointwise != POINTWISE_LISTED; kind++) {
        bool same = kind == list->pointwise, lacks = kind == RECOMPUTE_EXPERTS && base->model.experts == 0;
        if (all || same || lacks) continue;
        saving.pointwise = kind;
        kept = visit(argument, &saving, NULL);
        if (!kept.fits) walk_evictions_(&walk, &saving, &kept);
    }
    if (list->chunks > 1) return;
    saving = *list;
    saving.recompute = (int32_t)base->model.layers;
    if (!all) visit(argument, &saving, NULL);
    saving = *list;
    saving.attention = ATTENTION_RECOMPUTE;
    if (base->attention.mode == ATTENTION_NONE) visit(argument, &saving, NULL);
}

// ---------------------------------------------------------------- layers

// Writes the number of layers of each chunk, dealt out to balance time.
static void balance_(const SearchSpace *space, const RunLayout *layout, const PartTimes *times, int16_t *layers) {
    int parts = layout->pipeline * layout->chunks;
    Schedule placed = {
        .stages = layout->pipeline, .chunks = layout->chunks, .placement = schedule_kinds[layout->name].placement};
    double load[CONFIG_MAX_STAGES];
    memset(load, 0, (size_t)parts * sizeof *load);
    load[0] += times->embedding;
    load[parts - 1] += times->head;
    layout_deal_layers(&placed, space->keys.base->model.layers, times->layer, load, layers);
}

bool space_set_by_time(const SearchSpace *space, const RunLayout *even, Config *config) {
    int16_t spread[CONFIG_MAX_STAGES];
    if (space_fixes(space, LAYOUT_BIT(layers)) || foreign_deals(space->keys.base)) return false;
    RunLayout by_time = *even;
    by_time.layers = LAYERS_BY_TIME;
    size_t bytes = (size_t)(even->pipeline * even->chunks) * sizeof *spread;
    memcpy(spread, config->parallel.layers_per_stage, bytes);
    space_set(space, &by_time, config);
    return memcmp(spread, config->parallel.layers_per_stage, bytes) != 0;
}

// ---------------------------------------------------------------- recomputed layers

// Finds by bisection, on all stages at once, the fewest recomputed layers that let a stage fit. First tries all layers
// and none: the first recomputed layer adds a bundle of its own. If a stage does not fit either way, each stage gets
// what takes fewer bytes there. Both stages of a pair have slots for the pair's larger bundle, so the caller has to
// count the bytes of the result again. Returns false if there is no schedule.
static bool recompute_(const SearchSpace *space, Config *config) {
    int64_t p = config->parallel.pipeline;
    int16_t *of = config->schedule.recompute_of_stage;
    const Planner *planner = space->planner;
    Error ignored = {0};
    ScheduleLoan loan = planner_borrow(planner, config, &ignored);
    if (loan.schedule == NULL) return false;
    int16_t low[LAYOUT_MOST_STAGES], high[LAYOUT_MOST_STAGES];
    double limit = (double)planner->hardware.memory_bytes, reserve = config->hardware.reserve_gib;
    double most[LAYOUT_MOST_STAGES]; // bytes with all layers recomputed
    config->schedule.recompute_given = p;
    bool possible = true, open = true;
    for (int64_t s = 0; s < p; s++) low[s] = -1, of[s] = (int16_t)config->model.layers;
    for (int tried = 0; open; tried++) {
        Plan plan = planner_plan(planner, config, loan.schedule);
        for (int64_t s = 0; s < p; s++) {
            double bytes = (double)memory_total(&plan.stage[s].memory);
            if (tried == 0) most[s] = bytes, high[s] = (int16_t)plan.stage[s].at.layers;
            else if (plan_lacks(bytes, limit, reserve) <= 0 || (tried == 1 && bytes < most[s])) high[s] = of[s];
            else if (tried > 1) low[s] = of[s];
            if (tried == 1) possible = possible && plan_lacks(fmin(bytes, most[s]), limit, reserve) <= 0;
        }
        plan_free(&plan);
        open = tried == 0;
        for (int64_t s = 0; s < p; s++) {
            open = open || (possible && high[s] - low[s] > 1);
            of[s] = tried == 0 ? 0 : possible ? (int16_t)(low[s] + (high[s] - low[s] + 1) / 2) : high[s];
        }
    }
    schedule_cache_return(&loan);
    return true;
}

// Lets each evicting stage, or only those in the first half, recompute layers, which makes its bundles smaller. Returns
// false if the half is not a separate candidate, because the last stage does not evict.
static bool trade_(const SearchSpace *space, int trade, Config *config) {
    Error ignored = {0};
    ScheduleLoan loan = planner_borrow(space->planner, config, &ignored);
    if (loan.schedule == NULL) return false;
    int half = trade % 2, stages = loan.schedule->stages, last = half ? (stages + 1) / 2 : stages;
    bool open = !half || loan.schedule->stage[stages - 1].moves > 0;
    config->schedule.recompute_given = stages;
    for (int s = 0; s < stages; s++)
        config->schedule.recompute_of_stage[s] =
            s < last && loan.schedule->stage[s].moves > 0 ? (int16_t)(trade / 2) : 0;
    schedule_cache_return(&loan);
    return open;
}

bool space_set(const SearchSpace *space, const RunLayout *layout, Config *config) {
    const Config *base = space->keys.base;
    const ScheduleConfig *listed = &base->schedule;
    int trade = RECOMPUTE_EVICTING - layout->recompute;
    PartTimes times = {0};
    bool by_time = layout->layers == LAYERS_BY_TIME;
    if (by_time) times = space_times(space, layout, config);
    layout_set(layout, config);
    foreign_deal(config);
    if (layout->layers == LAYERS_LISTED) { // counting a shape (space_stage_) spreads the layers evenly
        config->parallel.layers_given = base->parallel.layers_given;
        config->parallel.layers_count = base->parallel.layers_count;
        memcpy(config->parallel.layers_per_stage, base->parallel.layers_per_stage,
               (size_t)base->parallel.layers_given * sizeof *base->parallel.layers_per_stage);
    }
    if (layout->recompute == RECOMPUTE_LISTED) { // the layout before may have recomputed other layers
        config->schedule.recompute_given = listed->recompute_given;
        memcpy(config->schedule.recompute_of_stage, listed->recompute_of_stage,
               (size_t)listed->recompute_given * sizeof *listed->recompute_of_stage);
    }
    if (trade > 0 && !trade_(space, trade, config)) return false;
    if (by_time) {
        balance_(space, layout, &times, config->parallel.layers_per_stage);
        config->parallel.layers_given = layout->pipeline * layout->chunks;
    }
    return layout->recompute != RECOMPUTE_TO_FIT || recompute_(space, config);
}

bool space_config(const SearchSpace *space, const RunLayout *layout, Config *config) {
    *config = *space->keys.base;
    return space_set(space, layout, config);
}
