// The trace of a plan: one simulated step, complete, with the costs that the plan's step time comes from.
#include "plan_report.h"
#include "base/alloc.h"
#include "engine/trace.h"

#include <stdlib.h>

typedef struct Times {
    ActionTime **stage; // [stages]
    int stages;
} Times;

static void plan_trace_free_(Times *times) {
    for (int s = 0; s < times->stages; s++) free(times->stage[s]);
    free(times->stage);
}

static void plan_trace_copy_(Times *times, const Schedule *schedule, const Timeline *timeline) {
    times->stages = schedule->stages;
    times->stage = xcalloc((size_t)schedule->stages, sizeof *times->stage);
    for (int s = 0; s < schedule->stages; s++) {
        int64_t count = schedule->stage[s].count;
        times->stage[s] = xmalloc((size_t)count * sizeof *times->stage[s]);
        const StageTimeline *line = &timeline->stage[s];
        for (int64_t i = 0; i < count; i++) times->stage[s][i] = (ActionTime){line->start[i], line->end[i]};
    }
}

int plan_trace_write(const Schedule *schedule, const Timeline *timeline, double step, const char *path, Error *err) {
    TraceWorld shown = {schedule->stages, 1, NULL};
    Trace *trace = trace_open(path, &shown, schedule, err);
    if (trace == NULL) return -1;
    Times times = {0};
    plan_trace_copy_(&times, schedule, timeline);
    int status = trace_step(trace, "step", schedule, (const ActionTime *const *)times.stage, 0.0, step, err);
    plan_trace_free_(&times);
    return trace_close(trace, status == 0 ? err : NULL) == 0 ? status : -1;
}

int plan_trace(const PlanAnswer *answer, const char *path, Error *err) {
    enum { LONGEST_S = 1000000000 }; // nanoseconds of a few more no longer fit 64 bits
    if (answer->time.step > LONGEST_S)
        return error_set(err, EXIT_USAGE,
                         "--trace: a step of %.3g s, as it is planned, is longer than a trace can show",
                         answer->time.step);
    const Planner *planner = &answer->planner;
    TimeSource source = {&planner->hardware, planner->measured ? &planner->profile : NULL, false};
    PlanCosts costs;
    if (plan_costs_make(&costs, &answer->config, planner->model, answer->schedule, &answer->plan, &source, err) != 0)
        return -1;
    Timeline *timeline = simulate_run(answer->schedule, &costs.costs, err);
    int status = timeline == NULL ? -1 : plan_trace_write(answer->schedule, timeline, answer->time.step, path, err);
    timeline_free(timeline);
    plan_costs_free(&costs);
    return status;
}
