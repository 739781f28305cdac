// The output of `--plan`: for people, as JSON, as a trace; and the smallest world that holds the model.
#pragma once

#include "config/options.h"
#include "plan_schedules.h"
#include "unsure.h"
#include "verdict.h"

enum { PLAN_SCREEN = 24 };

// Everything that `--plan` reports, gathered before anything is printed.
typedef struct PlanAnswer {
    Planner planner;
    Config config;            // the configuration with schedule.bpipe and split_backward resolved
    const Schedule *schedule; // complete, not an extract
    ScheduleLoan loan;        // the loan of `schedule`
    Plan plan;
    Plan plan_1f1b; // plan of the same configuration with 1F1B and without BPipe
    PlanTime time;
    bool fits;
    Verdict verdict;
    ScheduleTable schedules;
    Unsure unsure;
} PlanAnswer;

// Returns whether a rank with `bytes` fits with the reserve; without a limit per rank, whether the answer's plan fits.
static inline bool plan_answer_holds(const PlanAnswer *answer, int64_t bytes) {
    double limit = (double)answer->planner.hardware.memory_bytes;
    if (limit == 0) return answer->fits; // all ranks share the host
    return plan_lacks((double)bytes, limit, answer->config.hardware.reserve_gib) <= 0;
}

// ---------------------------------------------------------------- waterfall.c
// The parts of a planned step's time: lines that sum to the step, nine for a dense model, and sentences of advice.

#define WATERFALL_ADVICE 224 // bytes of a sentence
#define WATERFALL_MOST   4   // sentences

typedef enum WaterfallLine {
    WATERFALL_PEAK,      // matrix products at the device's peak, recomputed ones too
    WATERFALL_LOSS,      // further time of products: below-peak rate, shape, launches, shared cores
    WATERFALL_ATTENTION, // core attention
    WATERFALL_PASSES,    // pointwise passes over memory
    WATERFALL_TENSOR,    // exposed collectives of tensor ranks
    WATERFALL_EXCHANGE,  // exchanges of rows with experts
    WATERFALL_UNEVEN,    // extra time of the fullest expert rank over a balanced routing
    WATERFALL_IDLE,      // ramp and imbalance
    WATERFALL_MESSAGES,  // exposed messages: the pipeline would be this much shorter without them
    WATERFALL_DATA,      // exposed sums over data ranks
    WATERFALL_OPTIMIZER, // norm, AdamW, gathered weights, overhead of a step
    WATERFALL_LINES
} WaterfallLine;

typedef struct Waterfall {
    bool known;                      // false: no step, or no peak, is known
    bool experts;                    // the model has experts
    double seconds[WATERFALL_LINES]; // means over the stages; their sum is the step
    double ramp, imbalance;          // parts of WATERFALL_IDLE: filling and draining, and waiting for the slowest stage
    char advice[WATERFALL_MOST][WATERFALL_ADVICE]; // "" after the last one
} Waterfall;

// Makes the waterfall. lines: false if only the advice is needed, which saves a second simulation. -1 with err.
int waterfall_make(Waterfall *waterfall, const PlanAnswer *answer, bool lines, Error *err);

// Write the lines as a table, and as `"waterfall":[{"what","ms","share"}],"advice":["..."]`; null if unknown.
void waterfall_print(const Waterfall *waterfall, FILE *file);
void waterfall_write_json(const Waterfall *waterfall, JsonOut *out);

// ---------------------------------------------------------------- the answer

// Writes "llama, 14,768,307,200 parameters, bf16, 8,192 tokens a sequence, 8,388,608 a step, on 128 h100". Returns
// `text`.
enum { PLAN_HEAD_TEXT = 256 };
char *plan_head_text(const Planner *planner, const Config *config, char text[PLAN_HEAD_TEXT]);

// Prints the keys of the file that -o hardware.gpu replaced, if any.
void plan_print_replaced(const Config *config, FILE *file);

// Prints the expected step, the planned step, and the time and cost of a run.
void plan_print_time(const Planner *planner, const Config *config, const PlanTime *time, bool verbose, FILE *file);

// Writes the report for people: PLAN_SCREEN lines of GRID_LINE columns at most. verbose: adds all figures that they are
// based on. -1 with err.
int plan_report(const PlanAnswer *answer, bool verbose, FILE *file, Error *err);

// Prints the table of a plan for another program: what its settings change; at most `most` rows, 0: all. -1 with err.
int foreign_rows_print(const PlanAnswer *answer, int most, FILE *file, Error *err);

// Writes a simulated step of `step` seconds as a trace to the file `path`. -1 with err.
int plan_trace_write(const Schedule *schedule, const Timeline *timeline, double step, const char *path, Error *err);

// Runs the program's --plan; trace: path of the trace to write, or NULL. 0, or -1 with err.
int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err);

// Runs the program's --schedule: proves the schedule, prints it to stdout or draws it, and reports on stderr the result
// of the proof and of a simulation with the given times. 0, or -1 with err.
int schedule_command(Config *config, const Model *model, const Options *options, const Log *log, Error *err);
