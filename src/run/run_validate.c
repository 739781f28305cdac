// Computes the loss over data.val, and counts the examples of data.hellaswag that the model gets right: during training
// at their intervals, or without training (--validate).
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Each rank adds the losses of its microbatches in row order, tensor rank 0 for all tensor ranks; then the replicas'
// losses are added in replica order, so that the bits do not depend on the ranks.
int run_loss(Run *run, double *loss, bool *stop, Error *err) {
    const Stage *stage = &run->stage;
    int64_t replicas = config_replicas(run->config), count = stage->microbatches * stage->at.rows;
    double *shared = xcalloc((size_t)replicas + 1, sizeof *shared);
    if (stage->at.last && run->at.tensor == 0) {
        float *losses = xmalloc((size_t)count * sizeof *losses);
        run->be->download(run->be, losses, stage->losses, count * (int64_t)sizeof *losses);
        for (int64_t i = 0; i < count; i++) shared[run->at.replica] += losses[i];
        free(losses);
    }
    shared[replicas] = run_stop_requested() ? 1.0 : 0.0;
    int status = world_sum(run->world, shared, replicas + 1, err);
    *loss = 0.0;
    for (int64_t i = 0; i < replicas; i++) *loss += shared[i];
    *stop = shared[replicas] > 0.0;
    free(shared);
    return status;
}

// Computes the mean loss over data.val_batches batches. With `ends` a request to stop is an error, because the command
// then has no result.
static int validation_loss_(Run *run, double *mean, bool ends, Error *err) {
    double total = 0.0;
    int64_t batches = run->config->data.val_batches;
    for (int64_t i = 0; i < batches; i++) {
        bool stop = false;
        double start = clock_seconds(), loss;
        EngineRun pipeline;
        if (batch_validate(&run->batch, run->sets.val, i, err) != 0) return -1;
        if (engine_run(run->engine, "validation", run->validation, 0.0f, &pipeline, err) != 0) return -1;
        if (run_loss(run, &loss, &stop, err) != 0) return -1;
        if (stop && ends)
            return error_on_all(err, EXIT_FAILED, "stopped on request after %lld of %lld batches of the validation",
                                (long long)i + 1, (long long)batches);
        if (run_trace_step(run, "validation", run->validation, &pipeline, start, err) != 0) return -1;
        total += loss;
    }
    *mean = total / (double)(batches * run->config->train.global_batch * config_targets(run->config));
    return 0;
}

int run_validate_step(Run *run, int64_t step, Error *err) {
    double loss;
    if (validation_loss_(run, &loss, false, err) != 0) return -1;
    if (run->metrics == NULL) return 0;
    Error trouble = {0};
    metrics_val(run->metrics, step, loss, &trouble);
    run_tell_metrics(run, step, &trouble);
    return 0;
}

// --- multiple choice (data/evaluate.h)

