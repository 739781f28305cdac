// The path of rows to their experts and back (experts.h).
#include "experts.h"
#include "blocks.h"

#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t experts_rows(const Shape *s, double factor) {
    int64_t copies = s->shard_rows * s->route.chosen;
    if (s->expert_ranks == 1) return copies;
    // A part with one row per rank must fit even if all its copies go to one rank.
    int64_t least = s->route.chosen * s->expert_ranks, rows = (int64_t)ceil(factor * (double)copies);
    return rows > least ? rows : least;
}

void experts_bundle_layout(ExpertsBundle *to, Layout *layout, const Shape *s) {
    int64_t copies = s->shard_rows * s->route.chosen;
    to->chosen = (int32_t *)layout_take(layout, copies * (int64_t)sizeof(int32_t));
    to->weights = (float *)layout_take(layout, copies * (int64_t)sizeof(float));
    to->share = (float *)layout_take(layout, s->balance > 0 ? s->route.experts * (int64_t)sizeof(float) : 0);
    int64_t n = s->keeps_experts ? s->expert_rows : 0;
    to->rows = layout_take(layout, n * s->hidden * s->element);
    to->gate_up = layout_take(layout, 2 * n * s->expert_ffn * s->element);
    to->row_weights = (float *)layout_take(layout, n * (int64_t)sizeof(float));
}

void experts_work_layout(ExpertsWork *to, Layout *layout, const Shape *s) {
    bool alone = s->expert_ranks == 1;
    int64_t copies = s->shard_rows * s->route.chosen, n = s->expert_rows, row = s->hidden * s->element;
    int64_t act = n * s->expert_ffn * s->element, scores = s->shard_rows * s->route.experts;
    to->logits = (float *)layout_take(layout, scores * (int64_t)sizeof(float));
    to->dlogits = layout_take(layout, scores * s->element);
    to->place = (int32_t *)layout_take(layout, copies * 4);
    to->regroup = (int32_t *)layout_take(layout, alone ? 0 : n * 4);
    to->sent = layout_take(layout, alone ? 0 : copies * row);
    to->arrived = layout_take(layout, alone ? 0 : n * row);
    to->rows = layout_take(layout, n * row);
    to->drows = layout_take(layout, n * row);
    to->gate_up = layout_take(layout, 2 * act);
    to->dgate_up = layout_take(layout, 2 * act);
    to->act = layout_take(layout, act);
    to->dact = layout_take(layout, act);
    to->sent_weights = (float *)layout_take(layout, alone ? 0 : copies * 4);
    to->arrived_weights = (float *)layout_take(layout, alone ? 0 : n * 4);
    to->row_weights = (float *)layout_take(layout, n * 4);
    to->drow_weights = (float *)layout_take(layout, n * 4);
    to->dweights = (float *)layout_take(layout, copies * 4);
    to->output = layout_take(layout, s->ffn > 0 ? s->shard_rows * row : 0);
}

// ---------------------------------------------------------------- who sends how much to whom

// The parts in which the rows of all ranks of the group are sent, and the part in progress.
typedef struct Dispatch {
    Pass *pass;
    int64_t parts;
    double *counts;            // (e, parts, E): copies that a rank sends to an expert
    double *sums;              // (E): copies for each expert, summed by fullest_
    int64_t *first;            // (E/e + 1): this rank's experts' rows, as experts_forward reads them
    int32_t *regroup;          // (expert_rows)
    int64_t part, begin, rows; // the part, and this rank's rows of it
    int64_t arrived;           // copies that this rank's experts get
} Dispatch;

static double count_(const Dispatch *d, int64_t rank, int64_t part, int64_t expert) {
    return d->counts[(rank * d->parts + part) * d->pass->shape->route.experts + expert];
}

static int64_t held_(const Shape *s) { return s->route.experts / s->expert_ranks; }

static int expert_rank_(const Pass *pass) { return pass->experts == NULL ? 0 : pass->experts->rank; }

