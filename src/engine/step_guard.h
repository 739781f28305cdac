// Whether a step's update may change the weights: not where its loss or gradient is no number, and on request not where
// they are far from what is usual.
//
// The decision rests on the loss and the norm, which all ranks know to the bit, and on the state below, which
// checkpoints hold. So all ranks decide alike, in every layout, and a resumed run decides as one that was never
// interrupted.
#ifndef STEP_GUARD_H
#define STEP_GUARD_H

#include "config/config.h"

#include <stdbool.h>
#include <stdint.h>

// Deviation of x from the mean of the last 128 values, in standard deviations; 0 while fewer than 8 were seen or where
// they are all equal. The value is added after it was judged.
enum { ZSCORE_WINDOW = 128 };
typedef struct ZScore {
    double values[ZSCORE_WINDOW];
    int64_t seen;
} ZScore;
double zscore_add(ZScore *z, double x);

// Values a window has to hold before train.skip_outlier_z looks at deviations from it: of fewer, the standard deviation
// itself is too uncertain.
enum { STEP_LEAST = 32 };

typedef struct StepGuard {
    ZScore loss, norm;
    int64_t skipped; // updates left out so far, for either reason: Adam's step count is the step less these
    int64_t bad;     // of them, those whose loss or gradient was not finite
} StepGuard;

typedef enum StepDecision { STEP_APPLY, STEP_SKIP_BAD, STEP_SKIP_OUTLIER, STEP_STOP } StepDecision;

// Judges one step, and keeps the books: windows, and what is skipped.
//
// train.skip_bad_steps counts over the whole run, resumes included, and not in a row: a run in which every second step
// is bad is not in order, and would go on for ever if good steps in between made it forget. train.skip_outlier_z looks
// upwards only: a loss far below the usual harms nothing. What is skipped enters the windows, so that a lasting change
// becomes the usual.
StepDecision step_guard_decide(StepGuard *state, const TrainConfig *train, double loss, double norm, double *loss_z,
                               double *norm_z);

#endif
