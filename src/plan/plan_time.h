// Predicts the time of a step. Stage times are counted (counted.h) or come from a profile. The pipeline's time
// comes from a simulation of the schedule that would run. Added to it are the sums of gradients over data ranks and of
// the tied head, the gradient norm, the optimizer, and the wait of the first forwards for weights.
#pragma once

#include "counted.h"
#include "plan.h"
#include "profile.h"
#include "schedule_cache.h"
#include "schedule/simulate.h"

// Where times come from.
typedef struct TimeSource {
    const Hardware *hardware;
    const Model *model;
    const Profile *profile; // measured stages; NULL: all times are counted
    Memo *counted;          // may be NULL
    ScheduleCache *lists;   // may be NULL
    bool free_messages;     // messages between stages and moved bundles take no time
} TimeSource;

// Seconds of one microbatch on one stage, all its chunks together.
typedef struct StageTime {
    double forward;
    double backward; // B, or I and W; their average if the list has both
    double weight;   // W
    Account spent;   // kinds of work of a microbatch as counted, even if the stage was measured
    // seconds per step of the stage's gradient sums over data ranks, without the part that the last backward hides, if
    // no other stage uses the network meanwhile
    double reduction;
    double beside;  // seconds that concurrent sums over data ranks add to a backward
    double between; // seconds for which a backward waits for collectives between nodes
    double first;   // seconds by which a step's first B (or W) is shorter than the others
    // seconds per step of the gathers of weights over data ranks, which start after the update, while `crowd` stages'
    // gathers share the network
    double gather, crowd;
    double optimizer; // seconds per step: gradient norm and AdamW, less `first`
    // The sums of gradients over data ranks. A stage sums a layer's gradients once the last backward has made them.
    double rate;  // bytes/s of a rank if no other stage uses the network
    double bytes; // that each rank of the stage sends for its layers
    double late;  // bytes for embedding, final norm and head, which are summed after the last backward
    double hides; // seconds of the last backward, or of the last W if backwards are split (recomputed layers end in the
                  // last I, but are planned as if they ended in W)
    int layers;   // number of layers; 1 if the stage has no layer
} StageTime;

// The simulator's inputs and the memory that holds them. Used for the plan's step time and for the trace of a plan.
typedef struct PlanCosts {
    SimulateCosts costs;
    SimulateShares shares;
    const Plan *plan;
    StageTime *stage; // [stages]
    int kinds;        // kinds of nodes
    bool *on;         // [kinds*stages] whether nodes of a kind have ranks of a stage that sums gradients between nodes
    double tied;      // seconds per step to sum the tied head's gradient over first and last stage
    double gathered;  // seconds by which gathers of weights delay a step's first forwards
    double *times_;
    int *resources_;
} PlanCosts;

// Computes the simulator's inputs. -1 with err (code 1) if there are no performance figures for the device.
int plan_costs_make(PlanCosts *costs, const Config *config, const Schedule *schedule, const Plan *plan,
                    const TimeSource *source, Error *err);
void plan_costs_free(PlanCosts *costs);
// Returns the least seconds that stage s works on a microbatch: some lists mix split and complete backwards.
double plan_least_work(const PlanCosts *costs, const Schedule *schedule, int s);

// The planned step: times in seconds, bubble and MFU as fractions.
typedef struct PlanTime {
    bool known; // false: no performance figures, or given up (`worth`); the rest is 0
    double step, pipeline, bubble, exposed;
    double idle;                 // average stage in `pipeline`; the bubble also includes the wait for first weights
    double tensor;               // collectives over tensor ranks, of the slowest stage
    double reduction, optimizer; // seconds after the pipeline
    double slowest;              // forward and backward of one microbatch on the slowest stage
    double mfu;
    double stage_mfu; // MFU if every stage were like the slowest and never idle; 0: no peak known
    double estimate;  // MFU by the paper's formula from stage_mfu; 0: no peak known, or ranks share cores
} PlanTime;

// Plans a step of config_microbatches(config) microbatches, which may be more than `schedule` has: a long schedule
// repeats itself, so its time follows from a few rounds. If its rounds are irregular and predict clearly more than
// `worth` seconds (INFINITY: no limit), time->known stays false. -1 with err.
int plan_time(PlanTime *time, const Config *config, const Schedule *schedule, const Plan *plan,
              const TimeSource *source, double worth, Error *err);

// The rates per GPU, or per rank on CPUs, in one second: tokens, and TFLOP with attention counted in full; and the MFU
// with causal attention, as Megatron-LM counts it. 0: unknown.
typedef struct PlanSpeed {
    double tokens, tflops, mfu_causal;
} PlanSpeed;
PlanSpeed plan_speed(const Hardware *hardware, const Config *config, const PlanTime *time);

// Returns a lower bound on the seconds that the transfers of the busiest stage take in a step. `schedule` may have
// fewer microbatches than the configuration; it must have the same slots.
double plan_transfer_seconds(const Config *config, const Schedule *schedule, const Plan *plan,
                             const TimeSource *source);

// Returns how many microbatches suffice to plan a schedule of `stages` stages: a longer schedule has the same slots.
int plan_enough_microbatches(int stages);

// The estimate of Huang et al. (arXiv 2401.02088): the MFU of a pipeline, from the MFU of one of its stages. Transfers,
// imbalance and the optimizer are left out, which makes it an upper bound.
//   step = (B/b + p - 1) * T(b), so MFU(b) = B / (B + b (p - 1)) * MFU_stage(b)
// B: sequences of a step on one data rank, b: micro-batch size, p: stages, T(b): forward and backward of one microbatch
// on one stage.

// Returns the share of the time in which stages work.
static inline double estimate_filled(int64_t batch, int64_t micro_batch, int64_t stages) {
    return (double)batch / (double)(batch + micro_batch * (stages - 1));
}

static inline double estimate_mfu(double stage_mfu, int64_t batch, int64_t micro_batch, int64_t stages) {
    return stage_mfu * estimate_filled(batch, micro_batch, stages);
}

// Returns the fraction by which MFU_stage has to grow from micro-batch size `from` to `to` for the pipeline to be no
// slower: the larger size leaves stages idle for longer. 0.052 for B = 128, p = 8, 1 to 2.
static inline double estimate_required_gain(int64_t batch, int64_t from, int64_t to, int64_t stages) {
    return estimate_filled(batch, from, stages) / estimate_filled(batch, to, stages) - 1;
}