// Returns the copies of the part in progress that the experts of rank `to` get from rank `from`.
static int64_t copies_(const Dispatch *d, int64_t from, int64_t to) {
    int64_t held = held_(d->pass->shape), sum = 0;
    for (int64_t n = to * held; n < (to + 1) * held; n++) sum += (int64_t)count_(d, from, d->part, n);
    return sum;
}

// Adds up the copies of parts [part, end) for each expert in `sums`, exactly, because counts are integers. Returns
// the rows of the fullest rank.
static double fullest_(const Dispatch *d, int64_t part, int64_t end) {
    const Shape *s = d->pass->shape;
    int64_t experts = s->route.experts;
    double rows = 0, most = 0;
    memset(d->sums, 0, (size_t)experts * sizeof *d->sums);
    for (; part < end; part++)
        for (int64_t from = 0; from < s->expert_ranks; from++) {
            const double *counts = &d->counts[(from * d->parts + part) * experts];
            for (int64_t n = 0; n < experts; n++) d->sums[n] += counts[n];
        }
    for (int64_t n = 0; n < experts; n++) {
        rows = n % held_(s) == 0 ? d->sums[n] : rows + d->sums[n];
        most = fmax(most, rows);
    }
    return most;
}

// Returns whether every part fits into every rank's buffers.
static bool fits_(const Dispatch *d) {
    double most = 0;
    for (int64_t part = 0; part < d->parts; part++) most = fmax(most, fullest_(d, part, part + 1));
    return most <= (double)d->pass->shape->expert_rows;
}

// Counts the copies for each expert. The host waits for the device, and messages move meanwhile.
static void counts_(Pass *pass, int64_t *counts, int64_t parts, const int32_t *chosen) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    int looks = 0;
    if (pass->routed != NULL) be->event_record(be, pass->routed, STREAM_COMPUTE);
    while (pass->routed != NULL && !be->event_done(be, pass->routed) && pass->poll(pass->poll_argument, false))
        comm_pause_briefly(&looks);
    be->route_counts(be, counts, parts, chosen, s->shard_rows, &s->route);
}

// Fills the counts of all ranks for d->parts parts. After an error, which is in pass->err, every count is 0.
static void gather_counts_(Dispatch *d, const int32_t *chosen) {
    Pass *pass = d->pass;
    const Shape *s = pass->shape;
    int64_t each = d->parts * s->route.experts;
    int64_t *mine = xcalloc((size_t)each, sizeof *mine);
    d->counts = xrealloc(d->counts, (size_t)(each * s->expert_ranks) * sizeof *d->counts);
    memset(d->counts, 0, (size_t)(each * s->expert_ranks) * sizeof *d->counts);
    counts_(pass, mine, d->parts, chosen);
    double *own = d->counts + expert_rank_(pass) * each;
    for (int64_t i = 0; i < each; i++) own[i] = (double)mine[i];
    free(mine);
    if (pass->experts == NULL) return;
    pass_collective(pass, pass->experts, COMM_ALL_GATHER, d->counts, own, each, COMM_DOUBLE);
    if (pass->err->code != 0) memset(d->counts, 0, (size_t)(each * s->expert_ranks) * sizeof *d->counts);
}

// All ranks of the group find the same number of parts, from the same counts. The loop ends, because a part with one
// row of each rank always fits (experts_rows).
static Dispatch dispatch_open_(Pass *pass, const int32_t *chosen) {
    const Shape *s = pass->shape;
    Dispatch d = {.pass = pass, .parts = 1};
    d.sums = xcalloc((size_t)s->route.experts, sizeof *d.sums);
    d.first = xcalloc((size_t)held_(s) + 1, sizeof *d.first);
    d.regroup = xmalloc((size_t)s->expert_rows * sizeof *d.regroup);
    for (gather_counts_(&d, chosen); !fits_(&d); gather_counts_(&d, chosen)) {
        d.parts *= 2;
        assert(d.parts < 2 * s->shard_rows);
    }
    return d;
}

static void dispatch_close_(Dispatch *d) { free_all(d->counts, d->sums, d->first, d->regroup); }

