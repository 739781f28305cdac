// A heap of nodes by their bound: shapes, and lists (a shape with a schedule and a split of layers). A shape that comes
// up is replaced by its lists; a list that comes up is evaluated, with all its ways to keep bundles.
#include "search.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"
#include "bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The plan continues long schedules with an error of a few thousandths, so bounds are lowered by as much.
#define BOUND_SLACK 0.995

typedef struct Node {
    Candidate candidate;
    bool list; // with its schedule and layers; else a shape
    double bound;
    int64_t least_bytes;
    int64_t order;
} Node;

typedef struct NodeList {
    Node *nodes;
    int64_t count, capacity;
} NodeList;

// The results of one node. One thread writes them; they are read when its batch is done.
typedef struct Outcome {
    NodeList lists; // of a shape
    Fit *found;
    int64_t founds;
    Misfit *misfits;
    int64_t misfit_count, evaluated;
    Error err;
    int status;
} Outcome;

// The best so far, which does not change while a batch is evaluated.
typedef struct Standing {
    double best, tenth; // compared steps; INFINITY
    Fit *front;         // by step
    int64_t front_count, front_capacity;
    Fit *keys; // the quickest of each cut, micro-batch size and schedule
    int64_t key_count, key_capacity;
} Standing;

typedef struct Search {
    const SearchSpace *space;
    const SearchOptions *options;
    SearchResult *result;
    Standing standing;
    NodeList heap;
    int64_t orders, found_capacity, misfit_capacity;
} Search;

// ---------------------------------------------------------------- the heap

static bool node_before_(const Node *a, const Node *b) {
    return a->bound != b->bound ? a->bound < b->bound : a->order < b->order;
}

static void nodes_add_(NodeList *list, const Node *node) {
    if (list->count == list->capacity) {
        list->capacity = 2 * list->capacity + 64;
        list->nodes = xrealloc(list->nodes, (size_t)list->capacity * sizeof *list->nodes);
    }
    list->nodes[list->count++] = *node;
}

static void heap_swap_(Node *a, Node *b) {
    Node kept = *a;
    *a = *b;
    *b = kept;
}

static void heap_push_(NodeList *heap, const Node *node) {
    nodes_add_(heap, node);
    Node *nodes = heap->nodes;
    for (int64_t at = heap->count - 1; at > 0 && node_before_(&nodes[at], &nodes[(at - 1) / 2]); at = (at - 1) / 2)
        heap_swap_(&nodes[at], &nodes[(at - 1) / 2]);
}

static Node heap_pop_(NodeList *heap) {
    Node *nodes = heap->nodes, first = nodes[0];
    nodes[0] = nodes[--heap->count];
    for (int64_t at = 0;;) {
        int64_t least = at;
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap->count; child++)
            if (node_before_(&nodes[child], &nodes[least])) least = child;
        if (least == at) return first;
        heap_swap_(&nodes[at], &nodes[least]);
        at = least;
    }
}

// ---------------------------------------------------------------- what can be left out

// The longest step that is of interest in a candidate of at least these bytes: one among the ten best, or on the front.
// new_key: false for one that is no quicker than something found with the same cut and schedule.
static double worth_(const Search *search, int64_t bytes, bool new_key) {
    const Standing *standing = &search->standing;
    double most = SEARCH_SLOWER * standing->best;
    if (search->options->exhaustive) return INFINITY;
    for (int64_t i = 0; i < standing->front_count && standing->front[i].compared < most; i++)
        if (standing->front[i].peak_bytes <= bytes) most = standing->front[i].compared;
    if (new_key && standing->tenth > most) most = standing->tenth;
    return most / BOUND_SLACK;
}

static bool hopeless_(const Search *search, double bound, int64_t bytes) {
    return bound > worth_(search, bytes, true);
}

// ---------------------------------------------------------------- what is best so far

