// A heap of nodes, ordered by bound. A node is a division, a shape, a cut (bound.h) or a list (a cut with a schedule).
// A division taken from the heap is replaced by its shapes, a shape by its cuts, a cut by its lists; a list is
// evaluated with all its ways to keep bundles.
#include "search.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/units.h"
#include "bound.h"
#include "plan/pays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The plan extrapolates long schedules with an error of a few thousandths, so bounds are lowered by this factor.
#define BOUND_SLACK 0.995
// Bundles that share a slow network card with messages shorten steps by up to 1.4 %.
#define MOVES_SAVE 0.985

typedef enum NodeKind { NODE_DIVISION, NODE_SHAPE, NODE_CUT, NODE_LIST } NodeKind;

typedef struct Node {
    RunLayout layout; // a cut has the layout of its first list
    NodeKind kind;
    double bound;
    PartTimes times;     // division, shape: lower bounds of the times of its parts
    int64_t least_bytes; // lower bound of the fullest rank's bytes, for any candidate of the node
    int64_t kept_bytes;  // cuts, lists: the same for candidates that recompute exactly the layers of the cut
} Node;

typedef struct NodeList {
    Node *nodes;
    int64_t count;
} NodeList;

// The results of one node. One thread writes them; they are read when its batch is done.
typedef struct Outcome {
    NodeList nodes; // shapes of a division, or lists of a shape
    CandidateList found, misfits;
    int64_t evaluated;
    Error err;
    int status;
} Outcome;

// The best candidates so far. They do not change while a batch is evaluated.
typedef struct Standing {
    double best, tenth;     // first and tenth step of `keys`, by planner_compared; INFINITY: not known yet
    CandidateList front;    // sorted by step
    CandidateList keys;     // fastest candidate per shape (ranks, micro-batch) and schedule, sorted by step
    double ways[PAYS_WAYS]; // shortest step of each way; INFINITY: none
} Standing;

typedef struct Search {
    const SearchSpace *space;
    const SearchOptions *options;
    SearchResult *result;
    Standing standing;
    NodeList nodes; // every node so far
    Heap heap;      // indices of the open nodes
    int64_t orders; // number of candidates so far: the next one's order
} Search;

static bool node_before_(const void *nodes, int64_t a, int64_t b) {
    const Node *one = (const Node *)nodes + a, *other = (const Node *)nodes + b;
    return one->bound != other->bound ? one->bound < other->bound : a < b;
}

static void push_(Search *search, const Node *node) {
    xpush(search->nodes.nodes, search->nodes.count, *node);
    heap_push(&search->heap, search->nodes.nodes, search->nodes.count - 1);
}

// ---------------------------------------------------------------- candidates that need no plan

// Returns whether two layouts compete for one place among the ten best: the same cut, micro-batch size and schedule.
static bool same_key_(const RunLayout *a, const RunLayout *b) {
    return a->tensor == b->tensor && a->pipeline == b->pipeline && a->data == b->data &&
           a->micro_batch == b->micro_batch && a->name == b->name && a->chunks == b->chunks;
}

enum { EVICTING = 1 << PAYS_PARTNER | 1 << PAYS_HOST, ANY_WAY = (1 << PAYS_WAYS) - 1 };

// Returns the ways (pays.h) that the candidates of a node may have, a bit for each.
static unsigned ways_of_(const Search *search, const Node *node) {
    const RunLayout *layout = &node->layout;
    bool pairs = layout->pipeline > 1 && (node->kind != NODE_LIST || schedule_kinds[layout->name].pairs);
    bool kept = space_fixes(search->space, LAYOUT_BIT(bpipe)) && search->space->keys.given.bpipe == BPIPE_OFF;
    unsigned evicting = kept ? 0 : pairs ? EVICTING : 1 << PAYS_HOST;
    if (node->kind >= NODE_CUT || layout->slices > 1) return evicting | 1U << pays_way(layout);
    return evicting | (ANY_WAY & ~(EVICTING | 1 << PAYS_SLICES));
}

