// Predicts the memory of a run, by stage and category, before anything is allocated. The functions that lay out the
// allocations are called only to count.
#pragma once

#include "base/memo.h"
#include "bpipe.h"
#include "engine/slots.h"
#include "engine/stage.h"

typedef struct PlanStage {
    StageShape at;
    MemoryBytes memory;      // bytes by category, per rank of the stage
    int64_t layer_gradients; // bytes of the layers' gradients here, also in a plan for another program (foreign.h)
    StateBytes states;       // weights, gradients, masters and moments by kind, in bytes; part of `memory`
    int own_slots, lent_slots;
    int host_slots;       // most bundles in host memory at once; 0 without evictions to the host
    int64_t slot_bytes;   // bytes of a slot: the larger bundle of the stage and its partner
    int64_t copy_bytes;   // host memory of a rank for the copy from which checkpoints are written
    int64_t order_bytes;  // host memory of a rank for the order of a blend's sources
    int64_t buffer_bytes; // host buffers for files, for data, and for messages of ranks that share a GPU
    // Unpadded parameters of the stage, all tensor ranks together; a tied head counts on the first stage only.
    int64_t parameters;
} PlanStage;

typedef struct Plan {
    int stages;
    PlanStage *stage;
    int64_t parameters;
    bool no_flash;   // flash becomes recompute on some stage
    char flash[160]; // about flash attention on a GPU: why it is replaced, or whether it is deterministic; "": no text
} Plan;

// Makes and proves the schedule of a configuration. NULL with err. With schedule.bpipe auto, BPipe is on if it evicts
// anything.
Schedule *plan_schedule(const Config *config, Error *err);

// Makes a schedule as plan_schedule does, with another number of microbatches of the configured size. A long schedule
// is not proved here: tests prove its kind for fewer stages, and a run proves its schedule at its start.
Schedule *plan_schedule_with(const Config *config, int64_t microbatches, Error *err);

// Makes and proves the schedules of all entries of train.batch_ramp, which have to fit the slots of `largest`, the
// schedule of the largest batch. -1 with err; free the schedules in both cases. plan_check_ramp keeps none of them.
int plan_ramp(const Config *config, const Schedule *largest, Schedule *ramp[CONFIG_MAX_RAMP], Error *err);
void plan_ramp_free(Schedule *ramp[CONFIG_MAX_RAMP]);
int plan_check_ramp(const Config *config, const Schedule *largest, Error *err);

// Returns whether BPipe can relieve a stage of this schedule. Evictions to host memory always can. Evictions to a
// partner can only if the schedule fills stages unevenly. False for a schedule from a file.
bool plan_can_balance(const Config *config);

// Returns the display name of the schedule without BPipe: "1F1B".
const char *plan_plain_name(const Config *config);

// Returns whether the lists of all virtual stages are small enough for memory: every rank keeps all lists.
bool plan_schedule_holds(int64_t virtual_stages, int64_t microbatches);

// Makes the plan. be: any backend of the kind that will run; it reports the attention's scratch and allocates nothing.
// Freed with plan_free.
Plan plan_make(const Model *model, const Config *config, const Schedule *schedule, Backend *be);
// Makes the plan as plan_make does, with a given tensor table, for callers that make many plans of one model. memo:
// plan_memo's, for plans that differ only in the keys of a layout (layout.h); may be NULL.
Plan plan_make_from(const TensorTable *table, const Config *config, const Schedule *schedule, Backend *be, Memo *memo);
Memo *plan_memo(void);
void plan_free(Plan *plan);

// Returns the slots that the stage's engine allocates.
SlotCounts plan_slots(const PlanStage *stage);

// Returns the stage with the most bytes per rank; the first of several.
int plan_fullest(const Plan *plan);

// Returns the host memory of a rank of the stage: bundles evicted there, the copy of a checkpoint, the order of a
// blend, and buffers.
int64_t plan_host_bytes(const PlanStage *stage);

// Return the number of evictions of all stages in one step, and whether there are any.
int64_t plan_evictions(const Schedule *schedule);
bool plan_evicts(const Schedule *schedule);

// Returns the bytes by which `bytes` plus the reserve exceed `limit`; negative: bytes left; -INFINITY: the limit is 0
// (unknown). All checks of whether something fits use this function.
double plan_lacks(double bytes, double limit, double reserve_gib);

// Writes "46,702,792,704 parameters, 12,879,925,248 of them active"; the latter only for mixtures of experts. Returns
// `text`.
enum { PLAN_PARAMETERS_TEXT = 96 };
char *plan_parameters_text(int64_t parameters, const ModelConfig *model, char text[PLAN_PARAMETERS_TEXT]);

// Prints the table shown at start-up: model, parameters and world; layers, slots and bytes by category of each stage;
// and the host memory of the stage that needs the most.
void plan_print(const Plan *plan, const Config *config, const Schedule *schedule, FILE *file);

// Checks that all ranks of the run fit on this machine, for a program that starts its ranks itself (fits.h). -1 with
// err (code 1): two lines: needed and available memory, and a configuration to run instead.
int plan_check_machine(const Plan *plan, const Config *config, const char *program, bool cuda_available, Error *err);
