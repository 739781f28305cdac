#include "optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Optimizer {
    Stage *stage;
    OptimizerGroups groups;
    AdamwTensor *list;
    int64_t count;
    int64_t *table_index; // of each list entry
    bool *counted;        // list entry's squares enter the norm here and nowhere else
    double *squares;      // (tensor ranks, table entries): who holds a tensor fills its place, the others leave zero
    double *own;          // of the list
};

// A weight that lives on several ranks enters the norm once: replicas on tensor rank 0, a tied head where the embedding is.
static bool counted_here_(const Stage *stage, const Tensor *tensor) {
    bool tied_copy = tensor->spec->tied_to >= 0 && !tensor->alias;
    bool replica = tensor->spec->split == SPLIT_NONE && stage->at.shape.tensor_rank > 0;
    return !tied_copy && !replica;
}

Optimizer *optimizer_create(Stage *stage, const OptimizerGroups *groups, Error *err) {
    Optimizer *optimizer = (Optimizer *)calloc(1, sizeof *optimizer);
    int64_t held = stage->tensors.count, all = stage->table.count * stage->at.shape.tensor_ranks;
    if (optimizer != NULL) {
        optimizer->stage = stage;
        optimizer->groups = *groups;
        optimizer->list = (AdamwTensor *)calloc((size_t)held, sizeof *optimizer->list);
        optimizer->table_index = (int64_t *)calloc((size_t)held, sizeof *optimizer->table_index);
        optimizer->counted = (bool *)calloc((size_t)held, sizeof *optimizer->counted);
        optimizer->own = (double *)calloc((size_t)held, sizeof *optimizer->own);
        optimizer->squares = (double *)calloc((size_t)all, sizeof *optimizer->squares);
    }
    if (optimizer == NULL || optimizer->list == NULL || optimizer->table_index == NULL || optimizer->counted == NULL ||
        optimizer->own == NULL || optimizer->squares == NULL) {
        error_set(err, EXIT_FAILED, "out of host memory for the optimizer's lists");
        optimizer_destroy(optimizer);
        return NULL;
    }
    optimizer->count = tensors_adamw_list(&stage->tensors, optimizer->list);
    int64_t entry = 0;
    for (int64_t i = 0; i < held; i++) {
        const Tensor *tensor = &stage->tensors.tensors[i];
        if (tensor->alias) continue;
        optimizer->table_index[entry] = tensor->index;
        optimizer->counted[entry++] = counted_here_(stage, tensor);
    }
    return optimizer;
}

void optimizer_destroy(Optimizer *optimizer) {
    if (optimizer == NULL) return;
    free(optimizer->list);
    free(optimizer->table_index);
    free(optimizer->counted);
    free(optimizer->own);
    free(optimizer->squares);
    free(optimizer);
}

static double decay_(const TrainConfig *train, double progress) {
    double low = train->lr * train->min_lr_ratio, range = train->lr - low;
    switch (train->schedule) {
    case LR_COSINE:
        return low + range * 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
    case LR_LINEAR:
        return low + range * (1.0 - progress);
    case LR_WSD:
        return progress <= 0.9 ? train->lr : low + range * (1.0 - progress) / 0.1;
    default:
        return train->lr;
    }
}

double optimizer_lr(const TrainConfig *train, int64_t step) {
    if (step <= train->warmup_steps) return train->lr * (double)step / (double)train->warmup_steps;
    double left = (double)(train->steps - train->warmup_steps);
    return decay_(train, (double)(step - train->warmup_steps) / left);
}

static int sum_(Comm *comm, float *data, int64_t count, Error *err) {
    CommRequest request = {0};
    if (comm->all_reduce(comm, data, count, COMM_FLOAT, &request, err) != 0) return -1;
    return comm_wait(comm, &request, err);
}

