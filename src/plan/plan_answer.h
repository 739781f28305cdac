// Everything `--plan` says, gathered before anything is printed.
#ifndef PLAN_ANSWER_H
#define PLAN_ANSWER_H

#include "verdict.h"

typedef struct PlanAnswer {
    Planner planner;
    Config config;      // with schedule.bpipe as the verdict resolved it
    Schedule *schedule; // whole
    Plan plan;
    Plan plan_1f1b; // the same, with 1F1B and no BPipe
    PlanTime time;
    Verdict verdict;
} PlanAnswer;

// -1 with err; plan_answer_free in both cases.
int plan_answer_make(PlanAnswer *answer, const Config *config, const Model *model, const Log *log, Error *err);
void plan_answer_free(PlanAnswer *answer);

// planner_forecast, but for what the verdict has asked already: a long schedule takes a while to simulate.
int plan_answer_forecast(const PlanAnswer *answer, Variant variant, Forecast *forecast, Error *err);

// Whether stage s fits, beside the reserve, as the answer's plan has it.
bool plan_answer_fits(const PlanAnswer *answer, int stage);

// One JSON object on one line. Figures that nothing is known of are null.
int plan_write_json(const PlanAnswer *answer, FILE *file);

// For people. -1 with err.
int plan_report(const PlanAnswer *answer, FILE *file, Error *err);

// What else would save memory, with its numbers for this configuration; by formula where it cannot be run here.
int plan_print_rivals(const PlanAnswer *answer, FILE *file, Error *err);

// Fewest ranks on which this model fits at micro-batch size 1, by number of stages and tensor ranks; 0: none found. -1 with err.
typedef struct SmallestWorld {
    int64_t ranks, pipeline, tensor;
    bool bpipe;
} SmallestWorld;
int plan_smallest_world(const Planner *planner, SmallestWorld *world, Error *err);

// What will run when, as a trace of one step in the file `path`. -1 with err, also where nothing is known of the device.
int plan_trace(const PlanAnswer *answer, const char *path, Error *err);

// The program's --plan; trace: where to write one, or NULL. 0, or -1 with err.
int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err);

#endif
