// The end of a step (optimizer.h). Two decisions keep the numbers the same for every partition. The two gradients of a
// tied weight have a buffer each and are added once, embedding first, even if they are on one rank. Squares are summed
// per tensor and then added in the table's order, whichever rank holds the tensor.
//
// The order of a step's end, which data, tensor and tied groups depend on:
//
//   gradients   sum over data ranks (zero.c), into each rank's piece
//   tied        embedding + head, in that order, on one rank or between the two that hold them
//   norms       gradients of norm weights: sum over tensor ranks, because each rank saw only its rows or heads
//   squares     one number per tensor; the sum over the world only gathers them: one rank contributes each number
//   step guard  decides, from numbers that are equal on all ranks (step_guard.h)
//   Muon        each matrix's momentum becomes a direction on the data rank that is its home (muon.h)
//   AdamW       each data rank updates its piece, and Muon's matrices by their directions
//   weights     pieces are gathered (zero.c), until the next forward uses them
#include "optimizer.h"
#include "base/alloc.h"

#include "muon.h"
#include "zero.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Optimizer {
    Stage *stage;
    OptimizerGroups groups;
    Zero *zero;
    Muon *muon;        // NULL: train.optimizer is adamw
    AdamwTensor *list; // [count] this rank's parts, in table order
    int64_t *counted;  // [count] table index if only this rank counts the tensor's squares, else -1
    int64_t count;
    double *squares; // (tensor ranks, table entries): filled in by the holder of the tensor, else 0
    double *own;     // squared norms of the list's entries
};

// Lists the tensors that this rank owns a piece of. A weight held by several ranks is counted once in sums over the
// model: an unsplit tensor on tensor rank 0, a tied weight on the stage of the embedding.
static void list_owned_(Optimizer *optimizer) {
    const Stage *stage = optimizer->stage;
    for (int64_t i = 0; i < stage->tensors.count; i++) {
        const Tensor *tensor = &stage->tensors.tensors[i];
        const TensorSpec *spec = tensor->spec;
        TensorPiece piece = tensors_piece(&stage->tensors, i);
        if (tensor->alias || spec->buffer || piece.begin >= piece.end) continue;
        double scale = piece.v == NULL ? muon_factor(&stage->config->train, spec) : 0.0;
        bool replica = spec->split == SPLIT_NONE && spec->expert < 0 && stage->at.shape.tensor_rank > 0;
        optimizer->counted[optimizer->count] = spec->tied_to < 0 && !replica ? tensor->index : -1;
        optimizer->list[optimizer->count++] =
            (AdamwTensor){piece.weight, piece.master,    piece.m, piece.v, piece.gradient, piece.end - piece.begin,
                          spec->decay,  tensor->written, scale};
    }
}

Optimizer *optimizer_create(Stage *stage, const OptimizerGroups *groups) {
    Optimizer *optimizer = xcalloc(1, sizeof *optimizer);
    int64_t held = stage->tensors.count, all = stage->table.count * stage->at.shape.tensor_ranks;
    optimizer->stage = stage;
    optimizer->groups = *groups;
    optimizer->list = xcalloc((size_t)held, sizeof *optimizer->list);
    optimizer->counted = xcalloc((size_t)held, sizeof *optimizer->counted);
    optimizer->own = xcalloc((size_t)held, sizeof *optimizer->own);
    optimizer->squares = xcalloc((size_t)all, sizeof *optimizer->squares);
    optimizer->zero = zero_create(stage, groups->data, groups->experts);
    sums_lend(groups->data, &stage->workspaces.data);
    sums_lend(groups->tied, &stage->workspaces.tied);
    sums_lend(groups->experts, &stage->workspaces.experts);
    list_owned_(optimizer);
    if (stage->tensors.muon)
        optimizer->muon =
            muon_create(&stage->tensors, stage->be, groups->tensor, stage->muon_work, &stage->config->train);
    return optimizer;
}

void optimizer_destroy(Optimizer *optimizer) {
    if (optimizer == NULL) return;
    zero_destroy(optimizer->zero);
    muon_destroy(optimizer->muon);
    sums_lend(optimizer->groups.data, NULL);
    sums_lend(optimizer->groups.tied, NULL);
    sums_lend(optimizer->groups.experts, NULL);
    free_all(optimizer->list, optimizer->counted, optimizer->own, optimizer->squares, optimizer);
}

// Returns wsd's decay factor f: the learning rate is minimum + f * (lr - minimum). left: the fraction of decay steps
// left. 1 - sqrt: Haegele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024.
static double decay_shape_(const TrainConfig *train, double left) {
    switch (train->decay_shape) {
    case DECAY_COSINE: return 0.5 * (1.0 + cos(3.14159265358979323846 * (1.0 - left)));
    case DECAY_SQRT:
    case DECAY_1_SQRT: return 1.0 - sqrt(1.0 - left);
    default: return left;
    }
}