// Gradients of one weight that was used in two places: the embedding's and the head's, each with a buffer of its own wherever they
// are, added once, embedding first.
static int meet_tied_(Optimizer *optimizer, Error *err) {
    Stage *stage = optimizer->stage;
    const Tensor *head = stage->head == NULL ? NULL : &stage->head[stage->model->head_matrix];
    if (head != NULL && head->alias) {
        float *embedding = stage->embedding[0].gradient;
        stage->be->accumulate(stage->be, embedding, head->gradient, head->count);
        stage->be->zero(stage->be, head->gradient, head->count * 4);
        return 0;
    }
    Comm *tied = optimizer->groups.tied;
    if (tied == NULL) return 0;
    const Tensor *tensor = stage->embedding != NULL ? &stage->embedding[0] : head;
    return sum_(tied, tensor->gradient, tensor->count, err);
}

// With sequence parallelism a norm's weights saw only this rank's rows.
static int meet_shards_(Optimizer *optimizer, Error *err) {
    Stage *stage = optimizer->stage;
    for (int64_t i = 0; stage->at.shape.sequence && i < stage->tensors.count; i++) {
        const Tensor *tensor = &stage->tensors.tensors[i];
        if (tensor->spec->shard_summed && sum_(optimizer->groups.tensor, tensor->gradient, tensor->count, err) != 0)
            return -1;
    }
    return 0;
}

// Table entry whose squares are not finite, or -1.
static int64_t not_finite_(const double *squares, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(squares[i])) return i;
    return -1;
}

static int64_t stage_of_(const Optimizer *optimizer, int64_t table_index) {
    const Stage *stage = optimizer->stage;
    const TensorTable *table = &stage->table;
    if (table_index < table->first_layer) return 0;
    if (table_index >= table->head) return stage->at.stages - 1;
    int64_t layer = (table_index - table->first_layer) / table->per_layer, owner = 0;
    for (int64_t seen = 0;; owner++) {
        seen += stage->config->parallel.layers_per_stage[owner];
        if (layer < seen) return owner;
    }
}

int optimizer_norm(Optimizer *optimizer, double *norm, Error *err) {
    Stage *stage = optimizer->stage;
    if (meet_tied_(optimizer, err) != 0 || meet_shards_(optimizer, err) != 0) return -1;
    stage->be->squared_norms(stage->be, optimizer->own, optimizer->list, optimizer->count);
    int64_t entries = stage->table.count, ranks = stage->at.shape.tensor_ranks;
    memset(optimizer->squares, 0, (size_t)(entries * ranks) * sizeof *optimizer->squares);
    for (int64_t i = 0; i < optimizer->count; i++)
        if (optimizer->counted[i])
            optimizer->squares[stage->at.shape.tensor_rank * entries + optimizer->table_index[i]] = optimizer->own[i];
    // Every place has one contributor, so this sum is exact in any order.
    if (world_sum(optimizer->groups.world, optimizer->squares, entries * ranks, err) != 0) return -1;
    int64_t bad = not_finite_(optimizer->squares, entries * ranks);
    if (bad >= 0) {
        err->everywhere = true;
        return error_set(
            err, EXIT_FAILED,
            "the gradient of %s on stage %lld is not finite (sum of squares %g); weights are as they were before",
            stage->table.specs[bad % entries].name, (long long)stage_of_(optimizer, bad % entries),
            optimizer->squares[bad]);
    }
    double total = 0.0;
    for (int64_t i = 0; i < entries; i++)
        for (int64_t r = 0; r < ranks; r++) total += optimizer->squares[r * entries + i];
    *norm = sqrt(total);
    return 0;
}

int optimizer_update(Optimizer *optimizer, int64_t step, double norm, Error *err) {
    Stage *stage = optimizer->stage;
    const TrainConfig *train = &stage->config->train;
    double clip = train->grad_clip;
    AdamwStep update = {optimizer_lr(train, step),
                        train->beta1,
                        train->beta2,
                        train->eps,
                        train->weight_decay,
                        clip > 0.0 && norm > clip ? clip / norm : 1.0,
                        step};
    stage->be->adamw(stage->be, optimizer->list, optimizer->count, &update);
    return stage->be->synchronize(stage->be, err);
}
