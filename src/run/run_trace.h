// The trace of a run: after each step the times of all ranks' actions travel to rank 0, which knows everybody's list and writes them.
#ifndef RUN_TRACE_H
#define RUN_TRACE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RunTrace RunTrace;

// Collective; `run` has been created. path NULL: no trace, and run->trace stays NULL. -1 with err.
int run_trace_open(Run *run, const char *path, Error *err);

// Collective. What engine_run said of `schedule`, which `label` began at `begin` and ended now, on this host's clock. Does nothing
// without a trace. A file that cannot be written any more is told to the log once, and training goes on. -1 with err only where ranks
// cannot be reached.
int run_trace_step(Run *run, const char *label, const Schedule *schedule, const EngineRun *pipeline, double begin,
                   Error *err);

// Ends the file, also of a run that failed.
void run_trace_close(Run *run);

#ifdef __cplusplus
}
#endif

#endif
