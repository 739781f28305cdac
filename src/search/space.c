// Enumerates shapes and schedules and turns candidates into configurations. All of it is arithmetic on keys, except for
// the recomputed layers: counting bytes finds how many a stage needs.
#include "space.h"

#include "base/alloc.h"
#include "base/units.h"
#include "config/config_schema.h"

#include <stdlib.h>
#include <string.h>

bool space_fixes(const SearchSpace *space, const char *name) {
    const ConfigKey *key = config_find(name);
    if (space->base->place[key - config_keys] != CONFIG_OVERRIDE) return false;
    // Only integers have a word for "decide it yourself", kept as 0; lists are open if they have no entries.
    const char *field = (const char *)space->base + key->offset;
    if (key->type == KEY_LIST) return *(const int64_t *)((const char *)space->base + key->list->given) > 0;
    if (key->type == KEY_INT && key->zero_word != NULL) return *(const int64_t *)(const void *)field != 0;
    return strcmp(config_word(name, key->type == KEY_WORD ? *(const int *)(const void *)field : -1), "auto") != 0;
}

bool space_allows(const SearchSpace *space, const char *key, int64_t given, int64_t value) {
    return given == value || !space_fixes(space, key);
}

// ---------------------------------------------------------------- shapes

typedef struct ShapeList {
    Candidate *shapes;
    int64_t count, capacity;
} ShapeList;

// Returns whether the profile covers a shape. Measured times and times of the model are not compared with each other.
static bool profiled_(const SearchSpace *space, const Candidate *shape) {
    const Planner *planner = space->planner;
    char why[256];
    if (!planner->measured) return true;
    Config *config = xmalloc(sizeof *config);
    *config = *space->base;
    config->parallel.tensor = shape->tensor;
    config->parallel.pipeline = shape->pipeline;
    config->parallel.sequence = shape->sequence;
    if (!space_fixes(space, "attention.mode")) config_set_attention(config, shape->attention);
    bool measured = profile_differs(&planner->profile, config, planner->hardware.device, why, sizeof why) == NULL;
    free(config);
    return measured;
}

static void add_attentions_(const SearchSpace *space, ShapeList *list, Candidate shape) {
    for (int mode = ATTENTION_NONE; mode <= ATTENTION_FLASH; mode++) {
        if (!space_allows(space, "attention.mode", space->base->attention.mode, mode)) continue;
        shape.attention = mode;
        if (!profiled_(space, &shape)) continue;
        if (list->count == list->capacity) {
            list->capacity = 2 * list->capacity + 256;
            list->shapes = xrealloc(list->shapes, (size_t)list->capacity * sizeof *list->shapes);
        }
        list->shapes[list->count++] = shape;
    }
}

static void add_sequences_(const SearchSpace *space, ShapeList *list, Candidate shape) {
    const Config *base = space->base;
    for (int sequence = 0; sequence < 2; sequence++) {
        shape.sequence = sequence == 1;
        if (!space_allows(space, "parallel.sequence", base->parallel.sequence, shape.sequence)) continue;
        // With one tensor rank there is nothing to split.
        if (shape.sequence && shape.tensor == 1 && !space_fixes(space, "parallel.sequence")) continue;
        if (shape.sequence && base->model.seq_len % shape.tensor != 0) continue;
        add_attentions_(space, list, shape);
    }
}

static void add_micro_batches_(const SearchSpace *space, ShapeList *list, Candidate shape) {
    const Config *base = space->base;
    enum { MOST = 65536 }; // of schedule.micro_batch
    int64_t batch = base->train.global_batch, p = shape.pipeline;
    if (batch % shape.data != 0) return;
    batch /= shape.data;
    for (int64_t b = 1; b <= batch && b <= MOST; b++) {
        if (batch % b != 0 || (p > 1 && batch / b < p) || !plan_schedule_holds(p, batch / b)) continue;
        if (!space_allows(space, "schedule.micro_batch", base->schedule.micro_batch, b)) continue;
        shape.micro_batch = b;
        add_sequences_(space, list, shape);
    }
}

