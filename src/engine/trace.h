// Traces in the JSON array form of Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open: one
// process per rank with a row for F and B, a row for transfers, and its slots in use as counters; one more process
// whose row shows complete steps. Real and predicted runs are written by the same calls.
//
// Each step is written with one write and nothing is kept, so memory does not grow with the run, and the trace of a
// killed run lacks only its closing bracket, which both viewers accept.
#pragma once

#include "bpipe.h"
#include "engine.h"

enum { TRACE_ROW_COMPUTE, TRACE_ROW_TRANSFERS }; // "tid" in a rank's process

typedef struct Trace Trace;

// Checks that a trace can be written to `path`, before a long start; creates its folders but no file. -1 with err
// (EXIT_FAILED).
int trace_check(const char *path, Error *err);

// Which ranks the trace shows: process ("pid") stage * columns + column is rank ranks[pid]. ranks NULL: the stages of a
// plan, with columns 1.
typedef struct TraceWorld {
    int stages, columns;
    const int *ranks;
} TraceWorld;

// Opens a trace, replacing the file at `path`. `schedule` says how many slots each stage has. NULL with err.
Trace *trace_open(const char *path, const TraceWorld *world, const Schedule *schedule, Error *err);

// Writes one run of `schedule`, called `label` ("step 12"), which began and ended at these seconds. times[pid]: one
// entry per action of that stage's list, in seconds on one clock for all; the first `begin` of a trace is its zero. An
// A or R that took no time was only noted, because only the evictor moves bundles: it is shown as long as its E or L.
// -1 with err if the file cannot be written; later calls then do nothing.
int trace_step(Trace *trace, const char *label, const Schedule *schedule, const ActionTime *const *times, double begin,
               double end, Error *err);

// Ends the file, unless it failed before. Accepts NULL.
int trace_close(Trace *trace, Error *err);
