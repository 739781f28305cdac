// The end of a step: gradients of shared weights are summed, their norm is taken over the model, they are clipped, and
// every rank updates its parts.
#pragma once

#include "stage.h"
#include "ranks/world.h"

typedef struct OptimizerGroups {
    World *world;
    Comm *tensor; // NULL: one tensor rank
    Comm *data;   // NULL: one data rank
    Comm *tied;   // the stages with embedding and head, per tensor and data rank, if these are one weight; else NULL
} OptimizerGroups;

typedef struct Optimizer Optimizer;

Optimizer *optimizer_create(Stage *stage, const OptimizerGroups *groups);
void optimizer_destroy(Optimizer *optimizer);

// Returns whether a tensor counts on this rank. A weight held by several ranks counts once: replicas on tensor rank 0,
// a tied head where the embedding is.
bool optimizer_counts(const Stage *stage, const Tensor *tensor);

// Returns the learning rate of step 1 .. steps: linear warm-up over warmup_steps, then from lr to lr * min_lr_ratio by
// cosine or a line, constant, or constant with a linear descent over the last tenth (wsd; Hu et al. 2024). A run
// shorter than its warm-up ends inside it.
double optimizer_lr(const TrainConfig *train, int64_t step);

// Computes the norm of the gradient over all stages, before clipping, after summing the gradients of shared weights.
// Squares are summed per tensor in fixed blocks and added in table order, whichever rank holds the tensor, so that the
// norm does not depend on the partition into stages. Not finite if a gradient is not. Collective.
int optimizer_norm(Optimizer *optimizer, double *norm, Error *err);

// The tensors to blame for a loss or norm that is not finite, found after optimizer_norm. Collective, with one answer
// on all ranks.
typedef struct Blame {
    const TensorSpec *gradient; // the first in the order of the backward whose gradient is not finite, or NULL
    const TensorSpec *weight;   // the first, in the order of the forward, that is not finite itself, or NULL
    int gradient_stage, weight_stage;
    double squares; // squared norm of that gradient: inf or nan
} Blame;
int optimizer_blame(Optimizer *optimizer, Blame *blame, Error *err);

// Makes one AdamW update with the gradient clipped to train.grad_clip (0: no clipping), and zeroes the gradients.
// skipped: earlier updates that were left out. The learning rate follows the step, Adam's bias correction the number of
// updates.
int optimizer_update(Optimizer *optimizer, int64_t step, int64_t skipped, double norm, Error *err);

// On a backend that loads code late, runs this rank's part of a step's norm and update once, without changing weights
// or moments; clears the gradients. Does not communicate. -1 with err.
int optimizer_rehearse(Optimizer *optimizer, Error *err);

// Leaves the update out: zeroes the gradients and leaves weights and moments unchanged.
void optimizer_skip(Optimizer *optimizer);
