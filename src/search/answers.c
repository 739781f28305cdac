// The answers beside the best configuration. Each asks the planner about a few more candidates than the search did;
// bounds keep that short.
#include "answers.h"

#include "base/alloc.h"
#include "base/grid.h"
#include "base/units.h"
#include "bound.h"
#include "config/config_schema.h"
#include "plan/verdict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- what forbids a better one

static int compare_misfits_(const void *a, const void *b) {
    const Misfit *one = a, *other = b;
    if (one->excess != other->excess) return one->excess < other->excess ? -1 : 1;
    return one->order < other->order ? -1 : one->order > other->order;
}

// qsort takes no NULL, even for an empty list.
static void sort_misfits_(Misfit *misfits, int64_t count) {
    if (count > 1) qsort(misfits, (size_t)count, sizeof *misfits, compare_misfits_);
}

// Misfits by the memory that they lack. Those with `all` set are opened when their turn comes.
typedef struct Queue {
    Misfit *all, *single; // sorted
    int64_t alls, singles, at_all, at_single;
} Queue;

static void queue_add_(Queue *queue, const Misfit *misfit) {
    bool all = misfit->all;
    Misfit **list = all ? &queue->all : &queue->single;
    int64_t *count = all ? &queue->alls : &queue->singles;
    *list = xrealloc(*list, (size_t)(*count + 1) * sizeof **list);
    (*list)[(*count)++] = *misfit;
}

static int queue_open_(Queue *queue, const SearchSpace *space, Error *err) {
    Misfit *opened;
    int64_t count;
    if (search_open_misfit(space, &queue->all[queue->at_all++], &opened, &count, err) != 0) return -1;
    for (int64_t i = 0; i < count; i++) queue_add_(queue, &opened[i]);
    free(opened);
    if (count > 0) sort_misfits_(queue->single + queue->at_single, queue->singles - queue->at_single);
    return 0;
}

// Takes the misfit that lacks least. Returns 1, 0 if there is none, or -1 with err.
static int queue_take_(Queue *queue, const SearchSpace *space, Misfit *misfit, Error *err) {
    while (queue->at_all < queue->alls && (queue->at_single == queue->singles ||
                                           queue->all[queue->at_all].excess <= queue->single[queue->at_single].excess))
        if (queue_open_(queue, space, err) != 0) return -1;
    if (queue->at_single == queue->singles) return 0;
    *misfit = queue->single[queue->at_single++];
    return 1;
}

bool answer_next_better(const SearchSpace *space, const SearchResult *result, Misfit *misfit, double *step,
                        Error *err) {
    enum { MOST_LOOKS = 64 };
    static const double LEAST_GAIN = 0.999;
    double best = result->best >= 0 ? result->found[result->best].step * LEAST_GAIN : 0;
    Queue queue = {0};
    for (int64_t i = 0; i < result->misfit_count; i++)
        if (best == 0 || result->misfits[i].bound <= best) queue_add_(&queue, &result->misfits[i]);
    sort_misfits_(queue.all, queue.alls);
    sort_misfits_(queue.single, queue.singles);
    Config *config = xmalloc(sizeof *config);
    bool found = false;
    Misfit next;
    for (int looks = 0; looks < MOST_LOOKS && !found && queue_take_(&queue, space, &next, err) > 0;) {
        Forecast forecast;
        if (!space_config(space, &next.candidate, config)) continue;
        if (planner_forecast_config(space->planner, config, true, &forecast, err) != 0) break;
        found = forecast.possible && (best == 0 || forecast.time.step < best);
        *misfit = next;
        *step = forecast.time.step;
        looks++;
    }
    free(config);
    free(queue.all);
    free(queue.single);
    return found;
}

// Returns the category that exceeds the other stages' average most, and by how much.
static int surplus_(const Plan *plan, int stage, double *surplus) {
    int most = 0;
    *surplus = 0;
    for (int c = 0; c < MEMORY_CATEGORIES && plan->stages > 1; c++) {
        double others = 0, own = (double)plan->stage[stage].memory.bytes[c];
        for (int s = 0; s < plan->stages; s++)
            if (s != stage) others += (double)plan->stage[s].memory.bytes[c] / (plan->stages - 1);
        if (own - others > *surplus) most = c, *surplus = own - others;
    }
    return most;
}

