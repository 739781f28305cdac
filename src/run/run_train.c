// Run, second part: the loop over steps.
#include "compare.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "record.h"
#include "run.h"
#include "run_evaluate.h"
#include "run_sample.h"
#include "run_trace.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Set by a signal handler, the one thing that has no other place to write to; and when that was, in milliseconds.
static volatile sig_atomic_t stop_requested_;
static atomic_llong stop_requested_ms_;

static long long now_ms_(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void request_stop_(int signal) {
    // One request may come as two signals: timeout(1) sends one to the process and another to its group.
    enum { SAME_MS = 200 };
    // A second request does not wait for the step's end: nothing is saved, as when it failed.
    if (stop_requested_ != 0 && now_ms_() - stop_requested_ms_ > SAME_MS) _Exit(EXIT_FAILED);
    if (stop_requested_ == 0) stop_requested_ms_ = now_ms_();
    stop_requested_ = signal;
}

bool run_stop_requested(void) {
    return stop_requested_ != 0;
}

// The handler gets a stack of its own: oneDNN's AVX-512 matrix products keep data below the stack pointer, where a handler would write.
// Signals sent to the process come to this thread, the first, as long as it does not block them.
static void leave_stack_alone_(void) {
    static char stack[1 << 16];
    stack_t own;
    memset(&own, 0, sizeof own);
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, NULL);
}

void run_listen(Run *run) {
    struct sigaction action;
    leave_stack_alone_();
    memset(&action, 0, sizeof action);
    action.sa_handler = request_stop_;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 4; i++) {
        struct sigaction before;
        // Ignored from the start on are hang-ups under nohup, and interrupts of a terminal where a script put this into the background.
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigaction(signals[i], &action, NULL);
    }
    status_page_set_ready(run->status_page);
}

// Sum of the losses of the microbatches, in row order; zero on ranks that have none or only repeat them.
static double sum_losses_(Run *run) {
    Stage *stage = &run->stage;
    double sum = 0.0;
    if (!stage->at.last || run->at.tensor > 0) return sum;
    int64_t count = stage->microbatches * stage->at.shape.rows;
    float *losses = xmalloc((size_t)count * sizeof *losses);
    run->be->download(run->be, losses, stage->losses, count * (int64_t)sizeof *losses);
    for (int64_t i = 0; i < count; i++) sum += losses[i];
    free(losses);
    return sum;
}

// What every rank has to know at the end of a pipeline: the loss over all data ranks, and whether anyone was asked to stop.
static int train_agree_(Run *run, double *loss, bool *stop, Error *err) {
    double shared[2] = {*loss, stop_requested_ != 0 ? 1.0 : 0.0};
    if (world_sum(run->world, shared, 2, err) != 0) return -1;
    *loss = shared[0];
    *stop = shared[1] > 0.0;
    return 0;
}

static int64_t step_tokens_(const Config *config) {
    return config->train.global_batch * config->model.seq_len;
}

static void own_figures_(const Run *run, const EngineRun *pipeline, StageFigures *mine) {
    const MemoryBytes *peak = &run->be->peak;
    double offset = world_clock_offset(run->world);
    mine->peak_bytes = memory_total(peak);
    mine->activation_bytes = run->be->held.bytes[MEMORY_OWN_SLOTS] + run->be->held.bytes[MEMORY_LENT_SLOTS];
    mine->slots_used = pipeline->slots_used;
    mine->slots_lent = pipeline->slots_lent;
    mine->evictions = pipeline->evictions;
    mine->busy = pipeline->busy;
    mine->exposed = pipeline->exposed;
    mine->begin = pipeline->begin + offset;
    mine->end = pipeline->end + offset;
}

// Of several ranks of a stage the fullest and slowest; busy adds up.
static void merge_figures_(StageFigures *stage, const StageFigures *rank, bool first) {
    if (first) {
        *stage = *rank;
        return;
    }
    if (rank->peak_bytes > stage->peak_bytes) stage->peak_bytes = rank->peak_bytes;
    stage->busy += rank->busy;
    if (rank->exposed > stage->exposed) stage->exposed = rank->exposed;
    if (rank->begin < stage->begin) stage->begin = rank->begin;
    if (rank->end > stage->end) stage->end = rank->end;
}

// Collective: rank 0 gets one entry per stage.
static int gather_figures_(Run *run, const EngineRun *pipeline, StageFigures *stages, Error *err) {
    StageFigures mine;
    memset(&mine, 0, sizeof mine);
    own_figures_(run, pipeline, &mine);
    int world = world_size(run->world);
    StageFigures *all = xcalloc((size_t)world, sizeof *all);
    int gathered = world_gather(run->world, 0, all, &mine, sizeof mine, err);
    for (int r = 0; gathered == 0 && world_rank(run->world) == 0 && r < world; r++) {
        Coordinates at = topology_coordinates(&run->config->parallel, r);
        merge_figures_(&stages[at.stage], &all[r], at.tensor == 0 && at.data == 0);
    }
    for (int s = 0; s < run->config->parallel.pipeline; s++)
        stages[s].busy /= (double)(run->config->parallel.tensor * run->config->parallel.data);
    free(all);
    return gathered;
}