static bool same_key_(const Candidate *a, const Candidate *b) {
    return a->tensor == b->tensor && a->pipeline == b->pipeline && a->data == b->data &&
           a->micro_batch == b->micro_batch && a->schedule.kind == b->schedule.kind &&
           a->schedule.chunks == b->schedule.chunks;
}

static PlanRank rank_of_(const Fit *found) {
    const Candidate *candidate = &found->candidate;
    return (PlanRank){.compared = found->compared,
                      .recomputes = candidate->recompute,
                      .evicts = candidate->evict != SEARCH_KEEP,
                      .split = candidate->schedule.split,
                      .peak_bytes = found->peak_bytes,
                      .kind = candidate->schedule.kind};
}

// Returns whether a comes before b: by planner_prefers, then the one met first.
static bool found_before_(const Fit *a, const Fit *b) {
    PlanRank one = rank_of_(a), other = rank_of_(b);
    if (planner_prefers(&one, &other)) return true;
    return !planner_prefers(&other, &one) && a->order < b->order;
}

static int compare_found_(const void *a, const void *b) {
    return found_before_(a, b) ? -1 : found_before_(b, a);
}

static Fit *grow_found_(Fit *list, int64_t count, int64_t *capacity) {
    if (count < *capacity) return list;
    *capacity = 2 * *capacity + 64;
    return xrealloc(list, (size_t)*capacity * sizeof *list);
}

static void standing_take_front_(Standing *standing, const Fit *found) {
    int64_t kept = 0, at = 0;
    for (int64_t i = 0; i < standing->front_count; i++) {
        const Fit *other = &standing->front[i];
        if (other->compared <= found->compared && other->peak_bytes <= found->peak_bytes) return;
    }
    standing->front = grow_found_(standing->front, standing->front_count + 1, &standing->front_capacity);
    for (int64_t i = 0; i < standing->front_count; i++) {
        const Fit *other = &standing->front[i];
        if (other->compared < found->compared || other->peak_bytes < found->peak_bytes)
            standing->front[kept++] = *other;
    }
    while (at < kept && standing->front[at].compared < found->compared) at++;
    memmove(&standing->front[at + 1], &standing->front[at], (size_t)(kept - at) * sizeof *standing->front);
    standing->front[at] = *found;
    standing->front_count = kept + 1;
}

static void standing_take_key_(Standing *standing, const Fit *found) {
    int64_t at = 0;
    while (at < standing->key_count && !same_key_(&standing->keys[at].candidate, &found->candidate)) at++;
    if (at < standing->key_count && !found_before_(found, &standing->keys[at])) return;
    if (at == standing->key_count) {
        standing->keys = grow_found_(standing->keys, standing->key_count, &standing->key_capacity);
        standing->key_count++;
    }
    // Keeps the order: the entry moves to its place among the quicker ones.
    for (; at > 0 && found_before_(found, &standing->keys[at - 1]); at--) standing->keys[at] = standing->keys[at - 1];
    standing->keys[at] = *found;
    standing->best = standing->keys[0].compared;
    if (standing->key_count >= SEARCH_BEST) standing->tenth = standing->keys[SEARCH_BEST - 1].compared;
}

// ---------------------------------------------------------------- lists of a shape

// Returns the bytes that a rank may use, or INFINITY if no limit is known.
static double limit_(const SearchSpace *space) {
    const Hardware *hardware = &space->planner->hardware;
    double reserve = space->base->hardware.reserve_gib * GIB;
    return hardware->memory_bytes > 0 ? (double)hardware->memory_bytes - reserve : INFINITY;
}

// A cut shared by several lists of a shape.
typedef struct CutOf {
    int chunks;
    Placement placement;
    bool split, balanced, never_fits;
    Cut cut;
} CutOf;

