// One rank's run: everything it owns, from its groups of ranks to its metrics file, and the commands on it: train,
// check, validate, generate text. A run is created and destroyed by all ranks together; "collective" below means that
// every rank calls the function at the same point.
//
//   run_create.c    creates groups, allocates, initializes or loads; what a resumed run does differently; --verbose
//   run_train.c     the loop over steps, and a step                               run_report.c    the report of a step
//   preflight.c     --check: its measurements and verdict                         tune.c        --tune, its file
//   run_validate.c  losses, validation, data.hellaswag, --validate                run_sample.c    samples, --generate
//   run_stop.c      requests to stop            run_data.c   data sets            run_trace.c     --trace
#pragma once

#include "checkpoint/checkpoint.h"
#include "config/options.h"
#include "data/blend.h"
#include "data/evaluate.h"
#include "device/device.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/optimizer.h"
#include "engine/step_guard.h"
#include "metrics.h"
#include "slowest.h"
#include "plan/plan.h"
#include "ranks/status_page.h"
#include "ranks/topology.h"

// ask: the command line, from which a run reads only its own options.
bool run_trains(const Options *ask); // false: --generate or --validate

enum { RUN_MOST_LANES = 2 * STAGE_MOST_CHUNKS, RUN_MOST_GROUPS = RUN_MOST_LANES + 9 };

// Checks, before any rank starts, that the machine has the devices and memory of the plan, that the data and the
// checkpoint to resume from exist, and that no other run's checkpoints are in the way. -1 with err.
int run_check_start(const Config *config, const char *program, const Model *model, const Options *ask, Error *err);

// The data sets that a run reads; NULL: not used.
typedef struct RunData {
    Blend *train;
    Dataset *val;
    Evaluation *hellaswag;
    int64_t end_of_text; // token that begins a document; for data.mask_documents and data.reset_positions
} RunData;

typedef struct Run {
    const Config *config;
    const Model *model;
    Log *log;
    Log all; // log for messages on behalf of all ranks; silent except on rank 0
    World *world;
    StatusPage *status_page;
    Coordinates at;
    Backend *be;
    Device device;
    ProductChoices products;      // from hardware.products_file, or measured by --tune
    int lanes;                    // number of pipeline groups, one for each lane of messages (engine/p2p.h)
    Comm *lane[RUN_MOST_LANES];   // [lanes]
    Comm *tensor, *data, *tied;   // NULL: not needed, or not a member; `data` has all replicas (topology.h)
    Comm *context[2];             // one group per half of a sequence (model/blocks.c), or NULL
    Comm *experts, *same_experts; // ranks that divide a stage's experts; ranks with the same experts; NULL: one rank
    Comm *pair, *pair_far;        // group that moves evicted bundles; its `far` group, NULL once `pair` owns it
    Schedule *schedule, *validation;
    Schedule *ramp[CONFIG_MAX_RAMP]; // schedule of each entry of train.batch_ramp; `schedule` is the largest batch's
    Plan plan;
    Roster roster;
    Stage stage;
    Engine *engine;
    Optimizer *optimizer;
    RunData sets;
    Batch batch;
    StepGuard step_guard;   // the same on all ranks
    Metrics *metrics;       // on rank 0 of a run that trains; else NULL
    double outside_gib;     // see MetricsSetup; 0: unknown
    double peak_cores;      // cores of this rank, if be->peak_tflops was measured; else 0
    bool metrics_failing;   // the latest line could not be written
    Error unheard;          // error of standard output; code 0: no error
    Checkpoint *checkpoint; // NULL without checkpoint.dir
    ResumePoint from;
    Slowest *slowest;          // on rank 0 of several ranks that train; else NULL
    int slow_rank, slow_steps; // the slowest rank; consecutive steps in which it cost more than 5 % of the time
    struct RunTrace *trace;    // may be NULL
    struct Sampler *sampler;   // may be NULL
} Run;

// Creates the groups of ranks, allocates, and initializes or loads. A run that does not train opens no training
// data and no metrics, and writes no checkpoints. Collective. -1 with err; call run_destroy in both cases.
int run_create(Run *run, const Config *config, const Model *model, const Options *ask, World *world,
               StatusPage *status_page, Log *log, Error *err);
void run_destroy(Run *run);

// ---------------------------------------------------------------- training

// Trains up to train.steps and saves checkpoints as checkpoint.* says. Returns 0 or -1 with err. A request to stop ends
// the run, on all ranks after the same step; the error has code EXIT_STOPPED if a checkpoint was saved.
int run_train(Run *run, Error *err);

// Collective, after the pipeline of a step. On every rank, sets *loss to the sum of the losses of all tokens, and *stop
// to whether any rank was asked to stop. -1 with err.
int run_loss(Run *run, double *loss, bool *stop, Error *err);

// Collective. Gathers every rank's figures of a step and writes the step line and the line of metrics. update: seconds
// of this rank's update, which all ranks begin together. say->seconds: the time until then.
int run_report_step(Run *run, const EngineRun *pipeline, double update, StepFigures *say, Error *err);

