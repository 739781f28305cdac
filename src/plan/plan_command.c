// --plan: gathers the answer, then writes it as JSON or for people, and with --trace also as a trace. The trace is one
// complete simulated step, with the costs of the plan's step time.
#include "base/alloc.h"
#include "base/units.h"
#include "engine/trace.h"
#include "plan_report.h"

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

static int plan_trace_(const PlanAnswer *answer, const char *path, Error *err) {
    enum { LONGEST_S = 1000000000 }; // seconds; nanoseconds in 64 bits overflow at 9.2e9 s
    if (answer->time.step > LONGEST_S)
        return error_set(err, EXIT_USAGE, "--trace: the planned step of %.3g s is longer than a trace can show",
                         answer->time.step);
    const Planner *planner = &answer->planner;
    TimeSource source = planner_source(planner);
    PlanCosts costs;
    if (plan_costs_make(&costs, &answer->config, answer->schedule, &answer->plan, &source, err) != 0) return -1;
    Timeline *timeline = simulate_run(answer->schedule, &costs.costs, err);
    int status = timeline == NULL ? -1 : plan_trace_write(answer->schedule, timeline, answer->time.step, path, err);
    timeline_free(timeline);
    plan_costs_free(&costs);
    return status;
}

int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err) {
    alloc_keep_freed();
    PlanAnswer *answer = xcalloc(1, sizeof *answer);
    Config decided = *config;
    int64_t p = config->parallel.pipeline, few = plan_enough_microbatches((int)p), all = config_microbatches(config);
    if (p * min_i64(few, all) > 1 << 21)
        log_status(log, "plan: simulating %lld stages; this can take ten seconds", (long long)p);
    // If schedule.name is auto, the plan uses the schedule that a run would choose.
    int status = verdict_resolve_name(&decided, model, log, err);
    if (status == 0) status = plan_answer_make(answer, &decided, model, log, err);
    if (status == 0 && trace != NULL) status = plan_trace_(answer, trace, err);
    if (status == 0)
        status = json ? plan_write_json(answer, stdout) : plan_report(answer, log->level == LOG_VERBOSE, stdout, err);
    if (status == 0 && fflush(stdout) != 0) status = error_set(err, EXIT_FAILED, "cannot write the plan to stdout");
    plan_answer_free(answer);
    free(answer);
    return status;
}
