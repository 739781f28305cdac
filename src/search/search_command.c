// --search: checks the request, searches, and writes the answer. The number of ranks comes from --gpus or else from the
// configuration. The search may change the layout keys of the file; keys given with -o keep their values.
#include "search_command.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/grid.h"
#include "base/units.h"
#include "config/config_schema.h"
#include "plan/foreign.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Set by the SIGINT handler, which can only reach global variables.
static volatile sig_atomic_t interrupted_;

static void interrupt_(int signal) { interrupted_ = signal; }

// ---------------------------------------------------------------- the request

int search_load(Config *config, const char *path, const char *const *overrides, int override_count, Error *err) {
    Error ignored = {0};
    if (config_load_unchecked(config, path, overrides, override_count, err) != 0) return -1;
    Config given = *config;
    if (config_check(&given, &ignored) == 0) {
        *config = given;
        return 0;
    }
    RunLayout from = layout_of(config), free = space_start(&(SearchSpace){.keys = {.given = from}});
    free.name = schedule_kind_count; // auto: check accepts any chunks and slices
    free.chunks = 0;
    free.split = SPLIT_AUTO;
    free.attention = from.attention;
    free.expert = 1;
    const int64_t lists[] = {config->parallel.layers_given, config->schedule.recompute_given,
                             config->schedule.pointwise_given, config->attention.modes_given};
    for (int i = 0; i < 4; i++) free.pipeline = (int32_t)max_i64(free.pipeline, lists[i]); // as lists by stage ask
    for (int key = 0; key < LAYOUT_COUNT; key++)
        if (config->place[config_find(layout_keys[key].name) - config_keys] == CONFIG_OVERRIDE)
            layout_put(&free, key, layout_get(&from, key));
    if (free.chunks == 0 && lists[0] > free.pipeline) free.chunks = (int32_t)lists[0] / free.pipeline;
    layout_set(&free, config);
    // Whether gradients can be sharded depends on the layout: the planner leaves out layouts in which they cannot.
    int shard = config->parallel.shard_gradients;
    if (shard == SHARD_ON) config->parallel.shard_gradients = SHARD_AUTO;
    int status = config_check(config, err);
    config->parallel.shard_gradients = shard;
    return status;
}

// Gives `asked` the layout of the file, which search_load replaced if it cannot run: the answer says what to change.
static void take_given_(Config *asked, const Options *options) {
    Config given, checked;
    Error err = {0};
    int status = config_load_unchecked(&given, options->config, options->overrides, options->override_count, &err);
    checked = given;
    if (status != 0 || config_check(&checked, &err) == 0) return;
    asked->parallel = given.parallel;
    asked->schedule = given.schedule;
    asked->attention = given.attention;
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
        if (space->keys.world % product != 0 && product != parts[i].value)
            return config_error(space->keys.base, parts[i].key, err,
                                "with the other keys fixed by -o, %lld needs %lld ranks, which does not divide the "
                                "%lld ranks of the search; use another value, or remove an -o option",
                                (long long)parts[i].value, (long long)product, (long long)space->keys.world);
        if (space->keys.world % product != 0)
            return config_error(space->keys.base, parts[i].key, err,
                                "%lld does not divide the %lld ranks of the search; use a divisor, or remove the "
                                "option",
                                (long long)parts[i].value, (long long)space->keys.world);
        fixed += i < 3 || parallel->context > 1;
    }
    if (fixed < (parallel->context > 1 ? 4 : 3) || product == space->keys.world) return 0;
    return config_error(space->keys.base, "parallel.data", err,
                        "pipeline * tensor * data is %lld ranks; the search is for %lld; "
                        "remove one of the three -o options",
                        (long long)product, (long long)space->keys.world);
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

void searched_free(Searched *searched) {
    if (searched == NULL) return;
    search_free(&searched->result);
    planner_free(&searched->planner);
    free(searched);
}

