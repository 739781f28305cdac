// Data parallelism with ZeRO-1 (Rajbhandari et al. 2020): every data rank holds all weights and gradients of its stage.
// It sums gradients, keeps optimizer states and updates weights only for its piece of every unit. Sums over data ranks
// start as soon as a layer's gradients are complete, inside the last microbatch's backward. Updated weights are
// gathered during the next step's first forward.
//
// With Muon a unit of matrices has a home: one data rank that gets the sum, updates the complete unit (tensors.h) and
// broadcasts its weights.
//
// With parallel.shard_gradients (ZeRO-2) a rank keeps only its pieces of the layers' gradients: layers alternate
// between two buffers, and the sums of one layer run during the backward of the next. The sums and
// their order are the same as with ZeRO-1.
#pragma once

#include "stage.h"

typedef struct Zero Zero;

// Creates the state and sets the stage's needs_weights and layer_done. data: the group of data ranks; experts: the
// group of ranks with the same experts. NULL: a group of one, which sums nothing.
Zero *zero_create(Stage *stage, Comm *data, Comm *experts);
void zero_destroy(Zero *zero);

// Starts sums not yet started by backwards, and waits until this rank's gradient pieces hold the sums over data ranks.
int zero_reduce_gradients(Zero *zero, Error *err);

// Starts to gather the updated pieces of weights, and to broadcast units with a home, so that every data rank gets all
// weights. The next forward waits for each unit before its first use (Stage.needs_weights).
void zero_gather_weights(Zero *zero);
// Waits for all weights that are still being gathered.
int zero_wait_weights(Zero *zero, Error *err);