double optimizer_lr(const TrainConfig *train, int64_t step) {
    if (step <= train->warmup_steps) return train->lr * (double)step / (double)train->warmup_steps;
    double steps = (double)(train->steps - train->warmup_steps);
    double progress = (double)(step - train->warmup_steps) / steps, left = (1.0 - progress) / 0.1;
    if (train->decay_steps > 0) left = (double)(train->steps - step) / (double)train->decay_steps;
    double low = train->lr * train->min_lr_ratio, range = train->lr - low;
    switch (train->schedule) {
    case LR_COSINE: return low + range * 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
    case LR_LINEAR: return low + range * (1.0 - progress);
    case LR_WSD:
        if (train->decay_steps == 0 && train->decay_shape == DECAY_LINEAR) // keeps the bits of earlier versions
            return progress <= 0.9 ? train->lr : low + range * (1.0 - progress) / 0.1;
        return left >= 1.0 ? train->lr : low + range * decay_shape_(train, left);
    default: return train->lr;
    }
}

static TensorPiece piece_of_(const Stage *stage, const Tensor *tensor) {
    return tensors_piece(&stage->tensors, tensor - stage->tensors.tensors);
}

// Returns the head's matrix if it is tied to the embedding and both are on this rank; else NULL.
static const Tensor *tied_alias_(const Stage *stage) {
    const Tensor *head = stage->head == NULL ? NULL : &stage->head[stage->model->head_matrix];
    return head != NULL && head->alias ? head : NULL;
}

static void add_alias_(const Stage *stage, const Tensor *head) {
    TensorPiece to = piece_of_(stage, &stage->embedding[0]), from = piece_of_(stage, head);
    if (to.begin < to.end) stage->be->accumulate(stage->be, to.gradient, from.gradient, to.end - to.begin);
    stage->be->zero(stage->be, head->gradient, head->count * 4);
}

static int sum_piece_(Comm *comm, TensorPiece piece, Error *err) {
    if (piece.begin >= piece.end) return 0;
    return comm_collect_now(comm, COMM_ALL_REDUCE, piece.gradient, piece.gradient, piece.end - piece.begin, COMM_FLOAT,
                            err);
}

// Adds the embedding's and the head's gradient of a tied weight. Each gradient has its own buffer, on one rank or on
// two. They are added once, embedding first, in each rank's piece after the sum over data ranks. So the order of
// additions is the same for every number of stages.
static int meet_tied_(Optimizer *optimizer, Error *err) {
    Stage *stage = optimizer->stage;
    const Tensor *alias = tied_alias_(stage);
    if (alias != NULL) add_alias_(stage, alias);
    if (alias != NULL || optimizer->groups.tied == NULL) return 0;
    const Tensor *end = stage->embedding != NULL ? &stage->embedding[0] : &stage->head[stage->model->head_matrix];
    return sum_piece_(optimizer->groups.tied, piece_of_(stage, end), err);
}

// Sums over the tensor ranks the gradients of norm weights, which each rank computed from only its rows or heads.
static int meet_shards_(Optimizer *optimizer, Error *err) {
    Stage *stage = optimizer->stage;
    for (int64_t i = 0; stage->at.shape.tensor_ranks > 1 && i < stage->tensors.count; i++) {
        if (!tensor_summed(stage->tensors.tensors[i].spec, stage->at.shape.sequence)) continue;
        if (sum_piece_(optimizer->groups.tensor, tensors_piece(&stage->tensors, i), err) != 0) return -1;
    }
    return 0;
}

// Fills squares[tensor rank][table entry] with the squares of the gradients in `list`. Data ranks add up their pieces
// first; after that every entry has one contributor, so the sum over the world is exact in any order. The pieces of an
// expert's tensor may lie on several tensor ranks; their sums are added at the end.
static int gather_squares_(Optimizer *optimizer, const AdamwTensor *list, Error *err) {
    Stage *stage = optimizer->stage;
    Comm *data = optimizer->groups.data;
    int64_t entries = stage->table.count, ranks = stage->at.shape.tensor_ranks;
    double *mine = optimizer->squares + stage->at.shape.tensor_rank * entries;
    stage->be->squared_norms(stage->be, optimizer->own, list, optimizer->count);
    memset(optimizer->squares, 0, (size_t)(entries * ranks) * sizeof *optimizer->squares);
    for (int64_t i = 0; i < optimizer->count; i++)
        if (optimizer->counted[i] >= 0) mine[optimizer->counted[i]] = optimizer->own[i];
    if (data != NULL) {
        if (comm_collect_now(data, COMM_ALL_REDUCE, mine, mine, entries, COMM_DOUBLE, err) != 0) return -1;
        if (data->rank > 0) memset(mine, 0, (size_t)entries * sizeof *mine);
    }
    World *world = optimizer->groups.world;
    return world == NULL ? 0 : world_sum(world, optimizer->squares, entries * ranks, err);
}

int optimizer_norm(Optimizer *optimizer, double *norm, Error *err) {
    const Stage *stage = optimizer->stage;
    if (zero_reduce_gradients(optimizer->zero, err) != 0 || meet_tied_(optimizer, err) != 0 ||
        meet_shards_(optimizer, err) != 0 || gather_squares_(optimizer, optimizer->list, err) != 0)
        return -1;
    double total = 0.0;
    for (int64_t i = 0; i < stage->table.count; i++)
        for (int64_t r = 0; r < stage->at.shape.tensor_ranks; r++)
            total += optimizer->squares[r * stage->table.count + i];
    *norm = sqrt(total);
    return 0;
}

