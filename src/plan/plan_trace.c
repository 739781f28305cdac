// The trace of a plan: one simulated step, complete, with the costs that the plan's step time comes from.
#include "plan_report.h"
#include "base/alloc.h"
#include "engine/trace.h"

#include <stdlib.h>

int plan_trace_write(const Schedule *schedule, const Timeline *timeline, double step, const char *path, Error *err) {
    TraceWorld shown = {schedule->stages, 1, NULL};
    Trace *trace = trace_open(path, &shown, schedule, err);
    if (trace == NULL) return -1;
    const ActionTime **times = xcalloc((size_t)schedule->stages, sizeof *times);
    for (int s = 0; s < schedule->stages; s++) times[s] = timeline->stage[s].times;
    int status = trace_step(trace, "step", schedule, times, 0.0, step, err);
    free(times);
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
    if (plan_costs_make(&costs, &answer->config, answer->schedule, &answer->plan, &source, err) != 0) return -1;
    Timeline *timeline = simulate_run(answer->schedule, &costs.costs, err);
    int status = timeline == NULL ? -1 : plan_trace_write(answer->schedule, timeline, answer->time.step, path, err);
    timeline_free(timeline);
    plan_costs_free(&costs);
    return status;
}