// Counts the examples that the model gets right. *stop: a rank was asked to stop, and *correct is invalid. Each rank of
// the last stage computes the means of its own rows, and world_sum joins them in rank order. So all ranks count the
// same examples as correct, however rows are spread over microbatches and data ranks.
static int evaluate_(Run *run, int64_t *correct, bool *stop, Error *err) {
    const Evaluation *questions = run->sets.hellaswag;
    const Stage *stage = &run->stage;
    const Shape *s = &stage->at.shape;
    int64_t rows = questions->rows, batch = run->config->train.global_batch;
    // The losses of a microbatch, ordered by position in the complete sequences. Positions of other context ranks stay
    // 0, so a row's mean is the sum of the values of its context ranks.
    int64_t count = stage->at.rows * s->context_ranks, piece = stage->at.rows / s->pieces;
    float *losses = xmalloc((size_t)count * sizeof *losses);
    double *means = xcalloc((size_t)rows, sizeof *means);
    int status = 0;
    *stop = false;
    for (int64_t i = 0; status == 0 && i * batch < rows; i++) {
        EngineRun unused;
        double asked = i > 0 && run_stop_requested() ? 1.0 : 0.0;
        status = world_max(run->world, &asked, 1, err);
        *stop = asked > 0.0;
        if (status != 0 || *stop) break;
        status = batch_evaluate(&run->batch, questions, i, err);
        if (status == 0) status = engine_run(run->engine, "evaluation", run->validation, 0.0f, &unused, err);
        if (status != 0 || !stage->at.last || run->at.tensor > 0) continue;
        int64_t row = i * batch + run->at.replica / s->context_ranks * stage->microbatches * s->batch;
        for (int64_t m = 0; m < stage->microbatches; m++) {
            memset(losses, 0, (size_t)count * sizeof *losses);
            for (int p = 0; p < s->pieces; p++)
                stage->be->download(stage->be, losses + context_place(s, p) * s->batch,
                                    stage->losses + m * stage->at.rows + p * piece, piece * (int64_t)sizeof *losses);
            for (int64_t j = 0; j < s->batch; j++, row++)
                if (row < rows) means[row] = evaluation_mean(questions, row, losses + j, s->batch);
        }
    }
    // Without context ranks each row has one rank's value and zero from all others, so the sum is exact.
    if (status == 0 && !*stop) status = world_sum(run->world, means, rows, err);
    if (status == 0 && !*stop) *correct = evaluation_correct(questions, means);
    free_all(losses, means);
    return status;
}

int run_evaluate_step(Run *run, int64_t step, Error *err) {
    int64_t correct;
    bool stop;
    Error trouble = {0};
    if (evaluate_(run, &correct, &stop, err) != 0) return -1;
    if (run->metrics == NULL || stop) return 0;
    metrics_eval(run->metrics, step, correct, run->sets.hellaswag->examples, run->sets.hellaswag->left_out, &trouble);
    run_tell_metrics(run, step, &trouble);
    return 0;
}

// --- --validate

int run_validate(Run *run, bool json, Error *err) {
    const Config *config = run->config;
    bool asks = run->sets.hellaswag != NULL, stop = false;
    int64_t correct = 0, examples = asks ? run->sets.hellaswag->examples : 0;
    double loss;
    run_listen(run);
    status_page_set_action(run->status_page, "validation");
    if (validation_loss_(run, &loss, true, err) != 0) return -1;
    if (!isfinite(loss))
        return error_on_all(
            err, EXIT_FAILED,
            "the loss of data.val is %s: the weights already contain NaN or inf, or the forward pass produces them",
            isnan(loss) ? "nan" : "inf");
    if (asks && evaluate_(run, &correct, &stop, err) != 0) return -1;
    if (stop)
        return error_on_all(err, EXIT_FAILED,
                            "stopped on request before the evaluation of data.hellaswag was complete");
    if (world_rank(run->world) > 0) return 0;
    int64_t sequences = config->data.val_batches * config->train.global_batch, tokens = config->model.seq_len;
    double share = (double)correct / (double)examples;
    JsonOut out = {.file = stdout};
    if (json) {
        json_begin(&out, NULL, '{');
        json_members(&out, "step %jd loss %.17g perplexity %.9g sequences %jd tokens %jd", run->from.state.step, loss,
                     exp(loss), sequences, sequences * tokens);
        if (asks) json_object(&out, "hellaswag", "accuracy %.17g correct %jd examples %jd", share, correct, examples);
        json_end(&out, '}');
    } else {
        printf("loss %.6f | perplexity %.3f | %lld sequences of %lld tokens", loss, exp(loss), (long long)sequences,
               (long long)tokens);
        if (asks) printf(" | hellaswag %.4f (%lld of %lld)", share, (long long)correct, (long long)examples);
    }
    putchar('\n');
    if (fflush(stdout) == 0) return 0;
    return error_on_all(err, EXIT_FAILED, "cannot write the loss to standard output");
}
