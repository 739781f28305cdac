// Chrome traces (trace.h). A step's events are collected in memory and written with one call, so that the trace of a
// killed run ends between two steps.
#include "trace.h"
#include "base/alloc.h"

#include "base/files.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ns. Device times are accurate to about a microsecond, so an action may seem to begin that much before the previous
// one ended.
enum { CLOCK_GRAIN = 2000 };

// A slot of a pool is taken (+1) or freed (-1).
typedef struct Change {
    int64_t at; // ns
    int pool;   // 0: own, 1: lent
    int by;
} Change;

struct Trace {
    char *path;
    int fd;
    bool failed; // true: a write failed, so nothing more is written
    bool begun;
    double zero;
    int stages, columns;
    FILE *text; // text to be written next
    char *bytes;
    size_t size;
    Change *changes; // changes of one rank in one run
    int64_t capacity;
};

// ---------------------------------------------------------------- the file

static int trace_file_error_(const char *path, int code, Error *err) {
    return error_set(err, EXIT_FAILED, "--trace: cannot write %s: %s; %s", path, file_why(code),
                     code == ENOSPC || code == EDQUOT ? "free some space there, or name a file elsewhere"
                                                      : "name a file in a folder where you may write");
}

int trace_check(const char *path, Error *err) {
    int code = file_check_to_write(path);
    return code == 0 ? 0 : trace_file_error_(path, code, err);
}

static int trace_flush_(Trace *trace, Error *err) {
    fflush(trace->text);
    if (!trace->failed && file_write_all(trace->fd, trace->bytes, (int64_t)trace->size) != 0) {
        trace->failed = true;
        return trace_file_error_(trace->path, errno, err);
    }
    rewind(trace->text);
    return 0;
}

// ---------------------------------------------------------------- events

static int64_t ns_(const Trace *trace, double seconds) { return llround((seconds - trace->zero) * 1e9); }

// Converts to microseconds, the format's unit. The three decimals are exact up to 100 days, so adjacent events never
// overlap.
static double us_(int64_t ns) { return (double)ns / 1000; }

