// --search: checks the request, searches, and writes the answer. The number of ranks comes from --gpus or else from the
// configuration. The search may change the layout keys of the file; keys given with -o keep their values.
#include "search_command.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/grid.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Set by the SIGINT handler, which can only reach global variables.
static volatile sig_atomic_t interrupted_;

static void interrupt_(int signal) { interrupted_ = signal; }

// ---------------------------------------------------------------- the request

static int read_gpus_(const char *text, int64_t *gpus, Error *err) {
    enum { MOST = 1 << 20 };
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*end == '\0' && errno == 0 && value >= 1 && value <= MOST) {
        *gpus = value;
        return 0;
    }
    return error_set(err, EXIT_USAGE, "--gpus: %s is not a number of GPUs; give one from 1 to %d", text, MOST);
}

// Reports that `product` does not divide the ranks of the search. product: `value`, which -o fixes for `key`, times the
// fixed values of the keys before it.
static int contradicts_(const SearchSpace *space, const char *key, int64_t value, int64_t product, Error *err) {
    if (product != value)
        return config_error(space->keys.base, key, err,
                            "with the other keys fixed by -o, %lld needs %lld ranks, which does not divide the %lld "
                            "ranks of the search; use another value, or remove an -o option",
                            (long long)value, (long long)product, (long long)space->keys.world);
    return config_error(space->keys.base, key, err,
                        "%lld does not divide the %lld ranks of the search; use a divisor, or remove the option",
                        (long long)value, (long long)space->keys.world);
}

// Checks that the product of the sizes fixed with -o divides the ranks of the search, and equals them if all sizes are
// fixed.
static int check_fixed_(const SearchSpace *space, Error *err) {
    const ParallelConfig *parallel = &space->keys.base->parallel;
    const struct {
        const char *key;
        LayoutMask bit;
        int64_t value;
    } parts[] = {{"parallel.tensor", LAYOUT_BIT(tensor), parallel->tensor},
                 {"parallel.pipeline", LAYOUT_BIT(pipeline), parallel->pipeline},
                 {"parallel.data", LAYOUT_BIT(data), parallel->data},
                 {"parallel.context", LAYOUT_BIT(context), parallel->context}};
    int64_t product = 1, fixed = 0;
    for (int i = 0; i < 4; i++) {
        if (!space_fixes(space, parts[i].bit)) continue;
        product *= parts[i].value;
        if (space->keys.world % product != 0) return contradicts_(space, parts[i].key, parts[i].value, product, err);
        fixed += i < 3 || parallel->context > 1;
    }
    if (fixed < (parallel->context > 1 ? 4 : 3) || product == space->keys.world) return 0;
    return config_error(space->keys.base, "parallel.data", err,
                        "pipeline * tensor * data is %lld ranks; the search is for %lld; "
                        "remove one of the three -o options",
                        (long long)product, (long long)space->keys.world);
}

static int check_keys_(const Config *config, bool gpus, Error *err) {
    if (config->schedule.file[0] != '\0')
        return config_error(config, "schedule.file", err,
                            "a schedule from a file has fixed stages and microbatches, "
                            "which a search varies; remove the key");
    if (gpus && config->hardware.device == DEVICE_CPU)
        return config_error(config, "hardware.device", err,
                            "cpu contradicts --gpus; use cuda or auto, or leave --gpus out "
                            "to search for the ranks of the configuration");
    if (gpus && config->hardware.share_gpu)
        return config_error(config, "hardware.share_gpu", err,
                            "true contradicts --gpus, which gives every rank a GPU of its "
                            "own; use false");
    return 0;
}

// Sets the rates in `base` to the planner's if it plans for CPUs, because these differ from the keys' defaults. So the
// file of --write has the rates that the search used.
static void name_rates_(const Planner *planner, Config *base) {
    HardwareConfig *hardware = &base->hardware;
    const Cost *cost = &planner->hardware.cost;
    if (!planner->hardware.cpu) return;
    hardware->pair_gb_s = cost->pair * 1e-9;
    hardware->tensor_gb_s = cost->tensor * 1e-9;
    hardware->network_gb_s = cost->network * 1e-9;
    hardware->host_gb_s = cost->host * 1e-9;
}

static int check_write_(const Config *config, const char *path, Error *err) {
    struct stat given, there;
    int code = file_check_to_write(path);
    if (code != 0) return error_set(err, EXIT_FAILED, "--write: %s: %s; name another file", path, strerror(code));
    if (stat(config->path, &given) == 0 && stat(path, &there) == 0 && given.st_ino == there.st_ino &&
        given.st_dev == there.st_dev)
        return error_set(err, EXIT_USAGE, "--write: %s: is the configuration given with -c; name another file", path);
    return 0;
}

