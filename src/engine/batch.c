// Tokens of a step, see batch.h. Every rank derives its samples from the step number. Ranks with the embedding or the
// head read and upload them. With data.mask_documents or data.reset_positions, all ranks read their samples, to find
// the documents in them. Context ranks read the same sequences, and each uploads its own pieces.
#include "batch.h"
#include "base/alloc.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

// Separates the choice of masked tokens from other random numbers of the same seed.
static const uint64_t MASK_SALT = UINT64_C(0x6d61736b) << 24;

int64_t batch_bytes(const Config *config, const StageShape *at) {
    bool documents = config_uses_documents(config);
    int64_t kept = ((at->last ? 1 : 0) + (documents ? 1 : 0)) * config_microbatches(config);
    int64_t arrays = (2 + (documents ? 1 : 0)) * config->parallel.context;
    return (arrays + kept) * at->rows * (int64_t)sizeof(int32_t);
}

static int64_t batch_tokens_(const Stage *stage) { return stage->at.rows * stage->at.shape.context_ranks; }

void batch_create(Batch *batch, Stage *stage, int replica) {
    int64_t rows = batch_tokens_(stage);
    *batch = (Batch){.stage = stage, .config = stage->config, .end_of_text = -1};
    batch->data_rank = replica / stage->at.shape.context_ranks;
    batch->tokens = xmalloc((size_t)rows * sizeof *batch->tokens);
    batch->targets = xmalloc((size_t)rows * sizeof *batch->targets);
    batch->places = stage->places == NULL ? NULL : xmalloc((size_t)rows * sizeof *batch->places);
}

void batch_destroy(Batch *batch) {
    free_all(batch->tokens, batch->targets, batch->places);
    memset(batch, 0, sizeof *batch);
}

void batch_upload(const Stage *stage, int32_t *to, const int32_t *from) {
    const Shape *s = &stage->at.shape;
    int64_t count = stage->at.rows / s->pieces;
    for (int i = 0; i < s->pieces; i++)
        stage->be->upload(stage->be, to + i * count, from + context_place(s, i) * s->batch,
                          count * (int64_t)sizeof *to);
}

// Keeps this context rank's pieces of the places of a microbatch on the host, and uploads them.
static void keep_places_(const Stage *stage, int64_t microbatch, const int32_t *places) {
    const Shape *s = &stage->at.shape;
    int64_t count = stage->at.rows / s->pieces, at = microbatch * stage->at.rows;
    for (int i = 0; i < s->pieces; i++)
        memcpy(stage->host_places + at + i * count, places + context_place(s, i) * s->batch,
               (size_t)count * sizeof *places);
    stage->be->upload(stage->be, stage->places + at, stage->host_places + at, stage->at.rows * (int64_t)sizeof *places);
}

void batch_rehearse(Stage *stage) {
    int64_t b = stage->at.shape.batch, length = stage->at.rows / b * stage->at.shape.context_ranks;
    int32_t *places = xcalloc((size_t)(length * b), sizeof *places);
    for (int64_t microbatch = 0; microbatch < (stage->most_microbatches > 1 ? 2 : 1); microbatch++) {
        for (int64_t position = 0, begin = 0, next = 0; position < length; position++) {
            if (position == next && microbatch == 0) begin = next, next += (length - next + 1) / 2;
            for (int64_t i = 0; i < b; i++) places[position * b + i] = (int32_t)(position - begin);
        }
        keep_places_(stage, microbatch, places);
    }
    free(places);
}