// Returns the longest step with which a candidate of these ways and of at least these bytes still matters: in class 0,
// among the ten best, the fastest of its way, or on the front. layout: the candidate; NULL: any. alike: more candidates
// found with its key; may be NULL.
static double worth_(const Search *search, const RunLayout *layout, unsigned ways, const CandidateList *alike,
                     int64_t bytes) {
    const Standing *standing = &search->standing;
    double most = SEARCH_SLOWER * standing->best, way = 0, tenth = standing->tenth;
    Forecast alike_most = {.layout.bpipe = (ways & EVICTING) != 0, .time.step = SEARCH_ALIKE * standing->best};
    if (search->options->exhaustive) return INFINITY;
    for (int i = 0; i < PAYS_WAYS; i++)
        if (ways >> i & 1) way = max_double(way, standing->ways[i]);
    way = min_double(way, most); // a way that is clearly slower than the fastest of all does not matter
    for (int64_t i = 0; i < standing->front.count; i++) {
        const Candidate *at = &standing->front.items[i];
        double compared = planner_compared(&at->forecast);
        if (compared >= most) break;
        if (at->forecast.peak_bytes <= bytes) most = compared;
    }
    for (int64_t i = 0; alike != NULL && i < alike->count; i++) {
        double compared = planner_compared(&alike->items[i].forecast);
        if (alike->items[i].forecast.peak_bytes <= bytes) most = min_double(most, compared);
        tenth = min_double(tenth, compared);
    }
    most = max_double(max_double(most, planner_compared(&alike_most)), way);
    for (int64_t i = 0; layout != NULL && tenth > most && i < standing->keys.count; i++) {
        const Forecast *key = &standing->keys.items[i].forecast;
        if (same_key_(&key->layout, layout)) tenth = min_double(tenth, planner_compared(key));
    }
    return max_double(most, tenth) / BOUND_SLACK;
}

// Returns whether no candidate of these ways and at least these bytes can matter. layout: as in worth_.
static bool hopeless_(const Search *search, const RunLayout *layout, unsigned ways, double bound, int64_t bytes) {
    return bound > worth_(search, layout, ways, NULL, bytes);
}

static bool node_hopeless_(const Search *search, const Node *node) {
    const RunLayout *list = node->kind == NODE_LIST ? &node->layout : NULL;
    return hopeless_(search, list, ways_of_(search, node), node->bound, node->least_bytes);
}

// ---------------------------------------------------------------- the best so far

// Returns whether a comes before b: by planner_prefers, then by order of discovery.
static bool found_before_(const Candidate *a, const Candidate *b) {
    if (planner_prefers(&a->forecast, &b->forecast)) return true;
    return !planner_prefers(&b->forecast, &a->forecast) && a->order < b->order;
}

static int compare_found_(const void *a, const void *b) { return found_before_(a, b) ? -1 : found_before_(b, a); }

static void standing_take_front_(CandidateList *front, const Candidate *found) {
    double compared = planner_compared(&found->forecast);
    int64_t bytes = found->forecast.peak_bytes, kept = 0, at = 0;
    for (int64_t i = 0; i < front->count; i++) {
        const Forecast *other = &front->items[i].forecast;
        if (planner_compared(other) <= compared && other->peak_bytes <= bytes) return;
    }
    for (int64_t i = 0; i < front->count; i++) {
        const Forecast *other = &front->items[i].forecast;
        if (planner_compared(other) < compared || other->peak_bytes < bytes) front->items[kept++] = front->items[i];
    }
    front->count = kept;
    xpush(front->items, front->count, *found);
    while (at < kept && planner_compared(&front->items[at].forecast) < compared) at++;
    memmove(&front->items[at + 1], &front->items[at], (size_t)(kept - at) * sizeof *front->items);
    front->items[at] = *found;
}

static void standing_take_key_(Standing *standing, const Candidate *found) {
    CandidateList *keys = &standing->keys;
    int64_t at = 0;
    while (at < keys->count && !same_key_(&keys->items[at].forecast.layout, &found->forecast.layout)) at++;
    if (at < keys->count && !found_before_(found, &keys->items[at])) return;
    if (at == keys->count) xpush(keys->items, keys->count, *found);
    // Keeps the list sorted: moves the new entry before all slower entries.
    for (; at > 0 && found_before_(found, &keys->items[at - 1]); at--) keys->items[at] = keys->items[at - 1];
    keys->items[at] = *found;
    standing->best = planner_compared(&keys->items[0].forecast);
    if (keys->count >= SEARCH_BEST) standing->tenth = planner_compared(&keys->items[SEARCH_BEST - 1].forecast);
}

// ---------------------------------------------------------------- shapes, cuts and lists

