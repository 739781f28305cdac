// Runs a single stage of a pipeline on one device: the engine executes the stage's unchanged action list, while its
// neighbours, its partner and the other tensor ranks are emulated. This measures the figures of a run with one device
// per stage: the stage's true peak memory, and how long its forwards and backwards take.
#pragma once

#include "engine/engine.h"
#include "hardware_model.h"
#include "plan.h"
#include "profile.h"

// Medians over the microbatches of one run, summed over chunks, in seconds, without collectives over tensor ranks.
typedef struct EmulationTimes {
    double seconds[TIMED_ACTIONS]; // B: 0 if all backwards are split; I and W: 0 if none is
    double exposed;                // total time that compute waited for transfers
    int64_t microbatches;
} EmulationTimes;

typedef struct Emulation {
    Backend *be; // owned by the caller
    Stage stage;
    Engine *engine;
    Comm *pipeline, *tensor, *pair, *experts, *context[2];
    void *scratch;                          // slot that receives evicted bundles; not counted in the peak
    int64_t scratch_bytes, scratch_counted; // requested bytes; bytes including the device's padding
} Emulation;

// Returns the median of the values and sorts them; 0 for an empty list.
double emulation_median(double *values, int64_t count);

// Allocates stage `plan->at.stage` with the sizes of `plan`. Evictions run at hardware->cost.pair bytes/s. -1
// with err; call emulation_destroy in both cases.
int emulation_create(Emulation *emulation, const Config *config, const Model *model, const Schedule *schedule,
                     const PlanStage *plan, const Hardware *hardware, Backend *be, Error *err);
void emulation_destroy(Emulation *emulation);

// Runs the stage's list once; engine_rehearse must have been called. The first run on a device touches its memory for
// the first time, so time a later run.
int emulation_run(Emulation *emulation, const Schedule *schedule, EmulationTimes *times, Error *err);

// Returns the bytes by category at the peak, without the scratch.
MemoryBytes emulation_peak(const Emulation *emulation);

// Creates a computing backend of the configured kind. NULL with err if it is unavailable.
Backend *emulation_backend(const Config *config, Error *err);

// Runs the program's --emulate-stage; stage: a number or "all". 0, or -1 with err.
int emulate_command(const Config *config, const Model *model, const char *stage, const Log *log, Error *err);