static int largest_category_(const PlanStage *stage) {
    int most = 0;
    for (int c = 1; c < MEMORY_CATEGORIES; c++)
        if (stage->memory.bytes[c] > stage->memory.bytes[most]) most = c;
    return most;
}

char *answer_reason(const SearchSpace *space, const Misfit *misfit, char text[ANSWER_TEXT]) {
    Config *config = xmalloc(sizeof *config);
    Error ignored = {0};
    char bytes[32];
    Plan plan = {0};
    text[0] = '\0';
    if (space_config(space, &misfit->candidate, config)) {
        const Planner *planner = space->planner;
        ScheduleLoan loan = planner_borrow(planner, config, &ignored);
        double surplus;
        plan_make_from(&plan, &planner->table, planner->model, config, loan.schedule, planner->be);
        int c = surplus_(&plan, misfit->fullest, &surplus), largest = largest_category_(&plan.stage[misfit->fullest]);
        if (surplus >= (double)misfit->excess)
            snprintf(text, ANSWER_TEXT, "%s, of which the other stages have %s less", memory_name((MemoryCategory)c),
                     grid_bytes((int64_t)surplus, bytes));
        else
            snprintf(text, ANSWER_TEXT, "most of it %s, %s", memory_name((MemoryCategory)largest),
                     grid_bytes(plan.stage[misfit->fullest].memory.bytes[largest], bytes));
        plan_free(&plan);
        schedule_cache_return(&loan);
    }
    free(config);
    return text;
}

// ---------------------------------------------------------------- the smallest world

// Takes 1F1B, or the first schedule that -o allows. false: it allows none.
static bool world_schedule_(const SearchSpace *space, Candidate *candidate) {
    ScheduleChoice choices[SCHEDULE_CHOICES];
    int count = space_schedules(space, candidate, choices), at = 0;
    for (int i = count - 1; i >= 0; i--)
        if (choices[i].kind == schedule_kind_index("1f1b")) at = i;
    if (count > 0) candidate->schedule = choices[at];
    return count > 0;
}

static bool world_evicts_(const SearchSpace *space, const Candidate *candidate) {
    const ScheduleConfig *given = &space->base->schedule;
    if (!space_allows(space, "schedule.bpipe", given->bpipe, candidate->evict == SEARCH_KEEP ? BPIPE_OFF : BPIPE_ON))
        return false;
    if (candidate->evict == SEARCH_KEEP) return true;
    return space_allows(space, "schedule.evict_to", given->evict_to, candidate->evict);
}

// Finds whether the model fits on p * t * d ranks in the configuration that holds least: every layer recomputed,
// without evictions or with all that are possible.
static int fits_world_(const SearchSpace *space, const SearchWorld *at, bool *fits, Error *err) {
    const Config *base = space->base;
    bool halves = at->tensor > 1 && base->model.seq_len % at->tensor == 0;
    Candidate candidate = {.tensor = at->tensor,
                           .pipeline = at->pipeline,
                           .data = at->data,
                           .micro_batch = space_fixes(space, "schedule.micro_batch") ? base->schedule.micro_batch : 1,
                           .attention = ATTENTION_FLASH,
                           .sequence = space_fixes(space, "parallel.sequence") ? base->parallel.sequence : halves};
    *fits = false;
    if (!world_schedule_(space, &candidate)) return 0;
    Config *config = xmalloc(sizeof *config);
    int status = 0;
    for (int evict = SEARCH_KEEP; evict <= EVICT_TO_HOST && status == 0 && !*fits; evict++) {
        Forecast forecast;
        candidate.evict = evict;
        if (!world_evicts_(space, &candidate)) continue;
        space_config(space, &candidate, config);
        if (!space_fixes(space, "schedule.recompute_layers"))
            config->schedule.recompute_of_stage[0] = config->model.layers;
        status = planner_forecast_config(space->planner, config, false, &forecast, err);
        *fits = status == 0 && forecast.possible && forecast.fits;
    }
    free(config);
    return status;
}

