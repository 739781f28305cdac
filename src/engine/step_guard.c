// The step guard (step_guard.h): a window of the last values of loss and norm, and the decision.
#include "step_guard.h"

#include <math.h>

static double deviation_(const double *values, int count, double x) {
    double sum = 0.0, squares = 0.0, least = values[0], most = values[0];
    for (int i = 0; i < count; i++) {
        sum += values[i];
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    if (least == most)
        return 0.0; // checked on the values themselves, because the rounded mean of equal values may differ from them
    double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (values[i] - mean) * (values[i] - mean);
    return (x - mean) / sqrt(squares / count);
}

double zscore_add(ZScore *z, double x) {
    int count = z->seen < ZSCORE_WINDOW ? (int)z->seen : ZSCORE_WINDOW;
    double score = count < 8 ? 0.0 : deviation_(z->values, count, x);
    if (isfinite(x)) z->values[z->seen++ % ZSCORE_WINDOW] = x; // one infinity would make every later score NaN
    return score;
}

// Compares x with the window, then adds it.
static bool outlier_(ZScore *window, double x, double limit, double *z) {
    bool enough = window->seen >= STEP_LEAST;
    *z = zscore_add(window, x);
    return limit > 0.0 && enough && *z > limit;
}

StepDecision step_guard_decide(StepGuard *state, const TrainConfig *train, double loss, double norm, double *loss_z,
                               double *norm_z) {
    bool high_loss = outlier_(&state->loss, loss, train->skip_outlier_z, loss_z);
    bool high_norm = outlier_(&state->norm, norm, train->skip_outlier_z, norm_z);
    bool bad = !isfinite(loss) || !isfinite(norm);
    if (bad && state->bad >= train->skip_bad_steps) return STEP_STOP;
    if (!bad && !high_loss && !high_norm) return STEP_APPLY;
    state->skipped++;
    state->bad += bad;
    return bad ? STEP_SKIP_BAD : STEP_SKIP_OUTLIER;
}
