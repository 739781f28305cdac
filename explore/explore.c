// Answers the page's questions by one function. Options, configurations, planner, search, schedules and proof are the
// program's own sources, compiled to WebAssembly. explore() runs a command line of the program and leaves its answer in
// the files stdout and stderr, which the page reads. JavaScript repeats no planning.
//
//   explore -c configs/llama65b.yaml -o hardware.gpu=h100 --plan --json
//   explore --check list.txt F=1,I=1,W=1            proves a schedule, and simulates its step as trace.json
#include "base/alloc.h"
#include "base/files.h"
#include "config/options.h"
#include "device/device.h"
#include "plan/plan_report.h"
#include "schedule/study.h"
#include "search/search_command.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

extern const Model llama_model, gpt_model;

// ---- what a browser lacks -------------------------------------------------------------------------------------------

Backend *backend_cpu_create(int precision, int threads, Error *err) {
    (void)precision, (void)threads;
    error_set(err, EXIT_USAGE, "this page plans for GPUs; choose one, or set hardware.gpu");
    return NULL;
}

double backend_cpu_measure_peak(int precision, int threads) {
    (void)precision, (void)threads;
    return 0;
}

bool cuda_driver_present(void) { return false; }

const CudaLibrary *cuda_load(char why[256]) {
    snprintf(why, 256, "a page has no GPU");
    return NULL;
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    (void)from_folder, (void)from, (void)to_folder, (void)to, (void)flags;
    errno = ENOSYS;
    return -1;
}

long syscall(long number, ...) {
    (void)number;
    errno = ENOSYS;
    return -1;
}

int prctl(int option, ...) {
    (void)option;
    errno = ENOSYS;
    return -1;
}

int memfd_create(const char *name, unsigned flags) {
    (void)name, (void)flags;
    errno = ENOSYS;
    return -1;
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    (void)process, (void)size, (void)set;
    errno = ENOSYS;
    return -1;
}

int __sched_cpucount(size_t size, const cpu_set_t *set) { // NOLINT: the name that the C library calls
    (void)size, (void)set;
    return 1;
}

// ---- questions ------------------------------------------------------------------------------------------------------

static int question_(const Options *options, Config *config, const Log *log, Error *err) {
    config_plan_device(config);
    bool gpt = strcmp(family_words[config->model.family], gpt_model.family) == 0;
    const Model *model = gpt ? &gpt_model : &llama_model;
    if (options->search) return search_command(config, model, options, log, err);
    if (options->schedule) return schedule_command(config, model, options, log, err);
    if (options->plan) return plan_command(config, model, options->json, options->trace, log, err);
    return error_set(err, EXIT_USAGE, "give one of --plan, --search and --schedule");
}

static int check_text_(const char *path, const char *given, const Log *log, Error *err) {
    StudyTimes times;
    char found[256];
    int64_t size = 0;
    char *text = study_times_parse(given, &times, err) == 0 ? file_read_whole(path, 16 << 20, &size, err) : NULL;
    Schedule *schedule = text == NULL ? NULL : schedule_parse(text, err);
    int status = schedule == NULL ? -1 : schedule_check(schedule, err);
    Timeline *timeline = status == 0 ? study_run(schedule, &times, err) : NULL;
    status = timeline == NULL ? -1 : plan_trace_write(schedule, timeline, timeline->makespan, "trace.json", err);
    if (status == 0) study_say(schedule, timeline, &times, found, sizeof found);
    if (status == 0) log_status(log, "proved: %s", found);
    timeline_free(timeline);
    schedule_free(schedule);
    free(text);
    return status;
}

int explore(int argc, char **argv);
int explore(int argc, char **argv) {
    Error err = {0};
    Log log = {"explore", -1, -1, LOG_NORMAL};
    Options options = {0};
    int status;
    if (argc == 4 && strcmp(argv[1], "--check") == 0) {
        status = check_text_(argv[2], argv[3], &log, &err);
    } else {
        Config *config = xcalloc(1, sizeof *config);
        status = options_parse(&options, argc, argv, &err);
        if (status == 0 && options.help_config) config_help(stdout);
        else if (status == 0)
            status = (options.search ? search_load : config_load)(config, options.config, options.overrides,
                                                                  options.override_count, &err);
        if (status == 0 && !options.help_config) status = question_(&options, config, &log, &err);
        free(config);
    }
    if (status < 0) {
        log_line(&log, "%s", err.text);
        status = err.code;
    }
    fflush(stdout);
    options_free(&options);
    return status;
}