// Finds, for this many tensor and data ranks, the world with the fewest stages that fits, if it is smaller than
// `world`.
static int fewest_stages_(const SearchSpace *space, int64_t t, int64_t d, SearchWorld *world, Error *err) {
    const Config *base = space->base;
    int64_t stages[SEARCH_MOST_STAGES], most = base->train.global_batch / d, fails = -1, works = 0;
    if (most > base->model.layers) most = base->model.layers;
    if (most > SEARCH_MOST_STAGES) most = SEARCH_MOST_STAGES;
    if (world->ranks > 0 && (world->ranks - 1) / (t * d) < most) most = (world->ranks - 1) / (t * d);
    for (int64_t p = 1; p <= most; p++)
        if (space_allows(space, "parallel.pipeline", base->parallel.pipeline, p) && space_lists_allow(space, p))
            stages[works++] = p;
    // With more stages each holds less, so bisection finds the border.
    while (works - fails > 1) {
        int64_t middle = fails + (works - fails) / 2, p = stages[middle];
        SearchWorld at = {p * t * d, p, t, d};
        bool fits;
        if (fits_world_(space, &at, &fits, err) != 0) return -1;
        if (fits) *world = at;
        *(fits ? &works : &fails) = middle;
    }
    return 0;
}

// With more data ranks each holds a smaller part of the optimizer's state.
int answer_smallest_world(const SearchSpace *space, SearchWorld *world, Error *err) {
    const Config *base = space->base;
    const ModelConfig *m = &base->model;
    *world = (SearchWorld){0};
    for (int64_t t = 1; t <= m->heads; t++) {
        if (m->heads % t != 0 || m->kv_heads % t != 0 || m->ffn % t != 0) continue;
        bool node = t <= base->hardware.gpus_per_node || space_fixes(space, "parallel.tensor");
        if (!node || !space_allows(space, "parallel.tensor", base->parallel.tensor, t)) continue;
        for (int64_t d = 1; d <= base->train.global_batch; d++) {
            if (base->train.global_batch % d != 0) continue;
            if (!space_allows(space, "parallel.data", base->parallel.data, d)) continue;
            if (fewest_stages_(space, t, d, world, err) != 0) return -1;
        }
    }
    return 0;
}

// ---------------------------------------------------------------- what the user gave

int answer_given(const SearchSpace *space, Config *given, Forecast *forecast, Error *err) {
    Error ignored = {0};
    memset(forecast, 0, sizeof *forecast);
    *given = *space->base;
    int64_t part = given->parallel.pipeline * given->parallel.tensor;
    if (space->world % part != 0) return 0;
    given->parallel.data = space->world / part;
    // A plan decides the keys that are left open.
    Log quiet = {.program = "", .rank = -1, .stage = -1, .level = LOG_QUIET};
    if (config_check(given, &ignored) != 0) return 0;
    if (verdict_resolve(given, space->planner->model, &quiet, err) != 0) return -1;
    // A key that is left open need not be set for schedules that split anyway; a plan takes it for off.
    bool open = space->base->schedule.split_backward == SPLIT_AUTO && given->schedule.split_backward == SPLIT_OFF;
    if (open) given->schedule.split_backward = SPLIT_AUTO;
    return planner_forecast_config(space->planner, given, true, forecast, err);
}

static int schedule_distance_(const Config *given, const Candidate *candidate) {
    const ScheduleConfig *from = &given->schedule;
    const ScheduleChoice *to = &candidate->schedule;
    const ScheduleKind *kind = &schedule_kinds[to->kind];
    int p = (int)candidate->pipeline;
    int changes = from->name != to->kind;
    changes += from->chunks == 0 ? to->chunks != kind->chunks : to->chunks != from->chunks;
    if (kind->grouped) changes += from->group == 0 ? to->group != p : to->group != from->group;
    if (kind->delayed) changes += from->delay == SCHEDULE_DELAY_MOST ? to->delay != p - 1 : to->delay != from->delay;
    if (kind->splits) return changes + (from->split_backward == SPLIT_OFF);
    return changes + ((from->split_backward == SPLIT_ON) != to->split);
}