static bool same_cut_(const RunLayout *a, const RunLayout *b) {
    LayoutMask same = LAYOUT_BIT(chunks) | LAYOUT_BIT(slices) | LAYOUT_BIT(split);
    return layout_same(a, b, same) && schedule_kinds[a->name].placement == schedule_kinds[b->name].placement;
}

static void expand_division_(const Search *search, Config *config, const Node *division, Outcome *outcome) {
    const SearchSpace *space = search->space;
    LayoutList shapes = space_shapes(space, &division->layout, config);
    bool matters = true;
    for (int64_t i = 0; i < shapes.count; i++) {
        Node node = {.layout = shapes.layouts[i], .kind = NODE_SHAPE, .least_bytes = division->least_bytes};
        // The shape before may recompute fewer outputs; if it is too slow, so is this one.
        bool slower = i > 0 && node.layout.pointwise > RECOMPUTE_NONE &&
                      layout_same(&node.layout, &shapes.layouts[i - 1], ~LAYOUT_BIT(pointwise));
        if (slower && !matters) continue;
        node.times = space_layer_times(space, &node.layout, &division->times, config);
        node.bound = shape_bound(space, &node.layout, &node.times);
        matters = !node_hopeless_(search, &node);
        if (matters) xpush(outcome->nodes.nodes, outcome->nodes.count, node);
    }
    free(shapes.layouts);
}

// config: set to the layout of the cut's first list.
static void add_cut_(const Search *search, const Node *shape, Node *node, const Config *config, Outcome *outcome) {
    const SearchSpace *space = search->space;
    Cut cut;
    node->bound = max_double(node->bound, cut_rough_bound(space, config, &shape->times));
    if (node_hopeless_(search, node)) return;
    cut_open(&cut, space, config);
    bool fixed = space_fixes(space, LAYOUT_BIT(recompute));
    node->least_bytes = max_i64(node->least_bytes, fixed ? cut.least_bytes : cut.recomputing_bytes);
    node->kept_bytes = cut.least_bytes;
    cut_free(&cut);
    if (!node_hopeless_(search, node)) xpush(outcome->nodes.nodes, outcome->nodes.count, *node);
}

static void expand_shape_(const Search *search, Config *config, const Node *shape, Outcome *outcome) {
    const SearchSpace *space = search->space;
    int64_t least_bytes = max_i64(shape->least_bytes, space_least_bytes(space, &shape->layout, config));
    if (hopeless_(search, NULL, ways_of_(search, shape), shape->bound, least_bytes)) return;
    LayoutList all = space_schedules(space, &shape->layout, true, config);
    for (int64_t i = 0, k; i < all.count; i++) {
        RunLayout *first = &all.layouts[i];
        for (k = 0; k < i && !same_cut_(&all.layouts[k], first);) k++;
        if (k < i) continue; // the cut was added with an earlier list
        Node even = {.layout = *first, .kind = NODE_CUT, .bound = shape->bound, .least_bytes = least_bytes};
        if (node_hopeless_(search, &even)) continue;
        Node by_time = even;
        by_time.layout.layers = LAYERS_BY_TIME;
        space_set(space, first, config);
        add_cut_(search, shape, &even, config, outcome);
        if (space_set_by_time(space, first, config)) add_cut_(search, shape, &by_time, config, outcome);
    }
    free(all.layouts);
}

static void expand_cut_(const Search *search, Config *config, const Node *first, Outcome *outcome) {
    const SearchSpace *space = search->space;
    Cut cut;
    SearchSpace alike = *space; // the lists of this cut
    alike.keys.given.chunks = first->layout.chunks, alike.keys.given.split = first->layout.split;
    alike.keys.fixed |= LAYOUT_BIT(chunks) | LAYOUT_BIT(split);
    LayoutList lists = space_schedules(&alike, &first->layout, true, config);
    space_set(space, &first->layout, config);
    cut_open(&cut, space, config);
    bool never_fits = !search->options->exhaustive && cut_never_fits(&cut, space, config);
    if (!never_fits) outcome->status = cut_time(&cut, space, config, &outcome->err);
    for (int64_t i = 0; i < lists.count && outcome->status == 0; i++) {
        Node node = *first;
        node.layout = lists.layouts[i], node.kind = NODE_LIST;
        if (!same_cut_(&node.layout, &first->layout)) continue;
        if (!never_fits) {
            node.bound = cut_bound(&cut, &node.layout);
            if (!node_hopeless_(search, &node)) xpush(outcome->nodes.nodes, outcome->nodes.count, node);
            continue;
        }
        Candidate misfit = {.forecast = {.layout = node.layout}, .bound = node.bound, .all = true};
        misfit.forecast.lacks = plan_lacks((double)node.least_bytes, (double)space->planner->hardware.memory_bytes,
                                           space->keys.base->hardware.reserve_gib);
        xpush(outcome->misfits.items, outcome->misfits.count, misfit);
    }
    cut_free(&cut);
    free(lists.layouts);
}

