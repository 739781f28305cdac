// Everything `--plan` says, gathered before anything is printed.
#ifndef PLAN_ANSWER_H
#define PLAN_ANSWER_H

#include "plan_schedules.h"
#include "verdict.h"

typedef struct PlanAnswer {
    Planner planner;
    Config config;      // with schedule.bpipe and split_backward as they were decided
    Schedule *schedule; // whole
    Plan plan;
    Plan plan_1f1b; // the same, with 1F1B and no BPipe
    PlanTime time;
    Verdict verdict;
    ScheduleTable schedules;
} PlanAnswer;

// -1 with err; plan_answer_free in both cases.
int plan_answer_make(PlanAnswer *answer, const Config *config, const Model *model, const Log *log, Error *err);
void plan_answer_free(PlanAnswer *answer);

// planner_forecast, but for what the verdict has asked already: a long schedule takes a while to simulate.
int plan_answer_forecast(const PlanAnswer *answer, Variant variant, Forecast *forecast, Error *err);

// Whether stage s fits, beside the reserve, as the answer's plan has it.
bool plan_answer_fits(const PlanAnswer *answer, int stage);

#endif