static CutOf *cut_of_(const Search *search, const Candidate *list, CutOf *cuts, int *count, Outcome *outcome) {
    const ScheduleKind *kind = &schedule_kinds[list->schedule.kind];
    bool split = kind->splits || list->schedule.split;
    for (int i = 0; i < *count; i++) {
        CutOf *at = &cuts[i];
        if (at->chunks == list->schedule.chunks && at->placement == kind->placement && at->split == split &&
            at->balanced == list->balanced)
            return at;
    }
    CutOf *at = &cuts[(*count)++];
    *at = (CutOf){
        .chunks = list->schedule.chunks, .placement = kind->placement, .split = split, .balanced = list->balanced};
    Config *config = xmalloc(sizeof *config);
    space_config(search->space, list, config);
    outcome->status = cut_make(&at->cut, search->space, config, &outcome->err);
    at->never_fits = outcome->status == 0 && !search->options->exhaustive &&
                     cut_never_fits(&at->cut, search->space, config, limit_(search->space));
    free(config);
    return at;
}

static void outcome_add_misfit_(Outcome *outcome, const Misfit *misfit) {
    outcome->misfits = xrealloc(outcome->misfits, (size_t)(outcome->misfit_count + 1) * sizeof *outcome->misfits);
    outcome->misfits[outcome->misfit_count++] = *misfit;
}

static void expand_(const Search *search, const Node *shape, Outcome *outcome) {
    ScheduleChoice choices[SCHEDULE_CHOICES];
    CutOf cuts[2 * SCHEDULE_CHOICES];
    int cut_count = 0, count = space_schedules(search->space, &shape->candidate, choices);
    double limit = limit_(search->space);
    for (int i = 0; i < count; i++) {
        for (int balanced = 0; balanced < 2 && outcome->status == 0; balanced++) {
            Node node = {.candidate = shape->candidate, .list = true};
            node.candidate.schedule = choices[i];
            node.candidate.balanced = balanced == 1;
            if (balanced == 1 && !space_balance_matters(search->space, &node.candidate)) continue;
            CutOf *at = cut_of_(search, &node.candidate, cuts, &cut_count, outcome);
            if (outcome->status != 0) break;
            node.bound = cut_bound(&at->cut, &choices[i]);
            node.least_bytes = at->cut.least_bytes;
            if (hopeless_(search, node.bound, node.least_bytes)) continue;
            if (at->never_fits)
                outcome_add_misfit_(outcome, &(Misfit){.candidate = node.candidate,
                                                       .bound = node.bound,
                                                       .excess = (int64_t)((double)node.least_bytes - limit),
                                                       .all = true});
            else
                nodes_add_(&outcome->lists, &node);
        }
    }
    for (int i = 0; i < cut_count; i++) cut_free(&cuts[i].cut);
}

// ---------------------------------------------------------------- a list, in all ways to keep its bundles

typedef struct Trial {
    const Search *search;
    const Node *list;
    Outcome *outcome;
    Config *config;
    bool front_alone; // what is tried is no quicker than something found with the same schedule
} Trial;

static void trial_found_(Trial *trial, const Candidate *candidate, const Forecast *forecast) {
    Outcome *outcome = trial->outcome;
    outcome->found = xrealloc(outcome->found, (size_t)(outcome->founds + 1) * sizeof *outcome->found);
    outcome->found[outcome->founds++] =
        (Fit){.candidate = *candidate,
              .step = forecast->time.step,
              .compared = planner_compared_step(forecast->time.step, candidate->evict != SEARCH_KEEP),
              .mfu = forecast->time.mfu,
              .bubble = forecast->time.bubble,
              .peak_bytes = forecast->peak_bytes,
              .fullest = forecast->fullest};
}

static void trial_misfit_(Trial *trial, const Candidate *candidate, const Forecast *forecast) {
    double excess = (double)forecast->peak_bytes - limit_(trial->search->space);
    outcome_add_misfit_(trial->outcome, &(Misfit){.candidate = *candidate,
                                                  .bound = trial->list->bound,
                                                  .excess = excess > 0 ? (int64_t)excess : 0,
                                                  .fullest = forecast->fullest});
}

