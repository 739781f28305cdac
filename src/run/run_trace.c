// Writes the file of --trace (run.h).
#include "run.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"

#include "engine/trace.h"

#include <sys/stat.h>

typedef struct RunTrace {
    int64_t capacity;         // actions of the longest list
    ActionTime *mine;         // [capacity]
    ActionTime *all;          // [world][capacity], on rank 0
    int *ranks;               // [world] rank of each process of the trace
    const ActionTime **times; // [world] times of each process, inside `all`
    Trace *trace;             // on rank 0; else NULL
} RunTrace;

static int64_t longest_(const Schedule *schedule) {
    int64_t longest = 0;
    for (int s = 0; s < schedule->stages; s++)
        if (schedule->stage[s].count > longest) longest = schedule->stage[s].count;
    return longest;
}

int run_trace_open(Run *run, const char *path, Error *err) {
    if (path == NULL) return 0;
    const ParallelConfig *parallel = &run->config->parallel;
    RunTrace *trace = run->trace = xcalloc(1, sizeof *trace);
    int world = world_size(run->world), writes = world_rank(run->world) == 0;
    trace->capacity = max_i64(longest_(run->schedule), longest_(run->validation));
    trace->mine = xcalloc((size_t)trace->capacity, sizeof *trace->mine);
    trace->all = xcalloc(writes ? (size_t)(trace->capacity * world) : 1, sizeof *trace->all);
    trace->ranks = xcalloc((size_t)world, sizeof *trace->ranks);
    trace->times = xcalloc((size_t)world, sizeof *trace->times);
    if (!writes) return 0;
    // One process of the trace per rank; the ranks of a stage are consecutive, whatever the placement.
    int t = (int)parallel->tensor, columns = t * (int)config_replicas(run->config);
    TraceWorld shown = {(int)parallel->pipeline, columns, trace->ranks};
    for (int pid = 0; pid < shown.stages * columns; pid++) {
        Coordinates at = {.replica = pid % columns / t, .stage = pid / columns, .tensor = pid % t};
        trace->ranks[pid] = topology_rank(parallel, at);
        trace->times[pid] = trace->all + trace->ranks[pid] * trace->capacity;
    }
    // Refuse the file of log.metrics, which is already open: the trace would replace the metrics.
    struct stat there;
    if (same_file(run->config->log.metrics, path) && stat(path, &there) == 0 && S_ISREG(there.st_mode))
        return error_set(err, EXIT_USAGE, "--trace %s: log.metrics is the same file; name another one", path);
    trace->trace = trace_open(path, &shown, run->schedule, err);
    return trace->trace == NULL ? -1 : 0;
}

int run_trace_step(Run *run, const char *label, const Schedule *schedule, const EngineRun *pipeline, double begin,
                   Error *err) {
    RunTrace *trace = run->trace;
    if (trace == NULL) return 0;
    double offset = world_place(run->world)->clock_offset, end = clock_seconds();
    for (int64_t i = 0; i < pipeline->count; i++)
        trace->mine[i] = (ActionTime){pipeline->times[i].begin + offset, pipeline->times[i].end + offset};
    if (world_gather(run->world, trace->all, trace->mine, trace->capacity * (int64_t)sizeof *trace->mine, err) != 0)
        return -1;
    Error failure = {0};
    if (trace->trace != NULL &&
        trace_step(trace->trace, label, schedule, trace->times, begin + offset, end + offset, &failure) != 0)
        log_line(run->log, "%s; training continues without a trace", failure.text);
    return 0;
}

void run_trace_close(Run *run) {
    RunTrace *trace = run->trace;
    if (trace == NULL) return;
    Error failure = {0};
    if (trace_close(trace->trace, &failure) != 0) log_line(run->log, "%s", failure.text);
    free_all(trace->mine, trace->all, trace->ranks, trace->times, trace);
    run->trace = NULL;
}