static void add_load_(const Dispatch *d, const ExpertsBundle *bundle, const ExpertsWork *work) {
    const Shape *s = d->pass->shape;
    ExpertLoad *load = &d->pass->load;
    double all = 0, squares = 0, experts = (double)s->route.experts, held = (double)held_(s);
    double most = fullest_(d, 0, d->parts);
    for (int64_t n = 0; n < s->route.experts; n++) all += d->sums[n], squares += d->sums[n] * d->sums[n];
    double mean = all / experts;
    if (all == 0) return; // only after an error
    load->forwards++;
    load->parts += (double)d->parts;
    load->fullest += most / (mean * held);
    load->spread += sqrt(fmax(0, squares / experts - mean * mean)) / mean;
    for (int64_t part = 0; part < d->parts && d->pass->copies != NULL; part++)
        for (int64_t n = 0; n < s->route.experts; n++) d->pass->copies[n] += count_(d, expert_rank_(d->pass), part, n);
    if (s->balance == 0) return;
    double sum = 0;
    d->pass->be->route_balance(d->pass->be, &sum, work->logits, bundle->share, s->shard_rows, &s->route);
    load->balance += sum / (s->balance * (double)d->pass->scale * (double)(s->rows * s->context_ranks));
}

// Finds the positions of the copies that arrive. They are ordered by rank, expert and row; grouped products need the
// order expert, rank, row.
static void regroup_(Dispatch *d) {
    const Shape *s = d->pass->shape;
    int64_t held = held_(s), mine = expert_rank_(d->pass) * held, at = 0;
    int64_t *next = xmalloc((size_t)held * sizeof *next); // where the next rank's copies for an expert go
    memcpy(next, d->first, (size_t)held * sizeof *next);
    for (int64_t rank = 0; rank < s->expert_ranks; rank++)
        for (int64_t n = 0; n < held; n++) {
            int32_t to = (int32_t)next[n], count = (int32_t)count_(d, rank, d->part, mine + n);
            for (int32_t i = 0; i < count; i++) d->regroup[at + i] = to + i;
            at += count, next[n] += count;
        }
    free(next);
}

// Begins part `part`: computes the positions of this rank's copies, ordered by expert and row, and the positions of the
// copies that arrive.
static void dispatch_part_(Dispatch *d, const ExpertsWork *work, const int32_t *chosen, int64_t part) {
    Pass *pass = d->pass;
    const Shape *s = pass->shape;
    int64_t held = held_(s), first = expert_rank_(pass) * held;
    d->part = part;
    d->begin = s->shard_rows * part / d->parts;
    d->rows = s->shard_rows * (part + 1) / d->parts - d->begin;
    pass->be->route_places(pass->be, work->place, chosen + d->begin * s->route.chosen, d->rows, &s->route);
    d->first[0] = 0;
    for (int64_t n = 0; n < held; n++) {
        d->first[n + 1] = d->first[n];
        for (int64_t rank = 0; rank < s->expert_ranks; rank++)
            d->first[n + 1] += (int64_t)count_(d, rank, part, first + n);
    }
    d->arrived = d->first[held];
    assert(d->arrived <= s->expert_rows);
    if (pass->be->rehearses) d->first[held] = s->expert_rows; // as many rows as a step may have
    if (pass->experts == NULL) return;
    if (!pass->be->counts) regroup_(d);
    pass->be->upload(pass->be, work->regroup, d->regroup, d->arrived * (int64_t)sizeof *d->regroup);
}

// Exchanges the part's rows of `bytes` bytes, to the experts or back, and waits. Messages progress meanwhile, as in
// blocks.c.
static void exchange_(Dispatch *d, void *out, const void *in, bool back, int64_t bytes) {
    Pass *pass = d->pass;
    int64_t ranks = pass->shape->expert_ranks, *counts = xcalloc((size_t)(2 * ranks), sizeof *counts);
    int64_t *there = counts + (back ? 0 : ranks), *here = counts + (back ? ranks : 0);
    CommRequest request = {0};
    for (int64_t r = 0; r < ranks; r++) {
        there[r] = copies_(d, expert_rank_(pass), r) * bytes;
        here[r] = copies_(d, r, expert_rank_(pass)) * bytes;
    }
    if (pass->experts->exchange(pass->experts, out, counts, in, counts + ranks, &request, pass->err) == 0)
        comm_wait_polling(pass->experts, &request, pass->poll, pass->poll_argument, pass->err);
    if (pass->poll != NULL) pass->poll(pass->poll_argument, true);
    free(counts);
}

