// The end of a step: from values that all ranks have, the step guard decides whether the weights change. A step whose
// loss or gradient is not finite never changes them; it is skipped, or stops the run and names the tensor at fault.
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Collective. Names the value that is not finite in one clause: "the loss on stage 3 is nan, and the gradient of X on
// stage 3, the first such in the order of the backward, is not finite". *weight: a weight was not finite before the
// step.
static int explain_bad_(Run *run, const StepFigures *figures, char *text, size_t size, bool *weight, Error *err) {
    Blame blame;
    if (optimizer_blame(run->optimizer, &blame, err) != 0) return -1;
    int used = 0, head, chunk;
    schedule_home(run->schedule, run->schedule->stages * run->schedule->chunks - 1, &head, &chunk);
    if (!isfinite(figures->loss))
        used = snprintf(text, size, "the loss on stage %d is %s%s", head, isnan(figures->loss) ? "nan" : "inf",
                        blame.gradient != NULL ? ", and " : "");
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

int run_update(Run *run, StepFigures *figures, Error *err) {
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
                 "loss %.4f is %+.1f and norm %.2f %+.1f deviations from the last steps; %g are allowed", figures->loss,
                 figures->loss_z, figures->norm, figures->norm_z, train->skip_outlier_z);
    else if (explain_bad_(run, figures, why, sizeof why - 48, &weight, err) != 0) return -1;
    if (decision == STEP_STOP) {
        char allowed[96] = "";
        if (train->skip_bad_steps > 0)
            snprintf(allowed, sizeof allowed, "; train.skip_bad_steps allows no more than %lld",
                     (long long)train->skip_bad_steps);
        return error_on_all(err, EXIT_FAILED, "step %lld: %s; weights are unchanged%s; %s", (long long)figures->step,
                            why, allowed,
                            weight ? "go on from an earlier checkpoint, or look at checkpoint.init_from"
                                   : "lower train.lr or look at the data of this step");
    }
    size_t used = strlen(why);
    if (decision == STEP_SKIP_BAD)
        snprintf(why + used, sizeof why - used, " (%lld of %lld such steps)", (long long)run->step_guard.bad,
                 (long long)train->skip_bad_steps);
    log_line(&run->all, "step %lld: update skipped, since %s; weights, moments and Adam's step count are unchanged",
             (long long)figures->step, why);
    optimizer_skip(run->optimizer);
    return 0;
}