bool space_places(const SearchSpace *space, const Candidate *shape) {
    return shape->pipeline * shape->tensor > space->base->hardware.gpus_per_node &&
           !space_fixes(space, "parallel.placement");
}

bool space_places_both(const SearchSpace *space, const Candidate *shape) {
    return space->base->model.tie_embeddings == TIE_TRUE && space_places(space, shape);
}

bool space_lists_allow(const SearchSpace *space, int64_t p) {
    const Config *base = space->base;
    int64_t recompute = base->schedule.recompute_given, modes = base->attention.modes_given;
    if (space_fixes(space, "parallel.layers") && base->parallel.layers_given % p != 0) return false;
    if (space_fixes(space, "schedule.recompute_layers") && recompute > 1 && recompute != p) return false;
    return !space_fixes(space, "attention.mode") || modes <= 1 || modes == p;
}

static void add_pipelines_(const SearchSpace *space, ShapeList *list, Candidate shape) {
    const ParallelConfig *given = &space->base->parallel;
    int64_t left = space->world / shape.tensor;
    for (int64_t p = 1; p <= left && p <= SEARCH_MOST_STAGES && p <= space->base->model.layers; p++) {
        if (left % p != 0 || !space_allows(space, "parallel.pipeline", given->pipeline, p)) continue;
        if (!space_allows(space, "parallel.data", given->data, left / p) || !space_lists_allow(space, p)) continue;
        shape.pipeline = p;
        shape.data = left / p;
        shape.placement = space_places(space, &shape) ? PLACEMENT_LINEAR : (int)given->placement;
        add_micro_batches_(space, list, shape);
        if (!space_places_both(space, &shape)) continue;
        shape.placement = PLACEMENT_ADJACENT;
        add_micro_batches_(space, list, shape);
    }
}

// Tensor ranks exchange data several times a layer, so they stay within a node.
int64_t space_shapes(const SearchSpace *space, Candidate **shapes) {
    const Config *base = space->base;
    const ModelConfig *m = &base->model;
    ShapeList list = {0};
    for (int64_t t = 1; t <= space->world && t <= m->heads; t++) {
        if (space->world % t != 0 || m->heads % t != 0 || m->kv_heads % t != 0 || m->ffn % t != 0) continue;
        bool node = t <= base->hardware.gpus_per_node || space_fixes(space, "parallel.tensor");
        if (!node || !space_allows(space, "parallel.tensor", base->parallel.tensor, t)) continue;
        add_pipelines_(space, &list, (Candidate){.tensor = t, .evict = SEARCH_KEEP});
    }
    *shapes = list.shapes;
    return list.count;
}

// ---------------------------------------------------------------- schedules

// Takes a group or a delay from -o, and returns whether the rest agrees with -o.
static bool choice_allowed_(const SearchSpace *space, int64_t p, ScheduleChoice *choice) {
    const ScheduleConfig *given = &space->base->schedule;
    const ScheduleKind *kind = &schedule_kinds[choice->kind];
    if (!space_allows(space, "schedule.name", given->name, choice->kind)) return false;
    if (!space_allows(space, "schedule.chunks", given->chunks, choice->chunks)) return false;
    if (kind->delayed && given->delay != SCHEDULE_DELAY_MOST && space_fixes(space, "schedule.delay"))
        choice->delay = (int)given->delay;
    if (kind->grouped && space_fixes(space, "schedule.group")) {
        int64_t group = given->group == SCHEDULE_GROUP_HALF ? (p + 1) / 2 : given->group;
        if (choice->group != p) return false; // one of the two choices is enough
        choice->group = (int)group;
    }
    return space_allows(space, "schedule.split_backward", given->split_backward, choice->split ? SPLIT_ON : SPLIT_OFF);
}