// Chooses tokens of sequence j for the masked objective (Devlin et al. 2018). 8 in 10 chosen tokens become mask_token,
// 1 in 10 becomes a random token and 1 in 10 stays. The tokens that are not chosen have no target. The result for token
// i of the sequence depends only on (seed, position, i).
static void batch_mask_(Batch *batch, uint64_t position, int64_t j) {
    const Config *config = batch->config;
    int64_t b = batch->stage->at.shape.batch, s = config->model.seq_len, chosen = config_targets(config);
    uint64_t seed = (uint64_t)config->train.seed ^ MASK_SALT;
    for (int64_t i = 0; i < s; i++) {
        int32_t *token = batch->tokens + i * b + j, *target = batch->targets + i * b + j;
        *target = -1;
        if (permute_index(i, s, seed, position) >= chosen) continue;
        uint64_t bits = random_bits(seed, position, (uint64_t)i), tenth = bits % 10;
        *target = *token;
        if (tenth < 8) *token = (int32_t)config->data.mask_token;
        if (tenth == 8) *token = (int32_t)((bits >> 32) % (uint64_t)config->model.vocab);
    }
}

// Loads and uploads a batch of shuffled training samples, of validation samples in file order, or of evaluation rows.
// Two of the three sources are NULL. first: position of the batch's first sequence, over all data ranks.
static int batch_load_(Batch *batch, const Blend *training, const Dataset *validation, const Evaluation *evaluation,
                       int64_t first, Error *err) {
    Stage *stage = batch->stage;
    stage->documents = batch->places != NULL && evaluation == NULL; // a row of an evaluation is one document
    if (!stage->at.first && !stage->at.last && !stage->documents) return 0;
    bool masked = batch->config->train.objective == OBJECTIVE_MASKED;
    int64_t b = stage->at.shape.batch, rows = stage->at.rows;
    int64_t position = first + batch->data_rank * stage->microbatches * b;
    for (int64_t i = 0; i < stage->microbatches; i++, position += b) {
        for (int64_t j = 0; j < b; j++) {
            int32_t *inputs = batch->tokens + j, *targets = batch->targets + j;
            int failed = 0;
            if (evaluation != NULL) evaluation_fetch(evaluation, position + j, inputs, targets, b);
            else if (validation != NULL) failed = dataset_fetch(validation, position + j, inputs, targets, b, err);
            else failed = blend_fetch(training, batch->config->train.seed, position + j, inputs, targets, b, err);
            if (failed != 0) return -1;
        }
        // A token's place in its document: a document begins at a sequence's start and at each end-of-text token, even
        // one that is masked below.
        for (int64_t j = 0; stage->documents && j < batch_tokens_(stage); j++)
            batch->places[j] = j < b || batch->tokens[j] == batch->end_of_text ? 0 : batch->places[j - b] + 1;
        for (int64_t j = 0; masked && j < b; j++)
            batch_mask_(batch, (uint64_t)(training != NULL ? position + j : -1 - position - j), j);
        if (stage->at.first) batch_upload(stage, stage->tokens + i * rows, batch->tokens);
        if (stage->at.last) batch_upload(stage, stage->targets + i * rows, batch->targets);
        if (stage->documents) keep_places_(stage, i, batch->places);
    }
    return 0;
}

void batch_seek(Batch *batch, int64_t step, int64_t samples) {
    batch->first_step = step;
    batch->first_sample = samples;
}

int64_t batch_position(const Batch *batch, int64_t step) {
    return batch->first_sample + config_samples(batch->config, batch->first_step, step);
}

int batch_train(Batch *batch, const Blend *blend, int64_t step, Error *err) {
    return batch_load_(batch, blend, NULL, NULL, batch_position(batch, step - 1), err);
}

void batch_expect(const Batch *batch, const Blend *blend, int64_t step) {
    const Stage *stage = batch->stage;
    if (!stage->at.first && !stage->at.last && batch->places == NULL) return;
    int64_t count = config_batch_at(batch->config, step) / batch->config->parallel.data;
    int64_t first = batch_position(batch, step - 1) + batch->data_rank * count;
    for (int64_t i = 0; i < count; i++) blend_expect(blend, batch->config->train.seed, first + i);
}

int batch_validate(Batch *batch, const Dataset *dataset, int64_t index, Error *err) {
    return batch_load_(batch, NULL, dataset, NULL, index * batch->config->train.global_batch, err);
}

int batch_evaluate(Batch *batch, const Evaluation *evaluation, int64_t index, Error *err) {
    return batch_load_(batch, NULL, NULL, evaluation, index * batch->config->train.global_batch, err);
}