// Writes the fields that all events begin with.
static void begin_event_(Trace *trace, const char *phase, const char *name, int pid, int row, int64_t ns) {
    fputs(trace->begun ? ",\n" : "[\n", trace->text);
    trace->begun = true;
    fprintf(trace->text, "{\"ph\":\"%s\",\"name\":", phase);
    json_write_text(trace->text, name);
    fprintf(trace->text, ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f", pid, row, us_(ns));
}

static void trace_name_(Trace *trace, const char *what, const char *key, const char *name, int pid, int row) {
    begin_event_(trace, "M", what, pid, row, 0);
    fprintf(trace->text, ",\"args\":{\"%s\":", key);
    json_write_text(trace->text, name);
    fputs("}}", trace->text);
}

static void sort_index_(Trace *trace, int pid) {
    begin_event_(trace, "M", "process_sort_index", pid, 0, 0);
    fprintf(trace->text, ",\"args\":{\"sort_index\":%d}}", pid);
}

static void write_span_(Trace *trace, const char *name, const char *category, int pid, int row, int64_t begin,
                        int64_t end) {
    begin_event_(trace, "X", name, pid, row, begin);
    fprintf(trace->text, ",\"dur\":%.3f,\"cat\":\"%s\"", us_(end - begin), category);
}

// ---------------------------------------------------------------- slots in use

// Orders changes by time. At equal times a freed slot counts before a taken one.
static int by_time_(const void *left, const void *right) {
    const Change *a = left, *b = right;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->by - b->by;
}

static void write_counters_(Trace *trace, int pid, int64_t count) {
    int in_use[2] = {0, 0}, told[2] = {-1, -1};
    qsort(trace->changes, (size_t)count, sizeof *trace->changes, by_time_);
    for (int64_t i = 0; i < count; i++) {
        const Change *change = &trace->changes[i];
        in_use[change->pool] += change->by;
        if (i + 1 < count && trace->changes[i + 1].at == change->at) continue;
        for (int pool = 0; pool < 2; pool++) {
            if (in_use[pool] == told[pool]) continue;
            begin_event_(trace, "C", pool == 0 ? "own slots" : "lent slots", pid, 0, change->at);
            fprintf(trace->text, ",\"args\":{\"in use\":%d}}", told[pool] = in_use[pool]);
        }
    }
}

// ---------------------------------------------------------------- a run of a schedule

static void trace_rank_(Trace *trace, const char *label, const Schedule *schedule, const ActionTime *times, int pid) {
    const StageSchedule *list = &schedule->stage[pid / trace->columns];
    int64_t changes = 0, row_end[2] = {INT64_MIN, INT64_MIN};
    if (2 * list->count > trace->capacity) {
        trace->capacity = 2 * list->count;
        trace->changes = xrealloc(trace->changes, (size_t)trace->capacity * sizeof *trace->changes);
    }
    for (int64_t i = 0; i < list->count; i++) {
        const Action *action = &list->actions[i];
        bool compute = action_computes(action->kind);
        int row = compute ? TRACE_ROW_COMPUTE : TRACE_ROW_TRANSFERS;
        int64_t begin = ns_(trace, times[i].begin), end = ns_(trace, times[i].end);
        char name[ACTION_TEXT];
        if (begin < row_end[row] && begin + CLOCK_GRAIN >= row_end[row]) begin = row_end[row];
        if (end < begin) end = begin;
        row_end[row] = end;
        write_span_(trace, action_text(schedule, *action, name), compute ? "compute" : "transfer", pid, row, begin,
                    end);
        fprintf(trace->text, ",\"args\":{\"of\":");
        json_write_text(trace->text, label);
        fprintf(trace->text, ",\"microbatch\":%d", action->microbatch);
        if (schedule->chunks > 1) fprintf(trace->text, ",\"chunk\":%d", action->chunk);
        fputs("}}", trace->text);
        // By the rules of bpipe.h F and L take an own slot, B, W and E free it; A takes a lent slot, R frees it.
        ActionKind kind = action->kind;
        int pool = kind == ACTION_ACCEPT || kind == ACTION_RETURN;
        if (kind == ACTION_FORWARD || kind == ACTION_LOAD || kind == ACTION_ACCEPT)
            trace->changes[changes++] = (Change){begin, pool, 1};
        if (action_frees(kind, schedule->forward_only) || kind == ACTION_EVICT || kind == ACTION_RETURN)
            trace->changes[changes++] = (Change){end, pool, -1};
    }
    write_counters_(trace, pid, changes);
}

int trace_step(Trace *trace, const char *label, const Schedule *schedule, const ActionTime *const *times, double begin,
               double end, Error *err) {
    if (trace->failed) return 0;
    if (isnan(trace->zero)) trace->zero = begin;
    int processes = trace->stages * trace->columns;
    write_span_(trace, label, "step", processes, 0, ns_(trace, begin), ns_(trace, end));
    fputc('}', trace->text);
    for (int pid = 0; pid < processes; pid++) trace_rank_(trace, label, schedule, times[pid], pid);
    return trace_flush_(trace, err);
}

// ---------------------------------------------------------------- life

static void name_processes_(Trace *trace, const TraceWorld *world, const Schedule *schedule) {
    int processes = world->stages * world->columns;
    for (int pid = 0; pid < processes; pid++) {
        char name[64], slots[64];
        int stage = pid / world->columns;
        const StageSchedule *list = &schedule->stage[stage];
        if (world->ranks == NULL) snprintf(name, sizeof name, "stage %d (planned)", stage);
        else snprintf(name, sizeof name, "stage %d (rank %d)", stage, world->ranks[pid]);
        snprintf(slots, sizeof slots, "slots: %d own, %d lent", list->own_slots, list->lent_slots);
        trace_name_(trace, "process_name", "name", name, pid, 0);
        trace_name_(trace, "process_labels", "labels", slots, pid, 0);
        sort_index_(trace, pid);
        trace_name_(trace, "thread_name", "name", "compute", pid, TRACE_ROW_COMPUTE);
        trace_name_(trace, "thread_name", "name", "transfers", pid, TRACE_ROW_TRANSFERS);
    }
    trace_name_(trace, "process_name", "name", "steps", processes, 0);
    sort_index_(trace, processes);
}

Trace *trace_open(const char *path, const TraceWorld *world, const Schedule *schedule, Error *err) {
    Trace *trace = xcalloc(1, sizeof *trace);
    *trace = (Trace){.fd = -1, .zero = NAN, .stages = world->stages, .columns = world->columns};
    trace->path = xstrdup(path);
    trace->text = xmemstream(&trace->bytes, &trace->size);
    if (file_make_folders(path) == 0) trace->fd = file_open_to_write(path, O_TRUNC);
    name_processes_(trace, world, schedule);
    int status = trace->fd < 0 ? trace_file_error_(path, errno, err) : trace_flush_(trace, err);
    if (status == 0) return trace;
    trace->failed = true;
    trace_close(trace, NULL);
    return NULL;
}

int trace_close(Trace *trace, Error *err) {
    int status = 0;
    if (trace == NULL) return 0;
    if (!trace->failed) {
        fputs("\n]\n", trace->text);
        status = trace_flush_(trace, err);
    }
    if (trace->fd >= 0 && close(trace->fd) != 0 && status == 0 && !trace->failed)
        status = trace_file_error_(trace->path, errno, err);
    fclose(trace->text);
    free_all(trace->bytes, trace->path, trace->changes, trace);
    return status;
}