void run_tell_metrics(Run *run, int64_t step, const Error *trouble) {
    bool failing = trouble->code != 0;
    if (metrics_unheard(run->metrics)) {
        // A run that nobody can read ends as if asked to, with a checkpoint. A terminal that goes away asks for that itself.
        if (run_stop_requested()) return;
        run->unheard = *trouble;
        request_stop_(SIGTERM);
        return;
    }
    if (failing == run->metrics_failing) return;
    run->metrics_failing = failing;
    Log all = log_of_all(run->log);
    if (failing)
        log_line(&all, "step %lld: %s; training goes on and leaves out what cannot be written", (long long)step,
                 trouble->text);
    else
        log_line(&all, "step %lld: %s can be written again", (long long)step, run->config->log.metrics);
}

static int report_(Run *run, const EngineRun *pipeline, StepFigures *say, Error *err) {
    int stages = (int)run->config->parallel.pipeline;
    StageFigures *figures = xcalloc((size_t)stages, sizeof *figures);
    int status = gather_figures_(run, pipeline, figures, err);
    if (status == 0 && run->metrics != NULL) {
        say->lr = optimizer_lr(&run->config->train, say->step);
        say->tokens = step_tokens_(run->config);
        say->stages = stages;
        say->stage = figures;
        Error trouble = {0};
        metrics_step(run->metrics, say, &trouble);
        run_tell_metrics(run, say->step, &trouble);
    }
    free(figures);
    return status;
}

// What is not finite, in one clause: "the loss on stage 3 is nan, and so is the first gradient of the backward, that of X on stage 3".
// Collective.
static int explain_bad_(Run *run, const StepFigures *figures, char *text, size_t size, bool *weight, Error *err) {
    Blame blame;
    if (optimizer_blame(run->optimizer, &blame, err) != 0) return -1;
    int used = 0;
    if (!isfinite(figures->loss))
        used = snprintf(text, size, "the loss on stage %lld is %s%s", (long long)run->config->parallel.pipeline - 1,
                        isnan(figures->loss) ? "nan" : "inf", blame.gradient != NULL ? ", and " : "");
    if (blame.gradient != NULL)
        used +=
            snprintf(text + used, size - (size_t)used,
                     "the gradient of %s on stage %d, the first such in the order of the backward, is not finite: its "
                     "sum of squares is %s",
                     blame.gradient->name, blame.gradient_stage, isnan(blame.squares) ? "nan" : "inf");
    *weight = blame.weight != NULL;
    if (*weight)
        snprintf(text + used, size - (size_t)used, "; %s on stage %d held such a value before the step",
                 blame.weight->name, blame.weight_stage);
    return 0;
}

static int stop_bad_(const Run *run, int64_t step, const char *why, bool weight, Error *err) {
    char before[96] = "";
    int64_t allowed = run->config->train.skip_bad_steps;
    if (allowed > 0)
        snprintf(before, sizeof before, "; train.skip_bad_steps allows no more than %lld", (long long)allowed);
    err->everywhere = true;
    return error_set(err, EXIT_FAILED, "step %lld: %s; weights are as they were before the step%s; %s", (long long)step,
                     why, before,
                     weight ? "go on from an earlier checkpoint, or look at checkpoint.init_from"
                            : "lower train.lr or look at the data of this step");
}

static void tell_skipped_(const Run *run, int64_t step, const char *why) {
    Log all = log_of_all(run->log);
    if (world_rank(run->world) == 0)
        log_line(&all, "step %lld: update skipped, since %s; weights, moments and Adam's step count stay as they were",
                 (long long)step, why);
}

