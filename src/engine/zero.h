// Data parallelism with ZeRO-1 (Rajbhandari et al. 2020): every data rank holds all weights and gradients of its stage,
// but sums the gradients, keeps the optimizer states and updates the weights of its piece of every unit only. Sums over
// data ranks start as soon as a layer's gradients are complete, inside the last microbatch's backward.
//
// With parallel.shard_gradients (ZeRO-2) a rank keeps only its pieces of the layers' gradients: layers alternate
// between two buffers, and the sums of one layer run during the backward of the next. The sums are the same, in the
// same order.
#pragma once

#include "stage.h"

typedef struct Zero Zero;

// data: the group of data ranks, NULL for one; all functions below then do nothing. Hooks itself to the stage's
// layer_done.
Zero *zero_create(Stage *stage, Comm *data);
void zero_destroy(Zero *zero);

// Starts the sums that the backwards have not started yet and waits until this rank's pieces of the gradients are the
// sums over data ranks.
int zero_reduce_gradients(Zero *zero, Error *err);

// Gives every rank all pieces of the updated weights.
int zero_gather_weights(Zero *zero, Error *err);