// Counts the bytes of a candidate, whose configuration is trial->config, and, where it fits and is of interest,
// simulates it. `bound` of its step and its least bytes may be better known than those of the list. Returns whether the
// candidate is possible; `forecast` has what is known of it.
static bool weigh_(Trial *trial, Candidate *candidate, double bound, int64_t least_bytes, Forecast *forecast) {
    Outcome *outcome = trial->outcome;
    const Search *search = trial->search;
    const Planner *planner = search->space->planner;
    memset(forecast, 0, sizeof *forecast);
    outcome->evaluated++;
    if (hopeless_(search, bound, least_bytes)) return false;
    outcome->status = planner_forecast_config(planner, trial->config, false, forecast, &outcome->err);
    if (outcome->status != 0 || !forecast->possible) return false;
    double worth = worth_(search, forecast->peak_bytes, !trial->front_alone);
    if (forecast->fits && bound <= worth)
        outcome->status = planner_forecast_fitting(planner, trial->config, worth, forecast, &outcome->err);
    if (outcome->status != 0) return false;
    if (candidate->evict != SEARCH_KEEP) {
        candidate->slots = forecast->slots;
        candidate->load_ahead = forecast->load_ahead;
    }
    if (forecast->fits && forecast->time.known) trial_found_(trial, candidate, forecast);
    if (!forecast->fits) trial_misfit_(trial, candidate, forecast);
    return true;
}

static bool try_(Trial *trial, Candidate *candidate, double bound, Forecast *forecast) {
    memset(forecast, 0, sizeof *forecast);
    if (trial->outcome->status != 0 || !space_config(trial->search->space, candidate, trial->config)) return false;
    return weigh_(trial, candidate, bound, trial->list->least_bytes, forecast);
}

static void try_recompute_(Trial *trial, const Candidate *candidate) {
    const Search *search = trial->search;
    const SearchSpace *space = search->space;
    Candidate recomputed = *candidate;
    Forecast forecast;
    Cut cut;
    if (space->planner->hardware.memory_bytes == 0 || space_fixes(space, "schedule.recompute_layers")) return;
    recomputed.recompute = true;
    trial->outcome->evaluated++;
    // Checked before bytes are counted, since recomputing layers makes no step shorter.
    if (hopeless_(search, trial->list->bound, -1)) return;
    if (!space_config(space, &recomputed, trial->config)) return;
    trial->outcome->status = cut_make(&cut, space, trial->config, &trial->outcome->err);
    double bound = trial->outcome->status == 0 ? cut_bound(&cut, &candidate->schedule) : 0;
    int64_t least = cut.least_bytes;
    cut_free(&cut);
    if (trial->outcome->status == 0 && !hopeless_(search, bound, least))
        weigh_(trial, &recomputed, bound, least, &forecast);
}

// Tries evictions to one target: with the fewest slots, and where bundles have to move, with as many as fit.
static void try_target_(Trial *trial, int target, int placement, const Forecast *plain) {
    const SearchSpace *space = trial->search->space;
    Candidate candidate = trial->list->candidate;
    Forecast least, most;
    candidate.evict = target;
    candidate.placement = placement;
    // Evictions make no step shorter.
    double bound = plain->time.known ? plain->time.step / BOUND_SLACK : trial->list->bound;
    if (!try_(trial, &candidate, bound, &least)) return;
    if (!least.fits) {
        candidate.slots = candidate.load_ahead = 0;
        try_recompute_(trial, &candidate);
        return;
    }
    if (plain->fits || space_fixes(space, "schedule.slots") || least.slot_bytes <= 0) return;
    double spare = limit_(space) - (double)least.peak_bytes;
    int64_t slots = least.slots + (isinf(spare) ? 0 : (int64_t)(spare / (double)least.slot_bytes));
    if (slots >= plain->slots) slots = plain->slots - 1;
    if (slots <= least.slots) return;
    candidate.slots = slots;
    candidate.load_ahead = 0;
    try_(trial, &candidate, bound, &most);
}

