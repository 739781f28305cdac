// What `--plan` writes: for people, as JSON, as a trace; and the smallest world that holds the model.
#ifndef PLAN_REPORT_H
#define PLAN_REPORT_H

#include "plan_answer.h"

// Writes one JSON object on one line. Unknown figures are null.
int plan_write_json(const PlanAnswer *answer, FILE *file);

// Writes the report for people. -1 with err.
int plan_report(const PlanAnswer *answer, FILE *file, Error *err);

// Prints what published schedules that this engine cannot run would take, by their formulas.
void plan_formulas_print(const PlanAnswer *answer, FILE *file);

// The fewest ranks on which this model fits at micro-batch size 1, by number of stages and tensor ranks; 0: none found.
// -1 with err.
typedef struct SmallestWorld {
    int64_t ranks, pipeline, tensor;
    bool bpipe;
} SmallestWorld;
int plan_smallest_world(const Planner *planner, SmallestWorld *world, Error *err);

// Writes what will run when, as a trace of one step, to the file `path`. -1 with err, also if nothing is known of the
// device.
int plan_trace(const PlanAnswer *answer, const char *path, Error *err);

// Runs the program's --plan; trace: where to write one, or NULL. 0, or -1 with err.
int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err);

#endif
