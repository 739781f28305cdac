// One rank's training run: everything it owns, from its place in the world to its metrics file, and the loop over steps.
#ifndef RUN_H
#define RUN_H

#include "engine/batch.h"
#include "ranks/status_page.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/step_guard.h"
#include "metrics.h"
#include "engine/optimizer.h"
#include "plan/plan.h"
#include "ranks/topology.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a run is asked for besides its configuration.
typedef struct RunAsk {
    const char *resume;   // a checkpoint or a directory of them; NULL: none
    const char *generate; // a prompt: text is written and nothing trained; NULL: no text
    bool validate;        // the loss of data.val is said and nothing trained
} RunAsk;

bool run_trains(const RunAsk *ask);

typedef struct Run {
    const Config *config;
    const Model *model;
    Log *log;
    World *world;
    StatusPage *status_page;
    Coordinates at;
    Backend *be;
    Device device;
    Comm *pipeline, *tensor, *data, *tied; // NULL where the group would be this rank alone
    Checksum *checksum;                    // NULL where comm.checksum is off, as are the groups beside it
    Comm *pipeline_sums, *pair_sums;       // of the checksums of messages
    Comm *pair, *pair_bundles;             // of messages in host memory; of bundles, NULL where none are evicted
    Schedule *schedule, *validation;
    Plan plan;
    Stage stage;
    Engine *engine;
    Optimizer *optimizer;
    Blend *train;
    Dataset *val;
    Evaluation *hellaswag; // NULL: none
    Batch batch;
    StepGuard step_guard;   // the same on all ranks
    Metrics *metrics;       // rank 0
    bool metrics_failing;   // the latest line could not be written
    Error unheard;          // standard output cannot be written
    Checkpoint *checkpoint; // NULL without checkpoint.dir
    ResumePoint from;
    struct RunTrace *trace;    // run_trace.h; NULL: none
    struct Sampler *sampler;   // run_sample.h; NULL: none
    struct Recorder *recorder; // record.h; NULL: none
} Run;

// Takes this rank's place in `world`, allocates and initializes, or goes on from a checkpoint. Without training there are no data, no
// metrics and no checkpoints to write. Collective. -1 with err; run_destroy in both cases.
int run_create(Run *run, const Config *config, const Model *model, const RunAsk *ask, World *world,
               StatusPage *status_page, Log *log, Error *err);

// The list that the plan is made for: the configuration's, or without training forwards alone: a batch's, or for text one
// microbatch's. NULL with err.
Schedule *run_schedule(const Config *config, const RunAsk *ask, Error *err);

// Trains to train.steps, saving as checkpoint.* says. Returns 0 or -1 with err; a stop on request (SIGUSR1, SIGTERM, SIGINT) ends after
// the step under way, on all ranks after the same one, with code EXIT_STOPPED once its checkpoint is saved.
int run_train(Run *run, Error *err);

// Without training: one line on stdout, or a JSON object, with the loss of data.val. Collective. -1 with err.
int run_validate(Run *run, bool json, Error *err);

void run_destroy(Run *run);

// After every line of metrics, with the error it met or none. Where there is no room for the file's figures a run goes on without: said when
// that begins, and when it ends. Where the line did not reach standard output, the run ends as if asked to, and fails with that.
void run_tell_metrics(Run *run, int64_t step, const Error *trouble);

// From here on the signals that ask a run to stop are noted, and it can be asked whether one has come.
void run_listen(Run *run);
bool run_stop_requested(void);

// Opens the training and the validation set and checks that they have what the configuration needs; val is NULL where none is used.
int run_open_data(const Config *config, Blend **train, Dataset **val, Error *err);

// The validation set alone, whatever data.val_every says.
int run_open_validation(const Config *config, Dataset **val, Error *err);

// Says what is worth knowing about the data: how far each source of a blend goes, and data sets of different tokenizers.
void run_tell_data(const Run *run);

#ifdef __cplusplus
}
#endif

#endif