int space_schedules(const SearchSpace *space, const Candidate *shape, ScheduleChoice choices[SCHEDULE_CHOICES]) {
    Config *config = xmalloc(sizeof *config);
    Candidate plain = *shape;
    plain.schedule = (ScheduleChoice){.kind = schedule_kind_index("1f1b"), .chunks = 1};
    space_config(space, &plain, config);
    int all = schedule_choices(config, choices), count = 0;
    int64_t list = space_fixes(space, "parallel.layers") ? space->base->parallel.layers_given : 0;
    for (int i = 0; i < all; i++) {
        if (list > 0 && list != shape->pipeline * choices[i].chunks) continue;
        // One stage has no bubble to fill, and a schedule of several chunks would only send messages to itself.
        bool alone = shape->pipeline == 1 && (choices[i].chunks > 1 || choices[i].split);
        if (alone && !space_fixes(space, "schedule.name")) continue;
        if (!choice_allowed_(space, shape->pipeline, &choices[i])) continue;
        schedule_choose(&choices[i], config);
        if (config_schedule_legal(config)) choices[count++] = choices[i];
    }
    free(config);
    return count;
}

// ---------------------------------------------------------------- layers

void space_times(const SearchSpace *space, const Candidate *shape, ModelTimes *times) {
    Config *config = xmalloc(sizeof *config);
    StageShape at;
    Candidate whole = *shape;
    whole.schedule = (ScheduleChoice){.kind = schedule_kind_index("1f1b"), .chunks = 1};
    whole.balanced = whole.recompute = false;
    space_config(space, &whole, config);
    Schedule one = {.stages = 1, .chunks = 1};
    config->parallel.layers_given = 0;
    stage_shape(&at, space->planner->model, config, &one, space->planner->be, 0, 0);
    hardware_times(times, &space->planner->hardware, config, &at.shape);
    free(config);
}

static double part_seconds_(const PartTime *part) {
    return part->forward + part->backward + part->tensor_forward + part->tensor_backward;
}

// Gives the next layer to the least loaded rank, and to its least loaded chunk, which makes the slowest rank as quick
// as any split does. Of equals it takes the later rank, since most schedules keep fewer bundles there.
static void balance_(const SearchSpace *space, const Candidate *candidate, int64_t *layers) {
    int p = (int)candidate->pipeline, parts = p * candidate->schedule.chunks;
    Schedule placed = {.stages = p,
                       .chunks = candidate->schedule.chunks,
                       .placement = schedule_kinds[candidate->schedule.kind].placement};
    ModelTimes times;
    space_times(space, candidate, &times);
    double layer = part_seconds_(&times.layer), first = part_seconds_(&times.embedding),
           last = part_seconds_(&times.head);
    for (int g = 0; g < parts; g++) layers[g] = 1;
    for (int64_t left = space->base->model.layers - parts; left > 0; left--) {
        int rank = 0, chunk = 0;
        double least_rank = 0, least_chunk = 0;
        for (int s = 0; s < p; s++) {
            double sum = 0;
            for (int c = 0; c < placed.chunks; c++) {
                int g = schedule_virtual(&placed, s, c);
                sum += layer * (double)layers[g] + (g == 0 ? first : 0) + (g == parts - 1 ? last : 0);
            }
            if (s == 0 || sum <= least_rank) rank = s, least_rank = sum;
        }
        for (int c = 0; c < placed.chunks; c++) {
            int g = schedule_virtual(&placed, rank, c);
            double sum = layer * (double)layers[g] + (g == 0 ? first : 0) + (g == parts - 1 ? last : 0);
            if (c == 0 || sum < least_chunk) chunk = c, least_chunk = sum;
        }
        layers[schedule_virtual(&placed, rank, chunk)]++;
    }
}

static void deal_layers_(const SearchSpace *space, const Candidate *candidate, Config *config) {
    ParallelConfig *parallel = &config->parallel;
    int64_t parts = candidate->pipeline * candidate->schedule.chunks;
    if (space_fixes(space, "parallel.layers")) return;
    parallel->layers_given = 0;
    config_spread_layers(config, parts);
    if (!candidate->balanced) return;
    balance_(space, candidate, parallel->layers_per_stage);
    parallel->layers_given = parts;
}