// ---------------------------------------------------------------- progress

typedef struct Progress {
    const Log *log;
    double said; // time of the last progress line
    bool shown;
} Progress;

static void progress_(void *argument, const SearchResult *result, double bound) {
    Progress *progress = argument;
    char best[32] = "nothing fits", least[32];
    double now = clock_seconds();
    if (now - progress->said < 0.25) return;
    double step = 0;
    for (int64_t i = 0; i < result->found.count; i++) {
        double own = result->found.items[i].forecast.time.step;
        if (step == 0 || own < step) step = own;
    }
    if (step > 0) grid_seconds(step, best);
    progress->said = now;
    progress->shown = true;
    fprintf(stderr, "\r\033[K%s: searched %lld configurations in %.0f s; best so far: %s; lower bound: %s",
            progress->log->program, (long long)result->evaluated, result->seconds, best, grid_seconds(bound, least));
    fflush(stderr);
}

// ---------------------------------------------------------------- the command

static int run_(const SearchSpace *space, SearchResult *result, const Log *log, Error *err) {
    Progress progress = {log, clock_seconds(), false};
    interrupted_ = 0; // the previous search may have set it
    SearchOptions options = {.stop = &interrupted_, .argument = &progress};
    if (isatty(STDERR_FILENO) && log->level != LOG_QUIET) options.progress = progress_;
    struct sigaction action = {.sa_handler = interrupt_}, before;
    sigemptyset(&action.sa_mask);
    action.sa_flags = (int)SA_RESETHAND; // a second Ctrl-C ends the program at once
    sigaction(SIGINT, &action, &before);
    int status = search_run(result, space, &options, err);
    sigaction(SIGINT, &before, NULL);
    if (progress.shown) fputs("\r\033[K", stderr);
    return status;
}

int search_for(const Config *config, const Model *model, const char *gpus, SearchTake *take, void *argument,
               const Log *log, Error *err) {
    int64_t ranks = 0;
    if (gpus != NULL && read_gpus_(gpus, &ranks, err) != 0) return -1;
    if (check_keys_(config, gpus != NULL, err) != 0) return -1;
    alloc_keep_freed();
    Planner planner;
    SearchResult result = {0};
    Config base = *config;
    if (ranks > 0) base.hardware.device = DEVICE_CUDA;
    // The planner reads the number of ranks, and the settings that do not depend on the candidate, from its own
    // configuration.
    Config world = base;
    world.hardware.profile[0] = '\0';
    if (ranks > 0)
        world.parallel.pipeline = world.parallel.tensor = 1, world.parallel.context = 1, world.parallel.data = ranks;
    SearchSpace space = space_make(&base, &planner, config_world(&world));
    int code = check_fixed_(&space, err);
    if (code == 0) {
        code = planner_create(&planner, &world, model, log, err);
        // A profile made for the given configuration is used, as with --plan. Only in this case the written file names
        // the profile.
        if (code == 0) code = planner_find_profile(&planner, &base, log, err);
        if (!planner.measured) base.hardware.profile[0] = '\0';
        if (code == 0) name_rates_(&planner, &base);
        if (code == 0 && planner.hardware.cost.flops == 0)
            code = config_error(&base, "hardware.gpu", err,
                                "no performance figures for this device; use one of the names in --help-config, "
                                "or give hardware.peak_tflops and hardware.memory_gib");
        if (code == 0) code = run_(&space, &result, log, err);
        if (code == 0 && !result.stopped) code = robust_find(&space, &result, err);
        if (code == 0) code = take(argument, &space, &result, err);
        search_free(&result);
        planner_free(&planner);
    }
    return code;
}

typedef struct Answer {
    bool json, verbose;
    const char *write;
} Answer;

static int answer_search_(void *argument, const SearchSpace *space, SearchResult *result, Error *err) {
    const Answer *answer = argument;
    int status = answer->json ? search_write_json(space, result, stdout, err)
                              : search_report(space, result, answer->verbose, stdout, err);
    if (status == 0 && answer->write != NULL && result->best >= 0)
        status = search_write_config(space, result, answer->write, err);
    if (status == 0 && fflush(stdout) != 0)
        status = error_set(err, EXIT_FAILED, "the search could not be written to stdout");
    if (status != 0) return -1;
    return result->stopped ? EXIT_STOPPED : result->best >= 0 ? EXIT_DONE : EXIT_FAILED;
}

int search_command(const Config *config, const Model *model, const char *gpus, bool json, const char *write,
                   const Log *log, Error *err) {
    Answer answer = {json, log->level == LOG_VERBOSE, write};
    if (write != NULL && check_write_(config, write, err) != 0) return -1;
    return search_for(config, model, gpus, answer_search_, &answer, log, err);
}
