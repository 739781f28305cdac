// Tokens of a step onto the device: which samples a rank needs, and where they go.
#ifndef BATCH_H
#define BATCH_H

#include "dataset.h"
#include "stage.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Batch {
    Stage *stage;
    const Config *config;
    int data_rank;
    int32_t *tokens, *targets; // (rows) of one microbatch on the host
} Batch;

int batch_create(Batch *batch, Stage *stage, int data_rank, Error *err);
void batch_destroy(Batch *batch);

// Training step 1, 2, ...: samples [(step-1)*B, step*B) of the shuffled order. Data rank r takes the r-th of d equal runs of them, microbatch
// by microbatch. Inputs go to the first stage, targets to the last; other stages need nothing.
int batch_train(Batch *batch, const Dataset *dataset, int64_t step, Error *err);

// Validation batch 0, 1, ...: sequences [batch*B, (batch+1)*B) in file order.
int batch_validate(Batch *batch, const Dataset *dataset, int64_t index, Error *err);

#ifdef __cplusplus
}
#endif

#endif
