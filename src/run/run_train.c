// Training: the loop over steps, and one step.
//
// The loop is one function, run_train, and a step is one function, train_step_: read these two first. All ranks run
// both together. A request to stop or a loss that is not finite, seen by one rank, is exchanged before any rank acts on
// it, so that all ranks leave the loop after the same step.
#include "base/clock.h"
#include "run.h"

#include <math.h>
#include <string.h>

// Prefixes the error's text with `label` unless the text already begins with a step. Returns -1.
static int train_fail_(const char *label, Error *err) {
    Error why = *err;
    if (strncmp(why.text, "step ", 5) != 0) snprintf(err->text, sizeof err->text, "%s: %.900s", label, why.text);
    return -1;
}

// Collective. Applies the step's update, or skips it (step_guard.h); fills in figures->skipped and the deviations. -1
// with err if the run has to end. A step with a non-finite loss or gradient never changes the weights: it is skipped,
// or the run ends with an error that names the tensor at fault.
static int train_update_(Run *run, StepFigures *figures, Error *err) {
    const TrainConfig *train = &run->config->train;
    int64_t before = run->step_guard.skipped;
    StepDecision decision =
        step_guard_decide(&run->step_guard, train, figures->loss, figures->norm, &figures->loss_z, &figures->norm_z);
    figures->skipped = decision != STEP_APPLY;
    if (decision == STEP_APPLY) return optimizer_update(run->optimizer, figures->step, before, figures->norm, err);

    char why[sizeof err->text] = "";
    Blame blame = {0};
    int head, chunk;
    if (decision == STEP_SKIP_OUTLIER)
        text_add(why, sizeof why, "loss %.4f is %+.1f and norm %.2f %+.1f standard deviations off; the limit is %g",
                 figures->loss, figures->loss_z, figures->norm, figures->norm_z, train->skip_outlier_z);
    else {
        if (optimizer_blame(run->optimizer, &blame, err) != 0) return -1;
        schedule_home(run->schedule, run->schedule->stages * run->schedule->chunks - 1, &head, &chunk);
        if (!isfinite(figures->loss))
            text_add(why, sizeof why, "the loss on stage %d is %s%s", head, isnan(figures->loss) ? "nan" : "inf",
                     blame.gradient != NULL ? ", and " : "");
        if (blame.gradient != NULL)
            text_add(why, sizeof why,
                     "the first non-finite gradient of the backward is that of %s on stage %d (sum of squares: %s)",
                     blame.gradient->name, blame.gradient_stage, isnan(blame.squares) ? "nan" : "inf");
        if (blame.weight != NULL)
            text_add(why, sizeof why, "; %s on stage %d was not finite before the step", blame.weight->name,
                     blame.weight_stage);
    }
    if (decision == STEP_SKIP_BAD)
        text_add(why, sizeof why, " (%lld of %lld such steps)", (long long)run->step_guard.bad,
                 (long long)train->skip_bad_steps);
    if (decision == STEP_STOP) text_add(why, sizeof why, "; weights are unchanged");
    if (decision == STEP_STOP && train->skip_bad_steps > 0)
        text_add(why, sizeof why, "; train.skip_bad_steps allows no more than %lld", (long long)train->skip_bad_steps);
    if (decision == STEP_STOP)
        return error_on_all(err, EXIT_FAILED, "step %lld: %s; %s", (long long)figures->step, why,
                            blame.weight != NULL ? "resume from an earlier checkpoint, or check checkpoint.init_from"
                                                 : "lower train.lr or check the data of this step");
    log_line(&run->all, "step %lld: update skipped, since %s; weights, moments and Adam's step count are unchanged",
             (long long)figures->step, why);
    optimizer_skip(run->optimizer);
    return 0;
}

// Runs one step: data, pipeline, loss, gradient norm, update, and its report.
static int train_step_(Run *run, int64_t step, bool *stop, Error *err) {
    double start = clock_seconds();
    const TrainConfig *train = &run->config->train;
    int64_t entry = train->ramp_count - 1; // the step's entry of train.batch_ramp; -1: there is no ramp
    while (entry > 0 && train->batch_ramp[entry].step > step) entry--;
    const Schedule *schedule = entry < 0 ? run->schedule : run->ramp[entry];
    double tokens = (double)(config_batch_at(run->config, step) * config_targets(run->config));
    StepFigures figures = {.step = step};
    EngineRun pipeline;
    char label[64];
    snprintf(label, sizeof label, "step %lld", (long long)step);
    if (run->metrics != NULL) metrics_progress(run->metrics, step);
    status_page_set_step(run->status_page, step);
    status_page_set_action(run->status_page, label);
    if (run->be->range_begin != NULL) run->be->range_begin(run->be, label); // tells profilers where the step begins

    run->stage.microbatches = schedule->microbatches;
    if (batch_train(&run->batch, run->sets.train, step, err) != 0) return -1;
    if (step < train->steps) batch_expect(&run->batch, run->sets.train, step + 1);
    if (engine_run(run->engine, label, schedule, (float)(1.0 / tokens), &pipeline, err) != 0)
        return train_fail_(label, err);

    snprintf(label, sizeof label, "step %lld optimizer", (long long)step);
    status_page_set_action(run->status_page, label);
    if (run_loss(run, &figures.loss, stop, err) != 0) return train_fail_(label, err);
    figures.loss /= tokens;
    run->stage.microbatches = run->stage.most_microbatches; // validation and samples use all
    if (optimizer_norm(run->optimizer, &figures.norm, err) != 0) return train_fail_(label, err);
    double normed = clock_seconds();
    if (train_update_(run, &figures, err) != 0) return train_fail_(label, err);

    double update = clock_seconds() - normed;
    figures.seconds = normed - start;
    if (run->be->range_end != NULL) run->be->range_end(run->be);
    if (run_report_step(run, &pipeline, update, &figures, err) != 0) return -1;
    snprintf(label, sizeof label, "step %lld", (long long)step);
    return run_trace_step(run, label, schedule, &pipeline, start, err);
}

