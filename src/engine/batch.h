// Uploads the tokens of a step: selects the samples that a rank needs and copies them to its stage.
#pragma once

#include "data/blend.h"
#include "data/evaluate.h"
#include "stage.h"

typedef struct Batch {
    Stage *stage;
    const Config *config;
    int data_rank;
    int64_t first_step, first_sample; // step first_step + 1 begins with this sample
    int32_t *tokens, *targets;        // (b s) of one microbatch on the host, of all context ranks
    int32_t *places;                  // (b s) each token's place in its document; NULL unless the stage has places
    int64_t end_of_text;              // token that begins a document; -1: a sequence is one document
} Batch;

// Returns the bytes of host memory on a rank: a microbatch on its way to the device, and a step's losses on the way
// back.
int64_t batch_bytes(const Config *config, const StageShape *at);

void batch_create(Batch *batch, Stage *stage, int replica); // see ranks/topology.h
void batch_destroy(Batch *batch);

// Uploads the pieces that this rank has of (b s) tokens in the order of their sequences.
void batch_upload(const Stage *stage, int32_t *to, const int32_t *from);

// Continues after `step`, when `samples` samples had been taken. Without it step 1 begins with sample 0.
void batch_seek(Batch *batch, int64_t step, int64_t samples);
// Returns the samples taken when `step` is done: the position of the next one, over all data ranks.
int64_t batch_position(const Batch *batch, int64_t step);

// Uploads a training step: the B samples of the shuffled order from batch_position(step - 1) on. Data rank r takes the
// r-th of d equal runs of them, microbatch by microbatch. Inputs go to the first stage, targets to the last, and with
// data.mask_documents or data.reset_positions the tokens' places in their documents to all.
int batch_train(Batch *batch, const Blend *blend, int64_t step, Error *err);

// Uploads validation batch 0, 1, ...: sequences [batch*B, (batch+1)*B) in file order.
int batch_validate(Batch *batch, const Dataset *dataset, int64_t index, Error *err);

// Uploads evaluation batch 0, 1, ...: rows [batch*B, (batch+1)*B); rows after the last one are zeros.
int batch_evaluate(Batch *batch, const Evaluation *evaluation, int64_t index, Error *err);