int answer_distance(const Config *given, const Candidate *candidate) {
    const ParallelConfig *from = &given->parallel;
    int changes = (from->tensor != candidate->tensor) + (from->pipeline != candidate->pipeline) +
                  (from->data != candidate->data) + (from->sequence != candidate->sequence) +
                  (from->placement != candidate->placement) + (given->attention.mode != candidate->attention) +
                  (given->schedule.micro_batch != candidate->micro_batch);
    bool evicts = given->schedule.bpipe == BPIPE_ON, recomputes = config_recompute(given, 0) > 0;
    changes += candidate->balanced || from->layers_given > 0;
    changes += evicts != (candidate->evict != SEARCH_KEEP);
    if (candidate->evict != SEARCH_KEEP) changes += given->schedule.evict_to != candidate->evict;
    changes += recomputes || candidate->recompute;
    return changes + schedule_distance_(given, candidate);
}

// ---------------------------------------------------------------- the cheapest change

// Takes a candidate with fewer changes, or with as many and a shorter step.
static void take_cheaper_(const Config *given, const Fit *found, double step, int *least, Fit *cheapest) {
    int changes = answer_distance(given, &found->candidate);
    if (found->step > step || changes > *least || (changes == *least && found->step >= cheapest->step)) return;
    *least = changes;
    *cheapest = *found;
}

enum { MOST_LOOKS = 256 };

typedef struct Near {
    Candidate candidates[MOST_LOOKS];
    Forecast forecasts[MOST_LOOKS];
    int count;
} Near;

// Adds the candidates of a shape with so many changes, in the ways to keep bundles that need no counting first.
static void add_near_(const SearchSpace *space, const Config *given, const Candidate *shape, int changes, Near *near) {
    ScheduleChoice choices[SCHEDULE_CHOICES];
    Candidate candidate = *shape;
    // Schedule, layers and evictions aside, which only add to the changes; BPipe that is off may take one away.
    if (answer_distance(given, shape) - schedule_distance_(given, shape) - 1 > changes) return;
    int choice_count = space_schedules(space, shape, choices);
    for (int i = 0; i < choice_count; i++) {
        for (int way = 0; way < 6; way++) {
            candidate.schedule = choices[i];
            candidate.balanced = way % 2 == 1;
            candidate.evict = way / 2 - 1;
            if (candidate.evict == EVICT_TO_PEER && (!schedule_kinds[choices[i].kind].pairs || shape->pipeline == 1))
                continue;
            if (near->count < MOST_LOOKS && answer_distance(given, &candidate) == changes)
                near->candidates[near->count++] = candidate;
        }
    }
}

static void forecast_near_(const SearchSpace *space, Near *near) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < near->count; i++) {
        Config *config = xmalloc(sizeof *config);
        Error ignored = {0};
        memset(&near->forecasts[i], 0, sizeof near->forecasts[i]);
        if (space_config(space, &near->candidates[i], config))
            planner_forecast_fitting(space->planner, config, INFINITY, &near->forecasts[i], &ignored);
        free(config);
    }
}

bool answer_cheapest(const SearchSpace *space, const SearchResult *result, const Config *given, double step,
                     Fit *cheapest) {
    int least = INT32_MAX;
    for (int64_t i = 0; i < result->founds; i++) take_cheaper_(given, &result->found[i], step, &least, cheapest);
    if (least == INT32_MAX) return false;
    Candidate *shapes;
    Near *near = xmalloc(sizeof *near);
    int64_t shape_count = space_shapes(space, &shapes);
    for (int changes = 1; changes < least; changes++) {
        near->count = 0;
        for (int64_t i = 0; i < shape_count; i++)
            if (shape_bound(space, &shapes[i]) <= step) add_near_(space, given, &shapes[i], changes, near);
        forecast_near_(space, near);
        for (int i = 0; i < near->count; i++) {
            const Forecast *at = &near->forecasts[i];
            if (!at->possible || !at->fits || !at->time.known) continue;
            Fit found = {.candidate = near->candidates[i],
                         .step = at->time.step,
                         .mfu = at->time.mfu,
                         .bubble = at->time.bubble,
                         .peak_bytes = at->peak_bytes,
                         .fullest = at->fullest};
            take_cheaper_(given, &found, step, &least, cheapest);
        }
    }
    free(shapes);
    free(near);
    return true;
}