// ---------------------------------------------------------------- a list, in all ways to keep its bundles

typedef struct Trial {
    const Search *search;
    const Node *list;
    Outcome *outcome;
    Config *config;
    Cut cut,
        all; // the list's cut, and the same with all layers recomputed; for the first layout that recomputes layers
    bool opened;
    double unmoved; // lower bound of the step if no transfer delays it and no further layer is recomputed
} Trial;

// Returns a lower bound of the step of a layout that recomputes more or fewer layers than the list, from the list's
// times. config: set to the layout.
static double recomputing_bound_(Trial *trial, const RunLayout *layout) {
    const SearchSpace *space = trial->search->space;
    if (!trial->opened) {
        Config *config = trial->config;
        space_set(space, &trial->list->layout, config);
        cut_open(&trial->cut, space, config);
        trial->outcome->status = cut_time(&trial->cut, space, config, &trial->outcome->err);
        config->schedule.recompute_given = 1, config->schedule.recompute_of_stage[0] = (int16_t)config->model.layers;
        cut_open(&trial->all, space, config);
        if (trial->outcome->status == 0)
            trial->outcome->status = cut_time(&trial->all, space, config, &trial->outcome->err);
        space_set(space, layout, config);
        trial->opened = true;
    }
    return trial->outcome->status == 0 ? cut_recomputing_bound(&trial->cut, &trial->all, trial->config) : INFINITY;
}

// Counts the bytes of a layout and, if it fits and still matters, simulates it. If the layout evicts, slots and
// load_ahead of the candidate are resolved, never auto.
static Forecast try_(void *argument, const RunLayout *layout, const Forecast *kept) {
    static const Forecast none;
    Trial *trial = argument;
    Outcome *outcome = trial->outcome;
    const Search *search = trial->search;
    const Node *list = trial->list;
    const Planner *planner = search->space->planner;
    bool trade = layout->recompute < RECOMPUTE_EVICTING, recomputes = layout->recompute != list->layout.recompute;
    unsigned way = 1U << pays_way(layout);
    // Neither recomputed layers nor evictions shorten a step, except that transfers on shared cards may move messages
    // apart. With the other placement, messages may be faster.
    bool placed = layout->placement == list->layout.placement;
    Forecast unmoved = {.layout = *layout, .time.step = trial->unmoved};
    double bound = max_double(list->bound, placed ? MOVES_SAVE / BOUND_SLACK * planner_compared(&unmoved) : 0);
    int64_t least_bytes = recomputes ? list->least_bytes : list->kept_bytes;
    // A stage needs as many slots as without evictions, or as many as the layout has.
    if (kept != NULL && kept->possible && layout->slots > 0 && !recomputes)
        least_bytes = max_i64(least_bytes, kept->peak_bytes - (kept->slots - layout->slots) * kept->slot_bytes);
    if (outcome->status != 0) return none;
    // Without evictions, the bytes are counted in any case: if they fit, no layers are recomputed.
    if (kept != NULL && bound > worth_(search, layout, way, &outcome->found, least_bytes)) {
        // With recomputed layers, evictions may take less memory than the front has.
        bool smaller =
            layout_evicts(layout) && bound <= worth_(search, layout, way, &outcome->found, list->least_bytes);
        return (Forecast){.possible = smaller};
    }
    if (!space_set(search->space, layout, trial->config)) return none;
    outcome->evaluated++;
    if (recomputes) bound = max_double(bound, recomputing_bound_(trial, layout));
    if (recomputes && hopeless_(search, layout, way, bound, least_bytes)) return none;
    Candidate tried = {.bound = recomputes ? bound : list->bound, .robust = NAN};
    Forecast *forecast = &tried.forecast;
    outcome->status = planner_forecast_config(planner, trial->config, false, forecast, &outcome->err);
    if (outcome->status != 0 || !forecast->possible) return none;
    double worth = worth_(search, layout, way, &outcome->found, forecast->peak_bytes);
    if (forecast->fits && bound <= worth)
        outcome->status = planner_forecast_within(planner, trial->config, worth, forecast, &outcome->err);
    if (outcome->status != 0) return none;
    forecast->layout = *layout;
    // A step's critical path may include all stages' waits for transfers, at most p times the longest waits of a stage.
    // Transfers to a partner may also delay messages, and products leave multiprocessors to them (counted_moves).
    bool partner = layout_evicts(layout) && layout->evict_to == EVICT_TO_PEER;
    if (forecast->time.known && !recomputes && placed && !partner)
        trial->unmoved = max_double(trial->unmoved, forecast->time.step - layout->pipeline * forecast->time.exposed);
    if (layout_evicts(layout)) {
        forecast->layout.slots = forecast->slots;
        forecast->layout.load_ahead = forecast->load_ahead;
    }
    CandidateList *list_of = forecast->fits ? &outcome->found : &outcome->misfits;
    if (forecast->fits ? forecast->time.known : !trade) // no answer reads a trade that does not fit
        xpush(list_of->items, list_of->count, tried);
    return *forecast;
}