static bool may_evict_(const SearchSpace *space, const Candidate *list, int target) {
    const ScheduleConfig *given = &space->base->schedule;
    if (space_fixes(space, "schedule.bpipe") && given->bpipe == BPIPE_OFF) return false;
    if (space_fixes(space, "schedule.evict_to") && given->evict_to != target) return false;
    return target == EVICT_TO_HOST || (schedule_kinds[list->schedule.kind].pairs && list->pipeline > 1);
}

static void try_list_(const Search *search, const Node *list, Outcome *outcome) {
    const SearchSpace *space = search->space;
    const Config *base = space->base;
    Trial trial = {search, list, outcome, xmalloc(sizeof *trial.config), false};
    Candidate plain = list->candidate;
    Forecast forecast = {0};
    bool evicting = space_fixes(space, "schedule.bpipe") && base->schedule.bpipe == BPIPE_ON;
    if (!evicting && try_(&trial, &plain, list->bound, &forecast) && !forecast.fits) try_recompute_(&trial, &plain);
    if (evicting) forecast.slots = INT32_MAX;
    trial.front_alone = forecast.fits;
    bool open = space_places(space, &plain) && !space_places_both(space, &plain);
    for (int placement = PLACEMENT_LINEAR; placement <= PLACEMENT_ADJACENT; placement++) {
        if (placement != plain.placement && !open) continue;
        if (may_evict_(space, &plain, EVICT_TO_PEER)) try_target_(&trial, EVICT_TO_PEER, placement, &forecast);
    }
    if (may_evict_(space, &plain, EVICT_TO_HOST)) try_target_(&trial, EVICT_TO_HOST, plain.placement, &forecast);
    free(trial.config);
}

int search_open_misfit(const SearchSpace *space, const Misfit *misfit, Misfit **misfits, int64_t *count, Error *err) {
    SearchOptions options = {0};
    Search search = {.space = space, .options = &options, .standing = {.best = INFINITY, .tenth = INFINITY}};
    Node list = {.candidate = misfit->candidate, .list = true, .bound = misfit->bound};
    Outcome outcome = {0};
    try_list_(&search, &list, &outcome);
    if (outcome.status != 0) error_set(err, outcome.err.code, "%s", outcome.err.text);
    for (int64_t i = 0; i < outcome.misfit_count; i++) outcome.misfits[i].order = misfit->order;
    free(outcome.found);
    *misfits = outcome.misfits;
    *count = outcome.misfit_count;
    return outcome.status;
}

// ---------------------------------------------------------------- the search

static void take_outcome_(Search *search, Outcome *outcome) {
    SearchResult *result = search->result;
    for (int64_t i = 0; i < outcome->lists.count; i++) {
        outcome->lists.nodes[i].order = search->orders++;
        heap_push_(&search->heap, &outcome->lists.nodes[i]);
    }
    for (int64_t i = 0; i < outcome->founds; i++) {
        Fit *found = &outcome->found[i];
        found->order = search->orders++;
        result->found = grow_found_(result->found, result->founds, &search->found_capacity);
        result->found[result->founds++] = *found;
        standing_take_front_(&search->standing, found);
        standing_take_key_(&search->standing, found);
    }
    for (int64_t i = 0; i < outcome->misfit_count; i++) {
        if (result->misfit_count == search->misfit_capacity) {
            search->misfit_capacity = 2 * search->misfit_capacity + 64;
            result->misfits = xrealloc(result->misfits, (size_t)search->misfit_capacity * sizeof *result->misfits);
        }
        outcome->misfits[i].order = search->orders++;
        result->misfits[result->misfit_count++] = outcome->misfits[i];
    }
    result->evaluated += outcome->evaluated;
    result->simulated += outcome->founds;
    free(outcome->lists.nodes);
    free(outcome->found);
    free(outcome->misfits);
}

enum { BATCH = 16 };