// ---------------------------------------------------------------- changes as overrides

static bool same_layers_(const Config *from, const Config *to) {
    int parts = (int)to->parallel.pipeline * config_chunks(to);
    if (to->parallel.layers_given == 0) return from->parallel.layers_given == 0;
    if (from->parallel.pipeline * config_chunks(from) != parts) return false;
    for (int g = 0; g < parts; g++)
        if (config_layers(from, parts, g) != config_layers(to, parts, g)) return false;
    return true;
}

static bool same_by_stage_(const Config *from, const Config *to) {
    bool same = from->parallel.pipeline == to->parallel.pipeline ||
                (from->schedule.recompute_given == 1 && to->schedule.recompute_given == 1);
    for (int s = 0; s < to->parallel.pipeline && same; s++) same = config_recompute(from, s) == config_recompute(to, s);
    return same;
}

// Returns whether a key has to be set to turn one configuration into the other.
static bool differs_(const Config *from, const Config *to, const char *key) {
    const ScheduleConfig *a = &from->schedule, *b = &to->schedule;
    const ScheduleKind *kind = &schedule_kinds[b->name];
    bool evicts = b->bpipe == BPIPE_ON;
    if (strcmp(key, "parallel.layers") == 0) return !same_layers_(from, to);
    if (strcmp(key, "schedule.recompute_layers") == 0) return !same_by_stage_(from, to);
    if (strcmp(key, "attention.mode") == 0) return from->attention.mode != to->attention.mode;
    if (strcmp(key, "schedule.chunks") == 0) return a->chunks == 0 ? b->chunks != kind->chunks : a->chunks != b->chunks;
    if (strcmp(key, "schedule.group") == 0)
        return kind->grouped && (a->group == 0 ? b->group != to->parallel.pipeline : a->group != b->group);
    if (strcmp(key, "schedule.delay") == 0)
        return kind->delayed && (a->delay == -1 ? b->delay != to->parallel.pipeline - 1 : a->delay != b->delay);
    if (strcmp(key, "schedule.split_backward") == 0)
        return kind->splits ? a->split_backward == SPLIT_OFF : a->split_backward != b->split_backward;
    if (strcmp(key, "schedule.evict_to") == 0) return evicts && a->evict_to != b->evict_to;
    if (strcmp(key, "schedule.slots") == 0) return evicts && a->slots != b->slots;
    if (strcmp(key, "schedule.load_ahead") == 0) return evicts && a->load_ahead != b->load_ahead;
    const ConfigKey *row = config_find(key);
    return memcmp((const char *)from + row->offset, (const char *)to + row->offset, row->size) != 0;
}

static const char *const searched_keys_[] = {
    "parallel.tensor",      "parallel.pipeline",  "parallel.data",
    "parallel.sequence",    "parallel.placement", "parallel.layers",
    "schedule.micro_batch", "schedule.name",      "schedule.chunks",
    "schedule.group",       "schedule.delay",     "schedule.split_backward",
    "schedule.bpipe",       "schedule.evict_to",  "schedule.slots",
    "schedule.load_ahead",  "attention.mode",     "schedule.recompute_layers",
};
enum { SEARCHED_KEYS = sizeof searched_keys_ / sizeof *searched_keys_ };

int answer_changes(const Config *from, const Config *to, FILE *file) {
    int changes = 0;
    for (int i = 0; i < SEARCHED_KEYS; i++) {
        const char *key = searched_keys_[i];
        if (!differs_(from, to, key)) continue;
        fprintf(file, "%s-o %s=", changes++ > 0 ? " " : "", key);
        if (strcmp(key, "parallel.layers") == 0 && to->parallel.layers_given == 0)
            fputs("auto", file);
        else
            config_write_value(to, key, file);
    }
    return changes;
}