static void try_list_(const Search *search, Config *config, const Node *list, Outcome *outcome) {
    Trial trial = {.search = search, .list = list, .outcome = outcome, .config = config};
    bool foreign = config->program != 0; // other programs recompute either no layer or all layers
    space_ways(search->space, &list->layout, foreign ? WAYS_ALL_LAYERS : WAYS_TO_FIT, try_, &trial);
    if (trial.opened) cut_free(&trial.cut), cut_free(&trial.all);
}

// Expands a division in which nothing fits into the lists of its cuts, without cuts that take longer than `most`.
static void open_division_(const Search *search, Config *config, const Node *division, double most, Outcome *outcome) {
    Outcome shapes = {0}, cuts = {0};
    expand_division_(search, config, division, &shapes);
    for (int64_t i = 0; i < shapes.nodes.count; i++)
        if (shapes.nodes.nodes[i].bound <= most) expand_shape_(search, config, &shapes.nodes.nodes[i], &cuts);
    for (int64_t i = 0; i < cuts.nodes.count && outcome->status == 0; i++)
        if (cuts.nodes.nodes[i].bound <= most) expand_cut_(search, config, &cuts.nodes.nodes[i], outcome);
    free_all(shapes.nodes.nodes, cuts.nodes.nodes);
}

int search_open_misfit(const SearchSpace *space, const Candidate *misfit, double most, CandidateList *opened,
                       Error *err) {
    SearchOptions options = {0};
    Search search = {.space = space, .options = &options, .standing = {.best = INFINITY, .tenth = INFINITY}};
    Node node = {.layout = misfit->forecast.layout, .kind = misfit->division ? NODE_DIVISION : NODE_LIST};
    Outcome outcome = {0};
    Config config;
    space_config(space, &node.layout, &config);
    if (misfit->division) {
        node.times = space_least_times(space, &node.layout, &config);
        if (shape_bound(space, &node.layout, &node.times) <= most)
            open_division_(&search, &config, &node, most, &outcome);
    } else {
        Cut cut;
        cut_open(&cut, space, &config);
        outcome.status = cut_time(&cut, space, &config, &outcome.err);
        if (outcome.status == 0) node.bound = cut_bound(&cut, &node.layout);
        cut_free(&cut);
        if (outcome.status == 0 && node.bound <= most) try_list_(&search, &config, &node, &outcome);
    }
    if (outcome.status != 0) error_set(err, outcome.err.code, "%s", outcome.err.text);
    for (int64_t i = 0; i < outcome.misfits.count; i++) outcome.misfits.items[i].order = misfit->order;
    free_all(outcome.found.items, outcome.nodes.nodes);
    *opened = outcome.misfits;
    return outcome.status;
}

// ---------------------------------------------------------------- the search

static void take_outcome_(Search *search, Outcome *outcome) {
    SearchResult *result = search->result;
    for (int64_t i = 0; i < outcome->nodes.count; i++) push_(search, &outcome->nodes.nodes[i]);
    for (int64_t i = 0; i < outcome->found.count; i++) {
        Candidate *found = &outcome->found.items[i];
        found->order = search->orders++;
        xpush(result->found.items, result->found.count, *found);
        standing_take_front_(&search->standing.front, found);
        standing_take_key_(&search->standing, found);
        double *way = &search->standing.ways[pays_way(&found->forecast.layout)];
        *way = min_double(*way, planner_compared(&found->forecast));
    }
    for (int64_t i = 0; i < outcome->misfits.count; i++) {
        outcome->misfits.items[i].order = search->orders++;
        xpush(result->misfits.items, result->misfits.count, outcome->misfits.items[i]);
    }
    result->evaluated += outcome->evaluated;
    result->simulated += outcome->found.count;
    free_all(outcome->nodes.nodes, outcome->found.items, outcome->misfits.items);
}