// Handles the result of writing a metrics line (`trouble`; code 0: no error); call it after each line. If the file
// cannot be written, training continues, and the start and the end of the failure are logged. If standard output cannot
// be written, stops the run as a signal would; the run then fails, unless a stop was already requested.
void run_tell_metrics(Run *run, int64_t step, const Error *trouble);

// Collective. Call it after the first step, when every rank has made all its allocations. Rank 0 prints one line if
// every rank has allocated exactly its stage's planned bytes in every category, else up to 16 differences.
int run_compare_plan(Run *run, Error *err);

// ---------------------------------------------------------------- before a long run

// Runs --check (preflight.c) on a run that was created with ask->check and has allocated only its groups: measures each
// rank's product, each link and the file system, and prints them next to the plan, as JSON if `json`. Collective. -1
// with err if a step would take over 5 % longer than planned; err names the slowest rank or link.
int run_preflight(Run *run, bool json, Error *err);

// Ends --tune on a run that was created with ask->tune: writes the measurements of all ranks to hardware.products_file.
// Collective. -1 with err.
int run_tune(Run *run, Error *err);
// Collective. Reads hardware.products_file on rank 0 into every rank's run->products, and gives them to the backend. -1
// with err.
int run_read_products(Run *run, Error *err);

// ---------------------------------------------------------------- requests to stop

// run_listen installs the handlers of stop signals. run_stop_requested returns whether a signal arrived.
// run_request_stop has the effect of a signal. If the reader of stderr pauses at the first request, all lines until
// run_restore_stderr are dropped, since the step would wait for him.
void run_listen(Run *run);
bool run_stop_requested(void);
void run_request_stop(void);
void run_restore_stderr(void);

// ---------------------------------------------------------------- validation and evaluation

// Collective. Writes the mean loss over data.val_batches after `step` to the metrics.
int run_validate_step(Run *run, int64_t step, Error *err);

// Runs --validate: prints the loss of data.val as a line or, with `json`, a JSON object. Collective. -1 with err.
int run_validate(Run *run, bool json, Error *err);

// Collective. Counts the examples of data.hellaswag that the model gets right after `step`, and writes the count to the
// metrics. A request to stop ends the evaluation without a result; the run then ends after the next step.
int run_evaluate_step(Run *run, int64_t step, Error *err);

// ---------------------------------------------------------------- text
// Each token takes one forward of the full window (seq_len tokens) through the pipeline: a forward-only list of one
// microbatch, which micro_batch texts share. Keys and values are not cached between tokens, so no memory for them is
// planned. With several data ranks, only the first one computes. The last stage's tensor ranks send their candidates
// (sample.h) to rank 0, which chooses the token and broadcasts it.

// Before ranks start: checks that the tokenizer can be read and can encode the prompt (NULL: sample.prompt). -1 with
// err.
int run_sample_check(const Config *config, const char *prompt, Error *err);

// Creates run->sampler. prompt NULL: sample.prompt. -1 with err.
int run_sampler_create(Run *run, const char *prompt, Error *err);
void run_sampler_destroy(Run *run);

// Collective. Writes sample.count texts to the metrics.
int run_sample(Run *run, int64_t step, Error *err);

// Collective. Writes sample.count texts to stdout and nothing else; a request to stop is an error.
int run_generate(Run *run, Error *err);

// ---------------------------------------------------------------- trace
// After each step every rank sends the times of its actions to rank 0, which has every rank's list and writes the file.

// Collective; `run` has been created. path NULL: no trace, and run->trace stays NULL. -1 with err.
int run_trace_open(Run *run, const char *path, Error *err);

// Collective. Writes a run of `schedule` under the name `label`, with the action times that engine_run measured. The
// run lasted from `begin` (this host's clock) to now. Does nothing without a trace. If the file can no longer be
// written, logs that once, and training continues. Returns -1 with err only if ranks cannot be reached.
int run_trace_step(Run *run, const char *label, const Schedule *schedule, const EngineRun *pipeline, double begin,
                   Error *err);

// Ends the trace file, even if the run has failed, and frees run->trace.
void run_trace_close(Run *run);

// ---------------------------------------------------------------- data

// Opens the data sets that `ask` needs and checks that they suffice for the configuration. Refuses an encoder
// (model.causal: false) that has no masked objective or is asked to generate text. Collective: refuses, on the ranks
// concerned, other files than those of rank 0. world NULL: before ranks start. -1 with err; call run_close_data in both
// cases.
int run_open_data(const Config *config, const Options *ask, World *world, RunData *data, Error *err);
void run_close_data(RunData *data);

// ---------------------------------------------------------------- --verbose
// Prints the detected hardware, the choices, and the time of each phase of the start. Rank 0 prints all this, except
// that each evicting stage prints how it moves its bundles.

// Phases follow one another; the first begins with details_begin.
typedef struct Details {
    Log log; // silent on ranks other than 0
    double began, since;
} Details;

Details details_begin(Log log);
void details_phase(Details *details, const char *what); // logs the time since the previous phase ended