// Searches the world of `ranks` GPUs (0: the configuration's ranks), for this program or the configuration's `program`.
// -1 with err; searched_free in both cases.
static int searched_make_(Searched *searched, const Config *config, const Model *model, int64_t ranks, const Log *log,
                          Error *err) {
    enum { MOST_CHUNKS = 8 };
    *searched = (Searched){.asked = *config, .base = *config};
    Config *base = &searched->base, *world = &searched->world;
    Planner *planner = &searched->planner;
    if (ranks > 0) base->hardware.device = DEVICE_CUDA;
    // The planner reads the number of ranks, and the settings that do not depend on the candidate, from its own
    // configuration.
    *world = *base;
    world->hardware.profile[0] = '\0';
    if (ranks > 0)
        world->parallel.pipeline = world->parallel.tensor = 1, world->parallel.context = 1,
        world->parallel.data = ranks;
    searched->space = space_make(base, planner, config_world(world));
    searched->space.keys.asked = &searched->asked;
    searched->space.keys.most_chunks = MOST_CHUNKS;
    if (check_fixed_(&searched->space, err) != 0) return -1;
    if (base->program != 0) foreign_fix(base->program, base, &searched->space.keys);
    if (planner_create(planner, world, model, log, err) != 0) return -1;
    // A profile made for the given configuration is used, as with --plan. Only then does the written file name it.
    if (planner_find_profile(planner, base, log, err) != 0) return -1;
    if (!planner->measured) base->hardware.profile[0] = '\0';
    if (planner->hardware.cpu) { // the file of --write has the rates that the search used, not the keys' defaults
        const Cost *cost = &planner->hardware.cost;
        base->hardware.pair_gb_s = cost->pair * 1e-9;
        base->hardware.tensor_gb_s = cost->tensor * 1e-9;
        base->hardware.network_gb_s = cost->network * 1e-9;
        base->hardware.host_gb_s = cost->host * 1e-9;
    }
    if (planner->hardware.cost.flops == 0)
        return config_error(base, "hardware.gpu", err,
                            "no performance figures for this device; use one of the names in --help-config, "
                            "or give hardware.peak_tflops and hardware.memory_gib");
    // Ctrl-C ends the search early; a second one ends the program at once.
    Progress progress = {log, clock_seconds(), false};
    SearchOptions options = {.stop = &interrupted_, .argument = &progress};
    struct sigaction action = {.sa_handler = interrupt_}, before;
    interrupted_ = 0; // the previous search may have set it
    if (isatty(STDERR_FILENO) && log->level != LOG_QUIET) options.progress = progress_;
    sigemptyset(&action.sa_mask);
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &action, &before);
    int status = search_run(&searched->result, &searched->space, &options, err);
    sigaction(SIGINT, &before, NULL);
    if (progress.shown) fputs("\r\033[K", stderr);
    if (status != 0) return -1;
    return searched->result.stopped ? 0 : robust_find(&searched->space, &searched->result, err);
}

int search_for(const Config *config, const Model *model, const char *gpus, const char *program, Searched **found,
               Searched **here, const Log *log, Error *err) {
    enum { MOST = 1 << 20 };
    *found = *here = NULL;
    long long ranks = 0;
    char *end = NULL;
    errno = 0;
    if (gpus != NULL) ranks = strtoll(gpus, &end, 10);
    if (gpus != NULL && (*end != '\0' || errno != 0 || ranks < 1 || ranks > MOST))
        return error_set(err, EXIT_USAGE, "--gpus: %s is not a number of GPUs; give one from 1 to %d", gpus, MOST);
    if (config->schedule.file[0] != '\0')
        return config_error(config, "schedule.file", err,
                            "a schedule from a file has fixed stages and microbatches, "
                            "which a search varies; remove the key");
    if (gpus != NULL && config->hardware.device == DEVICE_CPU)
        return config_error(config, "hardware.device", err,
                            "cpu contradicts --gpus; use cuda or auto, or leave --gpus out "
                            "to search for the ranks of the configuration");
    if (gpus != NULL && config->hardware.share_gpu)
        return config_error(config, "hardware.share_gpu", err,
                            "true contradicts --gpus, which gives every rank a GPU of its "
                            "own; use false");
    alloc_keep_freed();
    *found = xcalloc(1, sizeof **found);
    if (program == NULL) return searched_make_(*found, config, model, ranks, log, err);
    Config foreign = *config;
    *here = xcalloc(1, sizeof **here);
    if (foreign_take(&foreign, program, true, err) != 0) return -1;
    if (searched_make_(*found, &foreign, model, ranks, log, err) != 0) return -1;
    return searched_make_(*here, config, model, ranks, log, err);
}

int search_command(const Config *config, const Model *model, const Options *options, const Log *log, Error *err) {
    const char *write = options->write, *folder = options->write_five;
    struct stat given, there;
    char first[4096];
    // 1. Check that the output file can be written.
    int code = write != NULL ? file_check_to_write(write) : 0;
    if (code != 0) return error_set(err, EXIT_FAILED, "--write: %s: %s; name another file", write, strerror(code));
    if (write != NULL && stat(config->path, &given) == 0 && stat(write, &there) == 0 && given.st_ino == there.st_ino &&
        given.st_dev == there.st_dev)
        return error_set(err, EXIT_USAGE, "--write: %s: is the configuration given with -c; name another file", write);
    snprintf(first, sizeof first, "%s/1.yaml", folder != NULL ? folder : "");
    if (folder != NULL) code = file_check_to_write(first); // makes the folder
    if (code != 0)
        return error_set(err, EXIT_FAILED, "--write-five: %s: %s; name another folder", folder, strerror(code));
    // 2. Search and print the answer.
    Searched *found, *here;
    int status = search_for(config, model, options->gpus, options->program, &found, &here, log, err);
    if (status == 0) take_given_(&found->asked, options);
    if (status == 0)
        status = options->json ? search_write_json(found, here, stdout, err)
                               : search_report(found, here, log->level == LOG_VERBOSE, stdout, err);
    const SearchResult *result = status == 0 ? &found->result : NULL;
    bool fits = status == 0 && result->best >= 0;
    if (fits && write != NULL) status = search_write_config(&found->space, result, result->best, write, err);
    if (fits && status == 0 && folder != NULL) status = search_write_five(&found->space, result, folder, err);
    if (status == 0 && fflush(stdout) != 0)
        status = error_set(err, EXIT_FAILED, "the search could not be written to stdout");
    if (status == 0) status = result->stopped ? EXIT_STOPPED : fits ? EXIT_DONE : EXIT_FAILED;
    searched_free(found);
    searched_free(here);
    return status;
}
