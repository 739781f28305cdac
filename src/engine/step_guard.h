// Decides whether to apply a step's update: never if loss or gradient is NaN or inf, and optionally not for outliers.
//
// The decision depends on the loss and the norm, which are bit-identical on all ranks, and on the state below, which is
// part of checkpoints. So all ranks decide alike in every layout, and a resumed run decides like an uninterrupted run.
#pragma once

#include "config/config.h"

#include <stdint.h>

// zscore_add returns the deviation of x from the mean of the last 128 values, in standard deviations; 0 if fewer than 8
// values were seen or all are equal. It then adds x to the values, if x is finite.
enum { ZSCORE_WINDOW = 128 };
typedef struct ZScore {
    double values[ZSCORE_WINDOW];
    int64_t seen;
} ZScore;
double zscore_add(ZScore *z, double x);

// Values a window must hold before train.skip_outlier_z applies: with fewer, the standard deviation is too uncertain.
enum { STEP_LEAST = 32 };

typedef struct StepGuard {
    ZScore loss, norm;
    int64_t skipped; // updates skipped so far, for any reason; Adam's step count is the step minus `skipped`
    int64_t bad;     // skipped updates whose loss or gradient was not finite
} StepGuard;

typedef enum StepDecision { STEP_APPLY, STEP_SKIP_BAD, STEP_SKIP_OUTLIER, STEP_STOP } StepDecision;

// Decides about one step and updates the windows and counts.
//
// train.skip_bad_steps limits the total of the complete run, including resumes: a run where every other step is bad is
// broken, and a count of consecutive steps would let it continue forever. train.skip_outlier_z looks upwards only,
// because an unusually low loss is harmless. Skipped values enter the windows, so that a lasting change becomes normal.
StepDecision step_guard_decide(StepGuard *state, const TrainConfig *train, double loss, double norm, double *loss_z,
                               double *norm_z);