// Applies the update, or leaves it out where step_guard.h says so. All ranks come to the same conclusion.
static int update_(Run *run, StepFigures *figures, Error *err) {
    const TrainConfig *train = &run->config->train;
    char why[600] = "";
    bool weight = false;
    int64_t before = run->step_guard.skipped;
    StepDecision decision =
        step_guard_decide(&run->step_guard, train, figures->loss, figures->norm, &figures->loss_z, &figures->norm_z);
    figures->skipped = decision != STEP_APPLY;
    if (decision == STEP_APPLY) return optimizer_update(run->optimizer, figures->step, before, figures->norm, err);
    if (decision == STEP_SKIP_OUTLIER)
        snprintf(why, sizeof why,
                 "loss %.4f lies %+.1f and norm %.2f %+.1f deviations from the last steps, %g being allowed",
                 figures->loss, figures->loss_z, figures->norm, figures->norm_z, train->skip_outlier_z);
    else if (explain_bad_(run, figures, why, sizeof why - 48, &weight, err) != 0)
        return -1;
    if (decision == STEP_STOP) return stop_bad_(run, figures->step, why, weight, err);
    size_t used = strlen(why);
    if (decision == STEP_SKIP_BAD)
        snprintf(why + used, sizeof why - used, " (%lld of %lld such steps)", (long long)run->step_guard.bad,
                 (long long)train->skip_bad_steps);
    tell_skipped_(run, figures->step, why);
    optimizer_skip(run->optimizer);
    return 0;
}

static int train_step_(Run *run, int64_t step, bool *stop, Error *err) {
    double start = clock_seconds();
    int64_t tokens = step_tokens_(run->config);
    StepFigures figures = {.step = step};
    EngineRun pipeline;
    char label[64];
    snprintf(label, sizeof label, "step %lld", (long long)step);
    status_page_set_action(run->status_page, label);
    if (batch_train(&run->batch, run->train, step, err) != 0) return -1;
    if (engine_run(run->engine, label, run->schedule, (float)(1.0 / (double)tokens), &pipeline, err) != 0) return -1;
    snprintf(label, sizeof label, "step %lld optimizer", (long long)step);
    status_page_set_action(run->status_page, label);
    figures.loss = sum_losses_(run);
    if (train_agree_(run, &figures.loss, stop, err) != 0) return -1;
    figures.loss /= (double)tokens;
    if (optimizer_norm(run->optimizer, &figures.norm, err) != 0) return -1;
    if (run->recorder != NULL && recorder_gradients(run, figures.loss, figures.norm, err) != 0) return -1;
    if (update_(run, &figures, err) != 0) return -1;
    if (run->recorder != NULL && recorder_weights(run, err) != 0) return -1;
    figures.seconds = clock_seconds() - start;
    if (report_(run, &pipeline, &figures, err) != 0) return -1;
    snprintf(label, sizeof label, "step %lld", (long long)step);
    return run_trace_step(run, label, run->schedule, &pipeline, start, err);
}

// The mean loss over data.val_batches batches. Where it is all that was asked for (`ends`), a request to stop ends it.
static int validation_loss_(Run *run, double *mean, bool ends, Error *err) {
    double total = 0.0;
    int64_t batches = run->config->data.val_batches;
    for (int64_t i = 0; i < batches; i++) {
        bool stop = false;
        double start = clock_seconds(), loss;
        EngineRun pipeline;
        if (batch_validate(&run->batch, run->val, i, err) != 0) return -1;
        if (engine_run(run->engine, "validation", run->validation, 0.0f, &pipeline, err) != 0) return -1;
        loss = sum_losses_(run);
        if (train_agree_(run, &loss, &stop, err) != 0) return -1;
        if (stop && ends) {
            err->everywhere = true;
            return error_set(err, EXIT_FAILED, "stopped on request after %lld of %lld batches of the validation",
                             (long long)i + 1, (long long)batches);
        }
        if (run_trace_step(run, "validation", run->validation, &pipeline, start, err) != 0) return -1;
        total += loss;
    }
    *mean = total / (double)(batches * step_tokens_(run->config));
    return 0;
}

static int validate_(Run *run, int64_t step, Error *err) {
    double loss;
    if (validation_loss_(run, &loss, false, err) != 0) return -1;
    if (run->metrics == NULL) return 0;
    Error trouble = {0};
    metrics_val(run->metrics, step, loss, &trouble);
    run_tell_metrics(run, step, &trouble);
    return 0;
}

// What a validation alone found. examples: 0 where there were no such.
typedef struct Validated {
    double loss;
    int64_t correct, examples;
} Validated;

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
    if (!isfinite(found.loss)) {
        err->everywhere = true;
        return error_set(err, EXIT_FAILED, "the loss of data.val is %s: the model has such values in it, or makes them",
                         isnan(found.loss) ? "nan" : "inf");
    }
    if (run->hellaswag != NULL) {
        found.examples = evaluation_examples(run->hellaswag);
        bool stop = false;
        if (run_evaluate(run, &found.correct, &stop, err) != 0) return -1;
        if (stop) {
            err->everywhere = true;
            return error_set(err, EXIT_FAILED,
                             "stopped on request before the evaluation of data.hellaswag was complete");
        }
    }
    if (world_rank(run->world) > 0) return 0;
    print_validated_(run, &found, json);
    if (fflush(stdout) == 0) return 0;
    err->everywhere = true;
    return error_set(err, EXIT_FAILED, "the loss could not be written to stdout");
}

