// --plan: gathers the answer, then writes it as a trace, as JSON, or for people.
#include "base/alloc.h"
#include "base/units.h"
#include "plan_report.h"

#include <stdlib.h>
#include <string.h>

int plan_command(const Config *config, const Model *model, bool json, const char *trace, const Log *log, Error *err) {
    alloc_keep_freed();
    PlanAnswer *answer = xmalloc(sizeof *answer);
    Config decided = *config;
    memset(answer, 0, sizeof *answer);
    int64_t p = config->parallel.pipeline, few = plan_enough_microbatches((int)p), all = config_microbatches(config);
    if (p * min_i64(few, all) > 1 << 21)
        log_status(log, "plan: simulating %lld stages; this can take ten seconds", (long long)p);
    // If the schedule was left open, the plan is of the one that a run would take.
    int status = verdict_resolve_name(&decided, model, log, err);
    if (status == 0) status = plan_answer_make(answer, &decided, model, log, err);
    if (status == 0 && trace != NULL) status = plan_trace(answer, trace, err);
    if (status == 0)
        status = json ? plan_write_json(answer, stdout) : plan_report(answer, log->level == LOG_VERBOSE, stdout, err);
    if (status == 0 && fflush(stdout) != 0)
        status = error_set(err, EXIT_FAILED, "the plan could not be written to stdout");
    plan_answer_free(answer);
    free(answer);
    return status;
}