// Pops the next nodes that can still matter.
static int next_batch_(Search *search, Node batch[BATCH]) {
    int count = 0;
    while (count < BATCH && search->heap.count > 0) {
        Node node = heap_pop_(&search->heap);
        if (hopeless_(search, node.bound, -1)) {
            search->heap.count = 0;
            break;
        }
        if (!hopeless_(search, node.bound, node.least_bytes)) batch[count++] = node;
    }
    return count;
}

static int search_batch_(Search *search, const Node *batch, int count, Error *err) {
    Outcome outcomes[BATCH];
    int status = 0;
    memset(outcomes, 0, sizeof outcomes);
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) {
        if (batch[i].list)
            try_list_(search, &batch[i], &outcomes[i]);
        else
            expand_(search, &batch[i], &outcomes[i]);
    }
    for (int i = 0; i < count; i++) {
        if (outcomes[i].status != 0 && status == 0)
            status = error_set(err, outcomes[i].err.code, "%s", outcomes[i].err.text);
        take_outcome_(search, &outcomes[i]);
    }
    return status;
}

static void push_shapes_(Search *search) {
    Candidate *shapes;
    int64_t count = search->result->shapes = space_shapes(search->space, &shapes);
    for (int64_t i = 0; i < count; i++) {
        Node node = {
            .candidate = shapes[i], .bound = shape_bound(search->space, &shapes[i]), .order = search->orders++};
        heap_push_(&search->heap, &node);
    }
    free(shapes);
}

static int index_of_(const SearchResult *result, const Fit *found) {
    for (int64_t i = 0; i < result->founds; i++)
        if (result->found[i].order == found->order) return (int)i;
    return -1;
}

// Computes the front again from all that was found: of equals it keeps the plainer one, which may have been met later.
static void take_front_(SearchResult *result) {
    Fit *sorted = xmalloc((size_t)result->founds * sizeof *sorted);
    if (result->founds > 0) memcpy(sorted, result->found, (size_t)result->founds * sizeof *sorted);
    qsort(sorted, (size_t)result->founds, sizeof *sorted, compare_found_);
    int64_t least = INT64_MAX;
    result->front = xmalloc((size_t)result->founds * sizeof *result->front);
    for (int64_t i = 0; i < result->founds && sorted[i].compared <= SEARCH_SLOWER * sorted[0].compared; i++) {
        if (sorted[i].peak_bytes >= least) continue;
        least = sorted[i].peak_bytes;
        result->front[result->front_count++] = index_of_(result, &sorted[i]);
    }
    if (result->founds > 0) result->best = index_of_(result, &sorted[0]);
    for (int64_t i = 1; i < result->founds && planner_equally_quick(sorted[i].compared, sorted[0].compared); i++)
        result->ties++;
    free(sorted);
}

static void take_ten_(SearchResult *result, const Standing *standing) {
    for (int64_t i = 0; i < standing->key_count && i < SEARCH_BEST; i++)
        result->ten[result->ten_count++] = index_of_(result, &standing->keys[i]);
}

int search_run(SearchResult *result, const SearchSpace *space, const SearchOptions *options, Error *err) {
    Search search = {
        .space = space, .options = options, .result = result, .standing = {.best = INFINITY, .tenth = INFINITY}};
    double began = clock_seconds();
    int status = 0, count;
    Node batch[BATCH];
    *result = (SearchResult){.best = -1};
    push_shapes_(&search);
    while (status == 0 && !result->stopped && (count = next_batch_(&search, batch)) > 0) {
        status = search_batch_(&search, batch, count, err);
        result->seconds = clock_seconds() - began;
        if (options->progress != NULL) options->progress(options->argument, result, batch[0].bound);
        result->stopped = options->stop != NULL && *options->stop != 0;
    }
    take_front_(result);
    take_ten_(result, &search.standing);
    free(search.heap.nodes);
    free(search.standing.front);
    free(search.standing.keys);
    result->seconds = clock_seconds() - began;
    return status;
}

void search_free(SearchResult *result) {
    free(result->found);
    free(result->misfits);
    free(result->front);
    memset(result, 0, sizeof *result);
}
