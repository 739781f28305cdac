// Traces in the JSON array form of Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open. Each
// rank is a process with a row for compute, a row for transfers, and counters of its slots in use. One more process has
// a row of complete steps. Real and predicted runs are written by the same calls.
//
// Each step is written with one write and nothing is kept, so memory does not grow with the run, and the trace of a
// killed run lacks only its closing bracket, which both viewers accept.
#pragma once

#include "bpipe.h"
#include "engine.h"

enum { TRACE_ROW_COMPUTE, TRACE_ROW_TRANSFERS }; // "tid" in a rank's process

typedef struct Trace Trace;

// Checks before a long start that `path` can be written; creates its folders but no file. -1 with err (EXIT_FAILED).
int trace_check(const char *path, Error *err);

// A trace's ranks: process ("pid") stage * columns + column is rank ranks[pid]. ranks NULL: a plan's stages, columns 1.
typedef struct TraceWorld {
    int stages, columns;
    const int *ranks;
} TraceWorld;

// Opens a trace, replacing the file at `path`. `schedule` says how many slots each stage has. NULL with err.
Trace *trace_open(const char *path, const TraceWorld *world, const Schedule *schedule, Error *err);

// Writes one run of `schedule` with the name `label` ("step 12"), which ran from `begin` to `end`. times[pid]: one
// entry per action of that stage's list. All times are in seconds on one clock; the first `begin` of a trace becomes
// time 0. Returns -1 with err if the file cannot be written; later calls then do nothing.
int trace_step(Trace *trace, const char *label, const Schedule *schedule, const ActionTime *const *times, double begin,
               double end, Error *err);

// Completes and closes the file, and frees the trace. Accepts NULL. Returns -1 with err if writing fails.
int trace_close(Trace *trace, Error *err);
