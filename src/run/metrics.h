// The output of a run: the step line, and the JSON lines of log.metrics. Units: seconds and bytes in the structs;
// milliseconds, GiB or MiB, and percent in the step line.
#pragma once

#include "config/config.h"
#include "engine/engine.h"
#include "base/log.h"

// One pipeline stage in one step. Over the stage's ranks, peak_bytes and run.exposed are the largest, and run.busy is
// the mean. The other figures are those of one rank.
typedef struct StageFigures {
    int64_t peak_bytes;       // most bytes that a rank has had allocated at one time
    int64_t activation_bytes; // bytes of own and lent slots
    ExpertLoad experts;       // experts' load on the rank with the fullest group; unused in dense models
    EngineRun run;            // run.times is invalid
    double update;            // seconds of the rank's update
} StageFigures;

typedef struct StepFigures {
    bool dry;     // a dry run: there is neither loss nor norm
    int64_t step; // 1 .. steps
    double loss;  // mean over the step's tokens
    double norm;  // norm of the gradient, before clipping
    double lr;
    double seconds;              // loading data, pipeline, reduction, and the optimizer of the last rank to end
    double pipeline;             // seconds from the first start to the last end of compute, mean over the replicas
    int64_t tokens, tokens_seen; // tokens of the step, and of all steps up to it
    int stages;
    const StageFigures *stage;
    char slowest[160];     // JSON object that names the slowest rank of the last steps; empty: unknown
    char slow[48];         // the slowest rank, as text for the step line; empty: unknown
    double loss_z, norm_z; // deviations from recent steps (step_guard.h)
    bool skipped;          // the update was left out
    double balance_loss;   // mean over layers and microbatches, without its factor; NaN: none
    const double *copies;  // (layers, experts): tokens that each expert computed; NULL: not requested
} StepFigures;

// Totals over the stages of a step.
typedef struct StepTotals {
    double bubble;  // idle time of all stages in the pipeline phase, divided by the phase's duration and their number
    double exposed; // largest run.exposed of the stages, in seconds
    int64_t evictions;
    int fullest, emptiest; // stages with the most and the least peak_bytes
} StepTotals;
StepTotals figures_totals(const StepFigures *figures);

// Settings: the reference values for MFU, the figures to print, and the wait for the reader of standard output.
typedef struct MetricsSetup {
    double flops_per_token_full, flops_per_token_causal;
    double peak_tflops; // peak of one rank; 0: unknown
    int64_t world;
    double (*measure)(void *context); // remeasures the peak after a step with MFU > 1; NULL: the peak was not measured
    void *context;
    double outside_gib; // GiB of a GPU used by the context, libraries and other programs; 0: unknown
    bool say_all;       // every step line contains every figure (--verbose)
    // Called a few times a second while the reader of standard output pauses (a pager, Ctrl-S); if it returns false,
    // the line is left out. NULL: a line waits until it is read.
    bool (*waits)(void *context);
} MetricsSetup;

typedef struct Metrics Metrics;

// Opens log.metrics for appending and creates its folder; without a path, no file is written. Cuts off a torn last
// line and, on resume (`after_step` >= 0), the steps after `after_step`. Returns NULL with err if the file cannot be
// written, or another run writes to it.
Metrics *metrics_open(const Config *config, const MetricsSetup *setup, int64_t after_step, Error *err);
// Writes the line of type run.
int metrics_run(Metrics *metrics, int64_t parameters, Error *err);
// Writes a step: a line of type step in the file and, if due, a line on stdout. Without say_all, the line on stdout
// leaves out fields to fit 120 columns, shows a deviation only above 3 or below -3, and xfer only if compute waited.
int metrics_step(Metrics *metrics, const StepFigures *figures, Error *err);
// Writes the validation after `step`: a line on stdout and a line of type val, both with the perplexity exp(loss).
int metrics_val(Metrics *metrics, int64_t step, double loss, Error *err);
// Writes the result of multiple choice after `step`: a line on stdout, and a line of type eval with accuracy, correct,
// examples, left_out.
int metrics_eval(Metrics *metrics, int64_t step, int64_t correct, int64_t examples, int64_t left_out, Error *err);
// Writes generated text number `index` (from 0) after `step`: on stdout, with all lines but the first indented, and as
// a line of type sample. text: UTF-8, from tokenizer_decode.
int metrics_sample(Metrics *metrics, int64_t step, int64_t index, const char *text, Error *err);
// On a terminal, writes a line with the remaining time, which the next line overwrites. Elsewhere does nothing.
void metrics_progress(Metrics *metrics, int64_t step);
// Returns whether the latest line on standard output could not be written. Errors of the file do not count.
bool metrics_unheard(const Metrics *metrics);
void metrics_close(Metrics *metrics);
