// Multiple choice (data/evaluate.h) by the pipeline's forwards: each rank of the last stage fills in the means of its
// rows, and a sum over all ranks brings them together.
#include "run.h"
#include "base/alloc.h"
#include "model/context.h"

#include <stdlib.h>
#include <string.h>

// Downloads the losses of microbatch i to their places in their sequences; losses of other context ranks are 0.
static void take_losses_(const Stage *stage, int64_t i, float *losses) {
    const Shape *s = &stage->at.shape;
    int64_t rows = stage->at.rows, count = rows / s->pieces, bytes = (int64_t)sizeof *losses;
    memset(losses, 0, (size_t)(rows * s->context_ranks * bytes));
    for (int p = 0; p < s->pieces; p++)
        stage->be->download(stage->be, losses + context_place(s, p) * s->batch, stage->losses + i * rows + p * count,
                            count * bytes);
}

// Writes the means of this rank's rows of a batch, which begins with row `first`; other ranks fill in theirs. Context
// ranks add up to a row's mean.
static void take_means_(const Run *run, int64_t first, float *losses, double *means) {
    const Stage *stage = &run->stage;
    if (!stage->at.last || run->at.tensor > 0) return;
    int64_t b = stage->at.shape.batch, m = stage->microbatches;
    int64_t row = first + run->at.replica / stage->at.shape.context_ranks * m * b;
    for (int64_t i = 0; i < m; i++) {
        take_losses_(stage, i, losses);
        for (int64_t j = 0; j < b; j++, row++)
            if (row < evaluation_rows(run->sets.hellaswag))
                means[row] = evaluation_mean(run->sets.hellaswag, row, losses + j, b);
    }
}

// Exchanges between two batches whether any rank was asked to stop.
static int agree_to_stop_(Run *run, bool *stop, Error *err) {
    double asked = run_stop_requested() ? 1.0 : 0.0;
    if (world_max(run->world, &asked, 1, err) != 0) return -1;
    *stop = asked > 0.0;
    return 0;
}

static int run_batches_(Run *run, float *losses, double *means, bool *stop, Error *err) {
    int64_t rows = evaluation_rows(run->sets.hellaswag), batch = run->config->train.global_batch;
    *stop = false;
    for (int64_t i = 0; i * batch < rows; i++) {
        EngineRun unused;
        if (i > 0 && agree_to_stop_(run, stop, err) != 0) return -1;
        if (*stop) return 0;
        if (batch_evaluate(&run->batch, run->sets.hellaswag, i, err) != 0) return -1;
        if (engine_run(run->engine, "evaluation", run->validation, 0.0f, &unused, err) != 0) return -1;
        take_means_(run, i * batch, losses, means);
    }
    // Without context ranks each row has one rank's value and zero from all others, so the sum is exact.
    return world_sum(run->world, means, rows, err);
}

// Each rank of the last stage knows the means of its own rows. world_sum in rank order brings them together, so all
// ranks count the same examples as correct.
int run_evaluate(Run *run, int64_t *correct, bool *stop, Error *err) {
    int64_t count = run->stage.at.rows * run->stage.at.shape.context_ranks;
    float *losses = xmalloc((size_t)count * sizeof *losses);
    double *means = xcalloc((size_t)evaluation_rows(run->sets.hellaswag), sizeof *means);
    int status = run_batches_(run, losses, means, stop, err);
    if (status == 0) *correct = evaluation_correct(run->sets.hellaswag, means);
    free_all(losses, means);
    return status;
}

int run_evaluate_step(Run *run, int64_t step, Error *err) {
    int64_t correct;
    bool stop;
    Error trouble = {0};
    if (run_evaluate(run, &correct, &stop, err) != 0) return -1;
    if (run->metrics == NULL || stop) return 0;
    metrics_eval(run->metrics, step, correct, evaluation_examples(run->sets.hellaswag),
                 evaluation_left_out(run->sets.hellaswag), &trouble);
    run_tell_metrics(run, step, &trouble);
    return 0;
}