static bool validates_(const Run *run, int64_t step) {
    return run->val != NULL && (step % run->config->data.val_every == 0 || step == run->config->train.steps);
}

static bool evaluates_(const Run *run, int64_t step) {
    return run->hellaswag != NULL &&
           (step % run->config->data.hellaswag_every == 0 || step == run->config->train.steps);
}

static bool samples_(const Run *run, int64_t step) {
    int64_t every = run->config->sample.every;
    return every > 0 && (step % every == 0 || step == run->config->train.steps);
}

static int save_(Run *run, int64_t step, Error *err) {
    status_page_set_action(run->status_page, "saving");
    return checkpoint_save(run->checkpoint, step, batch_position(&run->batch, step), &run->step_guard, err);
}

static int stopped_(Run *run, int64_t step, Error *err) {
    int code = EXIT_FAILED;
    char said[CONFIG_TEXT + 64] = "nothing was saved, since checkpoint.dir is empty";
    if (run->checkpoint != NULL) {
        if (save_(run, step, err) != 0 || checkpoint_finish(run->checkpoint, err) != 0) return -1;
        bool saved = checkpoint_saved(run->checkpoint) == step;
        code = saved ? EXIT_STOPPED : EXIT_FAILED;
        snprintf(said, sizeof said, saved ? "go on with --resume %s" : "its checkpoint could not be written to %s",
                 run->config->checkpoint.dir);
    }
    if (run->unheard.code != 0) return *err = run->unheard, -1;
    err->everywhere = true;
    return error_set(err, code, "stopped on request after step %lld; %s", (long long)step, said);
}

static bool saves_(const Run *run, int64_t step) {
    int64_t every = run->config->checkpoint.every;
    return run->checkpoint != NULL && every > 0 && (step % every == 0 || step == run->config->train.steps);
}

// For profilers, which can be told to begin where a range of this name does.
static int named_step_(Run *run, int64_t step, bool *stop, Error *err) {
    char name[32];
    snprintf(name, sizeof name, "step %lld", (long long)step);
    if (run->be->range_begin != NULL) run->be->range_begin(run->be, name);
    int status = train_step_(run, step, stop, err);
    if (run->be->range_end != NULL) run->be->range_end(run->be);
    return status;
}

static int step_(Run *run, int64_t step, Error *err) {
    bool stop = false;
    if (run->metrics != NULL) metrics_progress(run->metrics, step, run->config->train.steps);
    if (named_step_(run, step, &stop, err) != 0 || checkpoint_poll(run->checkpoint, err) != 0) return -1;
    if (step == run->from.step + 1 && compare_plan(run, err) != 0) return -1;
    // Also before a stop: a resumed run begins with the next step, and the validation of this one would be missing for good.
    if (validates_(run, step) && validate_(run, step, err) != 0) return -1;
    if (evaluates_(run, step) && run_evaluate_step(run, step, err) != 0) return -1;
    if (samples_(run, step) && run_sample(run, step, err) != 0) return -1;
    if (stop && step < run->config->train.steps) return stopped_(run, step, err);
    return saves_(run, step) ? save_(run, step, err) : 0;
}

// Nothing is left half written, also where training ends with an error that all ranks have found.
static int train_end_(Run *run, int status, Error *err) {
    int64_t steps = run->config->train.steps;
    Error failure = {0};
    if (status != 0 && !err->everywhere) return -1;
    status_page_set_action(run->status_page, "writing the last checkpoint");
    int finished = checkpoint_finish(run->checkpoint, status == 0 ? err : &failure);
    if (status != 0 || finished != 0) return -1;
    if (run->unheard.code != 0) return *err = run->unheard, -1;
    if (run->from.step >= steps || !saves_(run, steps) || checkpoint_saved(run->checkpoint) == steps) return 0;
    err->everywhere = true;
    return error_set(err, EXIT_FAILED, "training is done, but its last checkpoint could not be written to %s",
                     run->config->checkpoint.dir);
}

static void tell_done_(const Run *run) {
    int64_t steps = run->config->train.steps;
    if (!run->from.found || run->from.step < steps || world_rank(run->world) > 0) return;
    Log all = log_of_all(run->log);
    log_status(&all, "nothing is left to train: the checkpoint is of step %lld and train.steps, the total, is %lld",
               (long long)run->from.step, (long long)steps);
}

int run_train(Run *run, Error *err) {
    int status = 0;
    tell_done_(run);
    run_listen(run);
    int64_t last = run->recorder != NULL ? recorder_last_step(run->recorder) : run->config->train.steps;
    for (int64_t step = run->from.step + 1; status == 0 && step <= last; step++) status = step_(run, step, err);
    return train_end_(run, status, err);
}