// Memory of the rows in flight: activations or weights.
typedef struct Parcels {
    void *sent, *arrived;
    int64_t bytes; // bytes of a row
} Parcels;

// Sends rows to the experts of their k copies; `to` receives them in the order of experts.
static void send_(Dispatch *d, const ExpertsWork *work, const Parcels *way, void *to, const void *from, int64_t rows,
                  int64_t k) {
    Backend *be = d->pass->be;
    bool alone = d->pass->experts == NULL;
    be->rows_scatter(be, alone ? to : way->sent, from, work->place, rows, k, way->bytes);
    if (alone) return;
    exchange_(d, way->arrived, way->sent, false, way->bytes);
    if (d->arrived > 0) be->rows_scatter(be, to, way->arrived, work->regroup, d->arrived, 1, way->bytes);
}

// Sends the experts' outputs back to the ranks of their rows; the result has the copies in the order of `place`.
static void *return_(Dispatch *d, const ExpertsWork *work, const Parcels *way, void *from) {
    Backend *be = d->pass->be;
    if (d->pass->experts == NULL) return from;
    if (d->arrived > 0) be->rows_gather(be, way->arrived, from, work->regroup, d->arrived, way->bytes);
    exchange_(d, way->sent, way->arrived, true, way->bytes);
    return way->sent;
}

// ---------------------------------------------------------------- the layer

// The weights of this rank's experts: for each expert gate | up (2f, h), then down (h, f).
typedef struct Weights {
    const void *up, *down;
    float *dup, *ddown;
    int64_t stride;
} Weights;

static Weights weights_(const Shape *s, const Tensor *first) {
    int64_t up = 2 * s->expert_ffn * s->hidden;
    return (Weights){first->weight, (const char *)first->weight + up * s->element, first->gradient,
                     first->gradient + up, up + s->hidden * s->expert_ffn};
}

static void *row_(const void *rows, int64_t index, int64_t bytes) { return (char *)rows + index * bytes; }

// A part's rows at their experts, in the order of experts.
typedef struct ExpertInputs {
    void *rows, *gate_up; // (n, h), (n, 2 f)
    float *weights;       // (n)
    bool kept;            // they are in the bundle, so the backward finds them there
} ExpertInputs;

static ExpertInputs inputs_(const Dispatch *d, const ExpertsWork *work, const ExpertsBundle *bundle) {
    if (d->pass->shape->keeps_experts && d->part == 0)
        return (ExpertInputs){bundle->rows, bundle->gate_up, bundle->row_weights, .kept = true};
    return (ExpertInputs){work->rows, work->gate_up, work->row_weights, .kept = false};
}

// Sends a part's rows and weights to their experts and computes gate and up there.
static void experts_up_(Dispatch *d, const ExpertInputs *in, const ExpertsWork *work, const ExpertsBundle *bundle,
                        const Weights *w, const Parcels *rows, const Parcels *weights, const void *x) {
    const Shape *s = d->pass->shape;
    Backend *be = d->pass->be;
    int64_t k = s->route.chosen;
    send_(d, work, rows, in->rows, row_(x, d->begin, rows->bytes), d->rows, k);
    send_(d, work, weights, in->weights, bundle->weights + d->begin * k, d->rows * k, 1);
    if (d->arrived > 0)
        be->experts_forward(be, in->gate_up, in->rows, w->up, w->stride, d->first, held_(s), s->hidden,
                            2 * s->expert_ffn);
}

// Computes act = w swiglu(gate, up).
static void experts_act_(const Dispatch *d, const ExpertInputs *in, const ExpertsWork *work) {
    Backend *be = d->pass->be;
    be->swiglu_forward(be, factor_plain(work->act), in->gate_up, in->weights, d->arrived, d->pass->shape->expert_ffn);
}