bool space_balance_matters(const SearchSpace *space, const Candidate *candidate) {
    int64_t parts = candidate->pipeline * candidate->schedule.chunks;
    if (space_fixes(space, "parallel.layers")) return false;
    Config *config = xmalloc(sizeof *config);
    Candidate even = *candidate;
    even.balanced = even.recompute = false;
    space_config(space, &even, config);
    int64_t *balanced = xmalloc((size_t)parts * sizeof *balanced);
    balance_(space, candidate, balanced);
    bool matters = memcmp(balanced, config->parallel.layers_per_stage, (size_t)parts * sizeof *balanced) != 0;
    free(balanced);
    free(config);
    return matters;
}

// ---------------------------------------------------------------- recomputed layers

// Bisects on all stages at once the fewest layers to recompute with which they fit. A partner's bundle can be the
// larger one of a pair, so the caller counts the bytes of the result once more.
static bool recompute_(const SearchSpace *space, Config *config) {
    int64_t p = config->parallel.pipeline, *of = config->schedule.recompute_of_stage;
    const Planner *planner = space->planner;
    Error ignored = {0};
    ScheduleLoan loan = planner_borrow(planner, config, &ignored);
    if (loan.schedule == NULL) return false;
    int64_t low[SEARCH_MOST_STAGES], high[SEARCH_MOST_STAGES];
    double limit = (double)planner->hardware.memory_bytes - config->hardware.reserve_gib * GIB;
    config->schedule.recompute_given = p;
    bool all = true, open = true;
    for (int64_t s = 0; s < p; s++) low[s] = -1, high[s] = config->model.layers, of[s] = high[s];
    for (bool first = true; open && all; first = false) {
        Plan plan = {0};
        plan_make_from(&plan, &planner->table, planner->model, config, loan.schedule, planner->be);
        open = false;
        for (int64_t s = 0; s < p; s++) {
            bool fits = (double)memory_total(&plan.stage[s].memory) <= limit;
            if (first) high[s] = of[s] = plan.stage[s].at.layers;
            if (first && !fits) all = false;
            *(fits ? &high[s] : &low[s]) = of[s];
        }
        for (int64_t s = 0; s < p; s++) {
            open = open || high[s] - low[s] > 1;
            of[s] = high[s] - low[s] > 1 ? low[s] + (high[s] - low[s]) / 2 : high[s];
        }
        plan_free(&plan);
    }
    schedule_cache_return(&loan);
    return all;
}

// ---------------------------------------------------------------- configurations

static void set_evictions_(const SearchSpace *space, const Candidate *candidate, Config *config) {
    ScheduleConfig *schedule = &config->schedule;
    schedule->bpipe = candidate->evict == SEARCH_KEEP ? BPIPE_OFF : BPIPE_ON;
    if (candidate->evict != SEARCH_KEEP) schedule->evict_to = candidate->evict;
    schedule->slots = candidate->slots;
    schedule->load_ahead = candidate->load_ahead;
    if (candidate->evict == SEARCH_KEEP) return;
    if (space_fixes(space, "schedule.slots")) schedule->slots = space->base->schedule.slots;
    if (space_fixes(space, "schedule.load_ahead")) schedule->load_ahead = space->base->schedule.load_ahead;
}

bool space_config(const SearchSpace *space, const Candidate *candidate, Config *config) {
    *config = *space->base;
    config->parallel.tensor = candidate->tensor;
    config->parallel.pipeline = candidate->pipeline;
    config->parallel.data = candidate->data;
    config->parallel.sequence = candidate->sequence;
    config->parallel.placement = candidate->placement;
    config->schedule.micro_batch = candidate->micro_batch;
    if (!space_fixes(space, "attention.mode")) config_set_attention(config, candidate->attention);
    schedule_choose(&candidate->schedule, config);
    set_evictions_(space, candidate, config);
    deal_layers_(space, candidate, config);
    if (space_fixes(space, "schedule.recompute_layers")) return true;
    config->schedule.recompute_given = 1;
    config->schedule.recompute_of_stage[0] = 0;
    return !candidate->recompute || recompute_(space, config);
}