// Returns the sum of squares of one table entry over all tensor ranks.
static double squares_(const Optimizer *optimizer, int64_t entry) {
    const Stage *stage = optimizer->stage;
    double sum = 0.0;
    for (int r = 0; r < stage->at.shape.tensor_ranks; r++) sum += optimizer->squares[r * stage->table.count + entry];
    return sum;
}

int optimizer_blame(Optimizer *optimizer, Blame *blame, Error *err) {
    const TensorTable *table = &optimizer->stage->table;
    memset(blame, 0, sizeof *blame);
    for (int64_t i = table->count - 1; i >= 0 && blame->gradient == NULL; i--) {
        blame->squares = squares_(optimizer, i);
        if (isfinite(blame->squares)) continue;
        blame->gradient = &table->specs[i];
        blame->gradient_stage = stage_holding(optimizer->stage, i);
    }
    AdamwTensor *weights = xmalloc((size_t)(optimizer->count + 1) * sizeof *weights);
    for (int64_t i = 0; i < optimizer->count; i++) {
        weights[i] = optimizer->list[i];
        weights[i].gradient = weights[i].master != NULL ? weights[i].master : (float *)weights[i].weight;
    }
    int gathered = gather_squares_(optimizer, weights, err);
    free(weights);
    for (int64_t i = 0; gathered == 0 && i < table->count && blame->weight == NULL; i++) {
        if (isfinite(squares_(optimizer, i))) continue;
        blame->weight = &table->specs[i];
        blame->weight_stage = stage_holding(optimizer->stage, i);
    }
    return gathered;
}

void optimizer_skip(Optimizer *optimizer) {
    Stage *stage = optimizer->stage;
    tensors_zero_gradients(&stage->tensors, stage->be, false);
}

// Updates this rank's pieces of the routers' biases. A token always has experts_per_token copies, so the mean of the
// counts is known in advance.
static void balance_(const Stage *stage, int64_t step, double rate) {
    const ModelConfig *m = &stage->config->model;
    double tokens = (double)(config_batch_at(stage->config, step) * m->seq_len);
    for (int64_t i = 0; i < stage->tensors.count; i++) {
        TensorPiece piece = tensors_piece(&stage->tensors, i);
        if (!stage->tensors.tensors[i].spec->buffer || piece.begin >= piece.end) continue;
        stage->be->route_bias(stage->be, piece.weight, piece.gradient, piece.end - piece.begin,
                              tokens * (double)m->experts_per_token / (double)m->experts, rate);
    }
}

int optimizer_rehearse(Optimizer *optimizer, Error *err) {
    Stage *stage = optimizer->stage;
    Backend *be = stage->be;
    // With zero gradients, zero moments and a zero learning rate, the update changes no bit.
    const AdamwStep still = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1.0, .gradient_scale = 1.0, .step = 1};
    if (!be->loads_late) return 0;
    if (tied_alias_(stage) != NULL) add_alias_(stage, tied_alias_(stage));
    be->squared_norms(be, optimizer->own, optimizer->list, optimizer->count);
    bool measures = be->products != NULL && be->products->measures; // --tune: products of zeros draw less power
    if (!measures) tensors_zero_gradients(&stage->tensors, be, true);
    if (optimizer->muon != NULL) muon_rehearse(optimizer->muon);
    be->adamw(be, optimizer->list, optimizer->count, &still);
    balance_(stage, 1, 0);
    return be->synchronize(be, err);
}

int optimizer_update(Optimizer *optimizer, int64_t step, int64_t skipped, double norm, Error *err) {
    Stage *stage = optimizer->stage;
    const TrainConfig *train = &stage->config->train;
    double lr = optimizer_lr(train, step), clip = train->grad_clip;
    double scale = clip > 0.0 && norm > clip ? clip / norm : 1.0;
    AdamwStep update = {lr, train->beta1, train->beta2, train->eps, train->weight_decay, scale, step - skipped};
    if (optimizer->muon != NULL && muon_directions(optimizer->muon, scale, err) != 0) return -1;
    stage->be->adamw(stage->be, optimizer->list, optimizer->count, &update);
    balance_(stage, step, train->balance == BALANCE_BIAS ? train->balance_rate : 0);
    // adamw zeroed gradients in this rank's pieces. This zeroes the pieces of the other ranks.
    if (optimizer->groups.data != NULL || optimizer->groups.experts != NULL) optimizer_skip(optimizer);
    if (stage->be->synchronize(stage->be, err) != 0) return -1;
    zero_gather_weights(optimizer->zero);
    return 0;
}

int optimizer_gather(Optimizer *optimizer, Error *err) {
    zero_gather_weights(optimizer->zero);
    return optimizer_wait(optimizer, err);
}

int optimizer_wait(Optimizer *optimizer, Error *err) { return zero_wait_weights(optimizer->zero, err); }
