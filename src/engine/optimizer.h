// The end of a step: sums gradients over ranks, computes their norm over the model, clips them, and updates this rank's
// parts of the weights.
#pragma once

#include "stage.h"
#include "ranks/world.h"

typedef struct OptimizerGroups {
    World *world;  // NULL: only this stage's gradients count, as when a plan counts the seconds of a step's end
    Comm *tensor;  // NULL: one tensor rank
    Comm *data;    // NULL: one data rank
    Comm *tied;    // group of the two stages with embedding and head; NULL: no weight is shared between two stages
    Comm *experts; // ranks that hold the same experts; NULL: only this rank
} OptimizerGroups;

typedef struct Optimizer Optimizer;

Optimizer *optimizer_create(Stage *stage, const OptimizerGroups *groups);
void optimizer_destroy(Optimizer *optimizer);

// Returns the learning rate of a step, 1 .. steps. The rate rises linearly over warmup_steps. Then it falls from lr to
// lr * min_lr_ratio along a cosine or a line, or stays at lr, or stays at lr until a final decay over decay_steps (wsd;
// Hu et al. 2024). By default the final decay takes a tenth of the steps after the warm-up. A run shorter than its
// warm-up ends during the warm-up.
double optimizer_lr(const TrainConfig *train, int64_t step);

// Sums the gradients of data ranks, tied weights and norm weights. Then computes the norm of the gradient over all
// stages, before clipping. Squares are summed per tensor in fixed blocks and added in table order, whichever rank holds
// the tensor, so that the norm does not depend on the partition into stages. *norm is not finite if a gradient is not
// finite. Collective.
int optimizer_norm(Optimizer *optimizer, double *norm, Error *err);

// The tensors to blame for a loss or norm that is not finite. optimizer_blame finds them after optimizer_norm. It is
// collective, and all ranks get the same answer.
typedef struct Blame {
    const TensorSpec *gradient; // first tensor in backward order with a gradient that is not finite, or NULL
    const TensorSpec *weight;   // first tensor in forward order with a weight that is not finite, or NULL
    int gradient_stage, weight_stage;
    double squares; // squared norm of that gradient: inf or nan
} Blame;
int optimizer_blame(Optimizer *optimizer, Blame *blame, Error *err);

// Makes one update, by AdamW or Muon, with the gradient clipped to train.grad_clip (0: no clipping), zeroes the
// gradients and starts to distribute the weights, which the next forward waits for, layer by layer. Collective over
// tensor and data ranks. skipped: number of earlier updates that were skipped. The learning rate depends on the step,
// Adam's bias correction on the number of updates made. Returns -1 with err.
int optimizer_update(Optimizer *optimizer, int64_t step, int64_t skipped, double norm, Error *err);

// Gathers the weights that each data rank has loaded for its own pieces. Collective over data ranks. -1 with err.
int optimizer_gather(Optimizer *optimizer, Error *err);

// Waits for the weights of the last update that are still being gathered. Call it before a forward that not all data
// ranks run, and before weights are copied. Collective over data ranks. -1 with err.
int optimizer_wait(Optimizer *optimizer, Error *err);

// On a backend that loads code late, runs this rank's part of a step's norm and update once, without changing weights
// or moments; clears the gradients. Does not communicate. -1 with err.
int optimizer_rehearse(Optimizer *optimizer, Error *err);

// Skips the update: zeroes the gradients, and leaves weights and moments unchanged.
void optimizer_skip(Optimizer *optimizer);
