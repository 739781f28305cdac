// The loss of a pipeline's forwards over data.val: after a step at its intervals, and alone (--validate).
#include "base/alloc.h"
#include "base/clock.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Returns the sum of the losses of all microbatches, in row order; zero on ranks without losses and on ranks that
// repeat those of others.
static double sum_losses_(Run *run) {
    Stage *stage = &run->stage;
    double sum = 0.0;
    if (!stage->at.last || run->at.tensor > 0) return sum;
    int64_t count = stage->microbatches * stage->at.rows;
    float *losses = xmalloc((size_t)count * sizeof *losses);
    run->be->download(run->be, losses, stage->losses, count * (int64_t)sizeof *losses);
    for (int64_t i = 0; i < count; i++) sum += losses[i];
    free(losses);
    return sum;
}

int run_loss(Run *run, double *loss, bool *stop, Error *err) {
    double shared[2] = {sum_losses_(run), run_stop_requested() ? 1.0 : 0.0};
    if (world_sum(run->world, shared, 2, err) != 0) return -1;
    *loss = shared[0];
    *stop = shared[1] > 0.0;
    return 0;
}

// Computes the mean loss over data.val_batches batches. With `ends` a request to stop is an error, because the loss is
// all that was asked for.
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

// Result of --validate. examples: 0 without data.hellaswag.
typedef struct Validated {
    double loss;
    int64_t correct, examples;
} Validated;

// Writes the one line of --validate; with data.hellaswag it has the accuracy too.
static void print_validated_(const Run *run, const Validated *found, bool json) {
    const Config *config = run->config;
    long long sequences = config->data.val_batches * config->train.global_batch, tokens = config->model.seq_len;
    double accuracy = (double)found->correct / (double)found->examples;
    if (json)
        printf("{\"step\":%lld,\"loss\":%.17g,\"perplexity\":%.9g,\"sequences\":%lld,\"tokens\":%lld",
               (long long)run->from.step, found->loss, exp(found->loss), sequences, sequences * tokens);
    else
        printf("loss %.6f | perplexity %.3f | %lld sequences of %lld tokens", found->loss, exp(found->loss), sequences,
               tokens);
    if (found->examples > 0)
        printf(json ? ",\"hellaswag\":{\"accuracy\":%.17g,\"correct\":%lld,\"examples\":%lld}"
                    : " | hellaswag %.4f (%lld of %lld)",
               accuracy, (long long)found->correct, (long long)found->examples);
    printf(json ? "}\n" : "\n");
}

int run_validate(Run *run, bool json, Error *err) {
    Validated found = {0};
    run_listen(run);
    status_page_set_action(run->status_page, "validation");
    if (validation_loss_(run, &found.loss, true, err) != 0) return -1;
    if (!isfinite(found.loss))
        return error_on_all(
            err, EXIT_FAILED,
            "the loss of data.val is %s: the weights already contain NaN or inf, or the forward pass produces them",
            isnan(found.loss) ? "nan" : "inf");
    if (run->sets.hellaswag != NULL) {
        found.examples = evaluation_examples(run->sets.hellaswag);
        bool stop = false;
        if (run_evaluate(run, &found.correct, &stop, err) != 0) return -1;
        if (stop)
            return error_on_all(err, EXIT_FAILED,
                                "stopped on request before the evaluation of data.hellaswag was complete");
    }
    if (world_rank(run->world) > 0) return 0;
    print_validated_(run, &found, json);
    if (fflush(stdout) == 0) return 0;
    return error_on_all(err, EXIT_FAILED, "the loss could not be written to stdout");
}