// The balance loss (Fedus et al. 2021) of a microbatch of T tokens is balance * E * sum over i of f_i P_i, where f_i =
// counts_i / (k T) is the share of expert i, which has no gradient, and P_i the mean of its scores. So the gradient of
// a score of any token is balance * E * f_i / T; the run's loss is a mean over the tokens of a step.
static void balance_(Pass *pass, const ExpertsBundle *bundle) {
    const Shape *s = pass->shape;
    int64_t experts = s->route.experts, *counts = xcalloc((size_t)experts, sizeof *counts);
    double *all = xcalloc((size_t)experts, sizeof *all), tokens = (double)(s->rows * s->context_ranks);
    float *share = xcalloc((size_t)experts, sizeof *share);
    counts_(pass, counts, 1, bundle->chosen);
    for (int64_t n = 0; n < experts; n++) all[n] = (double)counts[n];
    Comm *others[] = {s->sequence ? pass->tensor : NULL, pass->context[0]}; // ranks with other tokens of the microbatch
    for (int i = 0; i < 2; i++)
        if (others[i] != NULL) pass_collective(pass, others[i], COMM_ALL_REDUCE, all, all, experts, COMM_DOUBLE);
    for (int64_t n = 0; n < experts; n++)
        share[n] = (float)(s->balance * (double)experts * all[n] / ((double)s->route.chosen * tokens) * pass->scale);
    pass->be->upload(pass->be, bundle->share, share, experts * (int64_t)sizeof *share);
    free_all(counts, all, share);
}

// Replaces the choice of a rehearsal, whose tokens are all the same: the rows of all ranks, in order, spread over the
// experts, so that each rank's experts get rows, however few there are. Without rows a rank runs no expert's operation.
static void spread_(const Pass *pass, const ExpertsBundle *bundle) {
    const Shape *s = pass->shape;
    int64_t k = s->route.chosen, experts = s->route.experts, before = expert_rank_(pass) * s->shard_rows;
    int64_t all = s->expert_ranks * s->shard_rows;
    int32_t *chosen = xmalloc((size_t)(s->shard_rows * k) * sizeof *chosen);
    for (int64_t row = 0; row < s->shard_rows; row++)
        for (int64_t j = 0; j < k; j++)
            chosen[row * k + j] = (int32_t)(min_i64((before + row) * experts / all, experts - k) + j);
    pass->be->upload(pass->be, bundle->chosen, chosen, s->shard_rows * k * (int64_t)sizeof *chosen);
    free(chosen);
}

void experts_route(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work,
                   const void *x) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const float *bias = t[LAYER_ROUTER_BIAS] == NULL ? NULL : t[LAYER_ROUTER_BIAS]->weight;
    be->router_forward(be, work->logits, x, t[LAYER_ROUTER]->weight, s->shard_rows, s->hidden, s->route.experts);
    be->route_forward(be, bundle->chosen, bundle->weights, work->logits, bias, s->shard_rows, &s->route);
    if (be->rehearses) spread_(pass, bundle);
    if (s->balance > 0) balance_(pass, bundle);
}

void experts_forward(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work, void *y,
                     const void *x) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Weights w = weights_(s, t[LAYER_EXPERTS]);
    const Parcels rows = {work->sent, work->arrived, s->hidden * s->element},
                  weights = {work->sent_weights, work->arrived_weights, sizeof(float)};
    Dispatch d = dispatch_open_(pass, bundle->chosen);
    if (pass->trains) add_load_(&d, bundle, work);
    for (int64_t part = 0; part < d.parts; part++) {
        dispatch_part_(&d, work, bundle->chosen, part);
        const ExpertInputs in = inputs_(&d, work, bundle);
        experts_up_(&d, &in, work, bundle, &w, &rows, &weights, x);
        if (d.arrived > 0) {
            experts_act_(&d, &in, work);
            be->experts_forward(be, work->rows, work->act, w.down, w.stride, d.first, held_(s), s->expert_ffn,
                                s->hidden);
        }
        const void *copies = return_(&d, work, &rows, work->rows);
        be->rows_combine(be, row_(y, d.begin, rows.bytes), copies, work->place, d.rows, s->route.chosen, s->hidden);
    }
    dispatch_close_(&d);
}

