// The output of `--plan`: for people, as JSON, as a trace; and the smallest world that holds the model.
#pragma once

#include "config/options.h"
#include "plan_answer.h"
#include "plan_world.h"

// Writes one JSON object on one line. Unknown figures are null.
int plan_write_json(const PlanAnswer *answer, FILE *file);

// Writes the report for people: about twenty lines, or with `verbose` all that they rest on. -1 with err.
int plan_report(const PlanAnswer *answer, bool verbose, FILE *file, Error *err);

// Prints, by their formulas, the cost of published schedules that this engine cannot run.
void plan_formulas_print(const PlanAnswer *answer, FILE *file);

// Writes a planned step as a trace to the file `path`. -1 with err, also if nothing is known of the device.
int plan_trace(const PlanAnswer *answer, const char *path, Error *err);

// Writes a simulated step of `step` seconds as a trace to the file `path`. -1 with err.
int plan_trace_write(const Schedule *schedule, const Timeline *timeline, double step, const char *path, Error *err);

// Runs the program's --plan; trace: where to write one, or NULL. 0, or -1 with err.
int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err);

// Runs the program's --schedule: proves the schedule, prints it to stdout or draws it, and reports on stderr the result
// of the proof and of a simulation with the given times. 0, or -1 with err.
int schedule_command(Config *config, const Model *model, const Options *options, const Log *log, Error *err);
