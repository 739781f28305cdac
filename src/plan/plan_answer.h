// Everything `--plan` says, gathered before anything is printed.
#pragma once

#include "plan_schedules.h"
#include "verdict.h"

typedef struct PlanAnswer {
    Planner planner;
    Config config;            // with schedule.bpipe and split_backward resolved
    const Schedule *schedule; // complete, not an extract
    ScheduleLoan loan;        // its owner
    Plan plan;
    Plan plan_1f1b; // the same, with 1F1B and no BPipe
    PlanTime time;
    Verdict verdict;
    ScheduleTable schedules;
} PlanAnswer;

// Gathers the answer. -1 with err; plan_answer_free in both cases.
int plan_answer_make(PlanAnswer *answer, const Config *config, const Model *model, const Log *log, Error *err);
void plan_answer_free(PlanAnswer *answer);

// Forecasts a micro-batch size, from the verdict's figures if it has them: a long schedule takes a while to simulate.
int plan_answer_forecast(const PlanAnswer *answer, int64_t micro_batch, PlanWay way, Forecast *forecast, Error *err);

// Returns whether stage s fits with the reserve, by the answer's plan.
bool plan_answer_holds(const PlanAnswer *answer, int64_t bytes);
