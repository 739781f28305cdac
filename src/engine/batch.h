// Tokens of a step onto the device: which samples a rank needs, and where they go.
#ifndef BATCH_H
#define BATCH_H

#include "data/blend.h"
#include "data/evaluate.h"
#include "stage.h"

typedef struct Batch {
    Stage *stage;
    const Config *config;
    int data_rank;
    int64_t first_step, first_sample; // step first_step + 1 begins with this sample
    int32_t *tokens, *targets;        // (rows) of one microbatch on the host
} Batch;

// Bytes of host memory on a rank: a microbatch on its way to the device, and a step's losses on the way back.
int64_t batch_bytes(const Config *config, const StageShape *at);

void batch_create(Batch *batch, Stage *stage, int data_rank);
void batch_destroy(Batch *batch);

// Goes on after `step`, up to which `samples` samples were taken. Without it step 1 begins with sample 0.
void batch_seek(Batch *batch, int64_t step, int64_t samples);
// Samples that are taken once `step` is done: position of the next one, over all data ranks.
int64_t batch_position(const Batch *batch, int64_t step);

// A training step: the B samples of the shuffled order from batch_position(step - 1) on. Data rank r takes the r-th of
// d equal runs of them, microbatch by microbatch. Inputs go to the first stage, targets to the last; other stages need
// nothing.
int batch_train(Batch *batch, const Blend *blend, int64_t step, Error *err);

// Validation batch 0, 1, ...: sequences [batch*B, (batch+1)*B) in file order.
int batch_validate(Batch *batch, const Dataset *dataset, int64_t index, Error *err);

// Evaluation batch 0, 1, ...: rows [batch*B, (batch+1)*B), those after the last one zeros.
int batch_evaluate(Batch *batch, const Evaluation *evaluation, int64_t index, Error *err);

#endif
