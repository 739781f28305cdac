// Uploads the tokens of a step: selects the samples that a rank needs and copies them to its stage.
#pragma once

#include "data/blend.h"
#include "data/evaluate.h"
#include "stage.h"

typedef struct Batch {
    Stage *stage;
    const Config *config;
    int data_rank;
    int64_t first_step, first_sample; // step first_step + 1 begins with sample first_sample
    int32_t *tokens, *targets;        // (b s) on the host: one microbatch with the pieces of all context ranks
    int32_t *places;                  // (b s) each token's place in its document; NULL unless the stage has places
    int64_t end_of_text;              // token that begins a document; -1: a sequence is one document
} Batch;

// Returns the bytes of a rank's host buffers. They hold one microbatch before its upload, the places in documents of a
// step and, on a stage with the head, the losses of a step after their download.
int64_t batch_bytes(const Config *config, const StageShape *at);

void batch_create(Batch *batch, Stage *stage, int replica); // replica: see ranks/topology.h
void batch_destroy(Batch *batch);

// Uploads this context rank's pieces of `from`, the (b s) tokens of complete sequences, to `to`.
void batch_upload(const Stage *stage, int32_t *to, const int32_t *from);

// Uploads places for a rehearsal. In the first microbatch each document is half as long as the one before it, because
// different lengths may need different kernels. The second is one document, which every part after the first continues.
void batch_rehearse(Stage *stage);

// Continues after `step`, when `samples` samples have been consumed. Without this call, step 1 begins with sample 0.
void batch_seek(Batch *batch, int64_t step, int64_t samples);
// Returns the samples consumed by the end of `step`, over all data ranks: the position of the next sample.
int64_t batch_position(const Batch *batch, int64_t step);

// Uploads a training step: B samples in shuffled order, from position batch_position(step - 1) on. Data rank r takes
// the r-th of d equal contiguous parts and splits it into microbatches. The first stage gets inputs, the last targets.
// With data.mask_documents or data.reset_positions, every stage gets the tokens' places in their documents.
int batch_train(Batch *batch, const Blend *blend, int64_t step, Error *err);
// Asks the kernel to prefetch the samples of a step from the file. Call it before batch_train of that step.
void batch_expect(const Batch *batch, const Blend *blend, int64_t step);

// Uploads validation batch `index`, counted from 0: sequences [index*B, (index+1)*B) in file order.
int batch_validate(Batch *batch, const Dataset *dataset, int64_t index, Error *err);

// Uploads evaluation batch `index`, counted from 0: rows [index*B, (index+1)*B); rows after the last row are zeros.
int batch_evaluate(Batch *batch, const Evaluation *evaluation, int64_t index, Error *err);
