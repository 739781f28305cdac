// Does balancing pipeline memory with BPipe pay for this model on this hardware? A yes or no, and the figures for it.
//
// BPipe makes no step shorter by itself: it makes a larger micro-batch fit. So the first question is whether the size
// that needs BPipe beats the largest size that fits without it. If so, the second is whether it also beats all smaller
// sizes, since a smaller size may have a fused softmax that the largest lacks. Steps within 2 % of each other tie:
// the reason says so, and use_bpipe follows the faster one.
#pragma once

#include "planner.h"
#include "ranks/world.h"

// The variants that a plan compares: without evictions, with evictions, and with evictions and recomputed attention.
typedef enum PlanWay { PLAN_PLAIN, PLAN_BPIPE, PLAN_RECOMPUTE, PLAN_WAYS } PlanWay;

typedef struct Verdict {
    bool use_bpipe;
    char reason[1280];
    char brief[200];            // the reason in a line or two, without the figures of memory and of stages
    int64_t largest[PLAN_WAYS]; // the largest micro-batch that fits; 0: even 1 does not fit
    Forecast plain, bpipe;      // the configured micro-batch size, without and with BPipe
    Forecast best;              // the largest size that fits without BPipe; possible: false if no size fits
    Forecast larger;            // the largest size with BPipe, if above `plain` and `best`; else possible: false
    Forecast fastest; // fastest size without BPipe, if BPipe beats `best` but not this size; else possible: false
    bool gains;       // required_gain and stage_gain are known
    double
        required_gain; // gain of MFU_stage over best's micro-batch size, for the pipeline to be no slower (plan_time.h)
    double stage_gain; // expected gain of a stage, by the profile or the model
} Verdict;

// Forecasts a variant of the planner's configuration with another micro-batch size. Remembers forecasts, because
// simulating a long schedule takes a while. Slots that are too few for evictions become auto. -1 with err.
int verdict_forecast(const Planner *planner, int64_t micro_batch, PlanWay way, bool timed, Forecast *forecast,
                     Error *err);

// Forecasts the planner's configuration with and without BPipe, and fills in *verdict. -1 with err.
int verdict_make(Verdict *verdict, const Planner *planner, Error *err);

// Decides schedule.name, schedule.split_backward and schedule.bpipe where they are still open. schedule.name auto
// becomes the fastest schedule that fits and has the given values of the other keys. bpipe auto and split_backward auto
// allow every schedule. The configuration takes all values of that schedule. If there is no such schedule, the name is
// 1f1b. Then schedule.bpipe auto becomes the verdict's answer, and split_backward auto the answer of
// planner_forecast_config. Logs the reason. -1 with err.
int verdict_resolve(Config *config, const Model *model, const Log *log, Error *err);

// Decides only schedule.name.
int verdict_resolve_name(Config *config, const Model *model, const Log *log, Error *err);

// Decides an open split_backward by Forecast.split_gain.
void verdict_take_split(Config *config, double gain, const Log *log);

// Runs verdict_resolve on rank 0 and sets its decision on all ranks, which may see different machines. Collective.
int verdict_agree(Config *config, const Model *model, World *world, const Log *log, Error *err);

// Computes the reserves (GiB) up to which this micro-batch size fits without and with BPipe; negative if it does not
// fit even without a reserve. Returns false if no limit is known.
bool verdict_reserves(const Verdict *verdict, const Planner *planner, double *plain, double *bpipe);