// Adds the counts of this rank's copies to the gradient of the scores' bias. A float represents integers up to 2^24
// exactly.
static void count_for_bias_(const Dispatch *d, const ExpertsWork *work, const Tensor *bias) {
    Backend *be = d->pass->be;
    int64_t experts = d->pass->shape->route.experts;
    float *counts = xcalloc((size_t)experts, sizeof *counts);
    for (int64_t part = 0; part < d->parts; part++)
        for (int64_t n = 0; n < experts; n++) counts[n] += (float)count_(d, expert_rank_(d->pass), part, n);
    be->upload(be, work->logits, counts, experts * (int64_t)sizeof *counts);
    be->accumulate(be, bias->gradient, work->logits, experts);
    free(counts);
}

void experts_backward(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work,
                      void *dx, const void *dy, const void *x) {
    const Shape *s = pass->shape;
    Backend *be = pass->be;
    const Tensor *router = t[LAYER_ROUTER];
    int64_t k = s->route.chosen, h = s->hidden, f = s->expert_ffn, held = held_(s), experts = s->route.experts;
    const Weights w = weights_(s, t[LAYER_EXPERTS]);
    const Parcels rows = {work->sent, work->arrived, h * s->element},
                  weights = {work->sent_weights, work->arrived_weights, sizeof(float)};
    Dispatch d = dispatch_open_(pass, bundle->chosen);
    if (t[LAYER_ROUTER_BIAS] != NULL) count_for_bias_(&d, work, t[LAYER_ROUTER_BIAS]);
    for (int64_t part = 0; part < d.parts; part++) {
        dispatch_part_(&d, work, bundle->chosen, part);
        const ExpertInputs in = inputs_(&d, work, bundle);
        if (!in.kept) experts_up_(&d, &in, work, bundle, &w, &rows, &weights, x);
        send_(&d, work, &rows, work->drows, row_(dy, d.begin, rows.bytes), d.rows, k);
        if (d.arrived > 0) {
            experts_act_(&d, &in, work);
            be->experts_backward_weight(be, w.ddown, w.stride, work->drows, work->act, d.first, held, f, h);
            be->experts_backward_input(be, work->dact, work->drows, w.down, w.stride, d.first, held, f, h);
            be->swiglu_backward(be, factor_plain(work->dgate_up), work->drow_weights, work->dact, in.gate_up,
                                in.weights, d.arrived, f);
            be->experts_backward_weight(be, w.dup, w.stride, work->dgate_up, in.rows, d.first, held, h, 2 * f);
            be->experts_backward_input(be, work->drows, work->dgate_up, w.up, w.stride, d.first, held, h, 2 * f);
        }
        const void *copies = return_(&d, work, &rows, work->drows);
        be->rows_combine(be, row_(dx, d.begin, rows.bytes), copies, work->place, d.rows, k, h);
        copies = return_(&d, work, &weights, work->drow_weights);
        be->rows_gather(be, work->dweights + d.begin * k, copies, work->place, d.rows * k, sizeof(float));
    }
    dispatch_close_(&d);

    // Computes the router's part of dx in the memory of the experts' rows.
    const Factor dlogits = factor_plain(work->dlogits);
    be->router_forward(be, work->logits, x, router->weight, s->shard_rows, h, experts);
    be->route_backward(be, work->dlogits, work->dweights, bundle->chosen, work->logits,
                       s->balance > 0 ? bundle->share : NULL, s->router_z * pass->scale, s->shard_rows, &s->route);
    be->linear_backward_weight(be, router->gradient, NULL, dlogits, factor_plain(x), s->shard_rows, h, experts, true);
    be->linear_backward_input(be, work->rows, NULL, dlogits, factor_plain(router->weight), s->shard_rows, h, experts,
                              EPILOGUE_NONE);
    be->combine(be, dx, 1, dx, 1, work->rows, s->shard_rows * h);
}