// Says after a resume if the fewest steps for train.tokens (train.steps: auto) take another number of tokens, because
// the steps before had another batch or length.
static void say_tokens_(const Run *run) {
    const Config *config = run->config;
    int64_t steps = config->train.steps, done = run->from.state.step;
    if (!run->from.found || done >= steps || config->train.tokens == 0) return;
    int64_t needed = config_steps_for_tokens(config, done, batch_position(&run->batch, done));
    if (steps != config_steps_for_tokens(config, 0, 0) || steps == needed) return;
    log_status(
        &run->all,
        "%lld steps (train.steps) take %lld tokens, not the %lld of train.tokens, since earlier steps had another "
        "batch or length; for train.tokens set train.steps to %lld",
        (long long)steps, (long long)(batch_position(&run->batch, steps) * config->model.seq_len),
        (long long)config->train.tokens, (long long)needed);
}

// Returns whether `step` is a multiple of `every` or the last step; false if `every` is 0.
static bool is_due_(const Run *run, int64_t step, int64_t every) {
    return every > 0 && (step % every == 0 || step == run->config->train.steps);
}

static bool saves_(const Run *run, int64_t step) {
    return run->checkpoint != NULL && is_due_(run, step, run->config->checkpoint.every);
}

// 1. Steps, until the last one, an error, or a request to stop. 2. If it was asked to stop, the run saves a checkpoint.
// 3. Waits for a checkpoint that is still being written, even after an error that all ranks found. 4. The end.
int run_train(Run *run, Error *err) {
    const Config *config = run->config;
    int64_t steps = config->train.steps, step = run->from.state.step;
    int status = 0;
    bool stop = false;
    if (run->from.found && step >= steps)
        log_status(&run->all,
                   "nothing is left to train: the checkpoint is at step %lld and train.steps (the total) is %lld",
                   (long long)step, (long long)steps);
    say_tokens_(run);
    if (run->checkpoint != NULL && config->checkpoint.every == 0)
        log_status(&run->all, "checkpoint.every is 0: nothing is saved, not even at the end, unless the run is asked "
                              "to stop");
    if (run->checkpoint == NULL && config->checkpoint.every > 0)
        log_status(&run->all, "checkpoint.dir is empty, so nothing is saved, whatever checkpoint.every is");
    run_listen(run);
    while (status == 0 && !stop && step < steps) {
        status = train_step_(run, ++step, &stop, err);
        if (status == 0) status = checkpoint_poll(run->checkpoint, err);
        if (status == 0 && step == run->from.state.step + 1) status = run_compare_plan(run, err);
        // Validate even before a stop: a resumed run begins with the next step and would never validate this step.
        if (status == 0 && run->sets.val != NULL && is_due_(run, step, config->data.val_every))
            status = run_validate_step(run, step, err);
        if (status == 0 && run->sets.hellaswag != NULL && is_due_(run, step, config->data.hellaswag_every))
            status = run_evaluate_step(run, step, err);
        if (status == 0 && is_due_(run, step, config->sample.every)) status = run_sample(run, step, err);
        stop = stop && step < steps;
        if (status != 0 || !(stop ? run->checkpoint != NULL : saves_(run, step))) continue;
        status_page_set_action(run->status_page, "saving");
        // A gather may still write a unit while its pieces are copied.
        if ((status = optimizer_wait(run->optimizer, err)) != 0) continue;
        status = checkpoint_save(run->checkpoint, step, batch_position(&run->batch, step), &run->step_guard, err);
    }
    if (status != 0 && !err->everywhere && world_size(run->world) > 1) return -1;
    status_page_set_action(run->status_page, "writing the last checkpoint");
    Error failure = {0};
    int finished = checkpoint_finish(run->checkpoint, status == 0 ? err : &failure);
    if (status != 0 || finished != 0) return -1;
    if (run->unheard.code != 0) return *err = run->unheard, -1;
    bool saved = run->checkpoint != NULL && checkpoint_saved(run->checkpoint) == step;
    const char *dir = config->checkpoint.dir;
    bool earlier = run->checkpoint != NULL && checkpoint_saved(run->checkpoint) >= 0;
    char unsaved[2 * CONFIG_TEXT + 128];
    snprintf(unsaved, sizeof unsaved, "its last checkpoint could not be written to %s; mend that, then %s%s", dir,
             earlier ? "continue with --resume " : "give the same command again", earlier ? dir : "");
    if (stop && run->checkpoint == NULL)
        return error_on_all(err, EXIT_FAILED,
                            "stopped on request after step %lld; nothing was saved, since checkpoint.dir is empty",
                            (long long)step);
    if (stop)
        return error_on_all(err, saved ? EXIT_STOPPED : EXIT_FAILED, "stopped on request after step %lld; %s%s",
                            (long long)step, saved ? "continue with --resume " : unsaved, saved ? dir : "");
    if (run->from.state.step >= steps || !saves_(run, steps) || saved) return 0;
    return error_on_all(err, EXIT_FAILED, "training is done, but %s", unsaved);
}