enum { BATCH = 64, LISTS = 16 };

// Pops the next nodes that can still matter and returns their number; 0 ends the search. Takes few lists at a time,
// since their results exclude other nodes.
static int next_batch_(Search *search, Node batch[BATCH]) {
    int count = 0, lists = 0;
    while (count < BATCH && search->heap.count > 0) {
        if (search->nodes.nodes[search->heap.indices[0]].kind == NODE_LIST && lists == LISTS) break;
        Node node = search->nodes.nodes[heap_pop(&search->heap, search->nodes.nodes)];
        if (hopeless_(search, NULL, ANY_WAY, node.bound, -1)) {
            search->heap.count = 0;
            break;
        }
        if (node_hopeless_(search, &node)) continue;
        lists += node.kind == NODE_LIST;
        batch[count++] = node;
    }
    return count;
}

static int search_batch_(Search *search, const Node *batch, int count, Error *err) {
    Outcome outcomes[BATCH];
    int status = 0, order[BATCH], ordered = 0;
    memset(outcomes, 0, sizeof outcomes);
    // Lists take longest. If they begin first, no thread waits for another that begins one last.
    for (int lists = 1; lists >= 0; lists--)
        for (int i = 0; i < count; i++)
            if ((batch[i].kind == NODE_LIST) == (lists == 1)) order[ordered++] = i;
#pragma omp parallel
    {
        static void (*const open[])(const Search *, Config *, const Node *,
                                    Outcome *) = {expand_division_, expand_shape_, expand_cut_, try_list_};
        Config config = *search->space->keys.base; // a thread sets one layout after another in its own
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < count; i++) {
            int at = order[i];
            open[batch[at].kind](search, &config, &batch[at], &outcomes[at]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (outcomes[i].status != 0 && status == 0)
            status = error_set(err, outcomes[i].err.code, "%s", outcomes[i].err.text);
        take_outcome_(search, &outcomes[i]);
    }
    return status;
}

static int index_of_(const SearchResult *result, const Candidate *found) {
    for (int64_t i = 0; i < result->found.count; i++)
        if (result->found.items[i].order == found->order) return (int)i;
    return -1;
}

int search_class(const SearchResult *result, const Forecast *found) {
    double ratio = found->time.step / result->found.items[result->fastest].forecast.time.step;
    return (int)(log(ratio) / log(SEARCH_ALIKE) + 1e-9);
}

bool search_plainer(const Candidate *a, const Candidate *b) {
    const RunLayout *one = &a->forecast.layout, *other = &b->forecast.layout;
    if (layout_evicts(one) != layout_evicts(other)) return !layout_evicts(one);
    if (one->pipeline != other->pipeline) return one->pipeline < other->pipeline;
    bool whole = one->slices * one->context == 1, other_whole = other->slices * other->context == 1;
    if (whole != other_whole) return whole;
    if (one->pointwise != other->pointwise) return one->pointwise < other->pointwise;
    if (a->forecast.peak_bytes != b->forecast.peak_bytes) return a->forecast.peak_bytes < b->forecast.peak_bytes;
    if ((one->recompute == 0) != (other->recompute == 0)) return one->recompute == 0;
    return found_before_(a, b);
}

// Steps are compared without hardware.step_overhead_ms. A large overhead would make all layouts almost equally fast,
// and no layout could be skipped.
int search_run(SearchResult *result, const SearchSpace *space, const SearchOptions *options, Error *err) {
    Planner planner = *space->planner;
    SearchSpace bare = *space;
    planner.hardware.step = 0;
    bare.planner = &planner;
    Search search = {.space = &bare,
                     .options = options,
                     .result = result,
                     .standing = {.best = INFINITY, .tenth = INFINITY},
                     .heap = {.before = node_before_}};
    double began = clock_seconds();
    int status = 0, count;
    Node batch[BATCH];
    Config config = *space->keys.base;
    *result = (SearchResult){.best = -1, .fastest = -1, .tightest = -1};
    // 1. The heap begins with all divisions.
    NodeList open = {0};
    LayoutList divisions = space_divisions(&bare);
    result->divisions = divisions.count;
    for (int i = 0; i < PAYS_WAYS; i++) search.standing.ways[i] = INFINITY;
    int64_t bytes = 0;
    for (int64_t i = 0; i < divisions.count; i++) {
        Node node = {.layout = divisions.layouts[i]};
        // A division with one microbatch may shard its gradients, so it may need less memory than the previous ones.
        bool one = config.train.global_batch == (int64_t)node.layout.data * node.layout.micro_batch;
        bool again = i > 0 && !one && layout_same(&node.layout, &divisions.layouts[i - 1], ~LAYOUT_BIT(micro_batch));
        if (!again && !options->exhaustive) bytes = space_division_bytes(&bare, &node.layout, &config);
        node.least_bytes = bytes;
        double lacks = plan_lacks((double)bytes, (double)planner.hardware.memory_bytes, config.hardware.reserve_gib);
        if (lacks > 0) {
            Candidate misfit = {.forecast = {.layout = node.layout, .lacks = lacks}, .all = true, .division = true};
            LayoutList schedules = space_schedules(&bare, &node.layout, true, &config);
            misfit.order = search.orders++;
            if (schedules.count > 0) xpush(result->misfits.items, result->misfits.count, misfit);
            free(schedules.layouts);
            continue;
        }
        xpush(open.nodes, open.count, node);
    }
#pragma omp parallel
    {
        Config own = config;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < open.count; i++) {
            Node *node = &open.nodes[i];
            node->times = space_least_times(&bare, &node->layout, &own);
            node->bound = shape_bound(&bare, &node->layout, &node->times);
        }
    }
    for (int64_t i = 0; i < open.count; i++) push_(&search, &open.nodes[i]);
    // 2. Nodes are taken from it until none can matter.
    while (status == 0 && !result->stopped && (count = next_batch_(&search, batch)) > 0) {
        status = search_batch_(&search, batch, count, err);
        result->seconds = clock_seconds() - began;
        if (options->progress != NULL) options->progress(options->argument, result, batch[0].bound);
        result->stopped = options->stop != NULL && *options->stop != 0;
    }
    // 3. The front, from all found candidates. Of equal candidates, it keeps the one that planner_prefers;
    // standing.front keeps the first one found.
    int64_t found = result->found.count, least = INT64_MAX;
    Candidate *items = result->found.items, *sorted = xcalloc((size_t)found + 1, sizeof *sorted);
    for (int64_t i = 0; i < found; i++) sorted[i] = items[i];
    qsort(sorted, (size_t)found, sizeof *sorted, compare_found_);
    double slowest = SEARCH_SLOWER * planner_compared(&sorted[0].forecast);
    result->front = xcalloc((size_t)found + 1, sizeof *result->front);
    for (int64_t i = 0; i < found && planner_compared(&sorted[i].forecast) <= slowest; i++) {
        if (sorted[i].forecast.peak_bytes >= least) continue;
        least = sorted[i].forecast.peak_bytes;
        result->front[result->front_count++] = index_of_(result, &sorted[i]);
    }
    // 4. The fastest, the simplest of class 0, and the ten best.
    for (int i = 0; i < found; i++)
        if (i == 0 || items[i].forecast.time.step < items[result->fastest].forecast.time.step) result->fastest = i;
    result->best = result->fastest;
    for (int i = 0; i < found; i++) {
        if (search_class(result, &items[i].forecast) > 0) continue;
        result->alike += i != result->fastest;
        if (search_plainer(&items[i], &items[result->best])) result->best = i;
    }
    for (int64_t i = 0; i < search.standing.keys.count && i < SEARCH_BEST; i++)
        result->ten[result->ten_count++] = index_of_(result, &search.standing.keys.items[i]);
    for (int64_t i = 0; i < found; i++) {
        PlanTime *time = &items[i].forecast.time;
        time->mfu *= time->step / (time->step + space->planner->hardware.step);
        time->step += space->planner->hardware.step;
    }
    free_all(sorted, divisions.layouts, open.nodes, search.nodes.nodes, search.heap.indices,
             search.standing.front.items, search.standing.keys.items);
    result->seconds = clock_seconds() - began;
    return status;
}

void search_free(SearchResult *result) {
    free_all(result->found.items, result->misfits.items, result->front);
    memset(result, 0, sizeof *result);
}
