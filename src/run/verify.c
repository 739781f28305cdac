// --verify: the parent starts the program once for each way of running, with a file for the record, and compares the
// records. Ranks that a launcher started run two ways, one after another, in the same processes.
#include "verify.h"
#include "base/alloc.h"
#include "base/units.h"

#include "device/device.h"
#include "launch/launch.h"
#include "record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Environment variable of one run's ranks: the path of its record.
#define RECORD_VARIABLE "TRAINER_RECORD"

enum { MOST_STEPS = 100000, WAYS = 3, FEW_STAGES = 4 };

// Reads the number after --verify.
static int steps_(const Options *options, int64_t *steps, Error *err) {
    char *end;
    *steps = strtoll(options->verify, &end, 10);
    if (*end == '\0' && *steps >= 1 && *steps <= MOST_STEPS) return 0;
    return error_set(err, EXIT_USAGE, "--verify %.40s: give a number of steps from 1 to %d", options->verify,
                     MOST_STEPS);
}

// Switches off a run's files, and everything that it does in addition to training.
static void reduce_(Config *config) {
    config->checkpoint.dir[0] = config->log.metrics[0] = '\0';
    config->data.val[0] = config->data.hellaswag[0] = '\0';
    config->checkpoint.every = config->data.val_every = config->data.hellaswag_every = config->sample.every = 0;
}

// --- one way to run

typedef struct Way {
    char name[64];
    int64_t stages;
    int bpipe; // BpipeMode
    bool ran;
    Record record;
} Way;

// Writes "1 stage", "4 stages, BPipe", "4 stages, gis, no BPipe": the schedule is named unless it is 1F1B.
static void name_(Way *way, const Config *given, int64_t stages, int bpipe) {
    bool file = given->schedule.file[0] != '\0';
    const char *name = file ? "schedule.file" : config_schedule_kind(given)->name;
    bool said = stages > 1 && (file || strcmp(name, "1f1b") != 0);
    way->stages = stages;
    way->bpipe = bpipe;
    snprintf(way->name, sizeof way->name, "%" PRId64 " stage%s%s%s%s", stages, stages == 1 ? "" : "s", said ? ", " : "",
             said ? name : "",
             stages == 1         ? ""
             : bpipe == BPIPE_ON ? ", BPipe"
                                 : ", no BPipe");
}

// --- comparing

// Compares every completed way with the first one, and prints the result. Returns the exit code, or -1 with err.
static int compare_ways_(const Way ways[WAYS], const Model *model, const Config *config, Error *err) {
    const Way *first = NULL;
    TensorTable table = model_table(model, &config->model);
    int differing = 0, ran = 0, tensors = 0;
    for (int64_t i = 0; i < table.count; i++) tensors += table.specs[i].tied_to < 0;
    for (const Way *way = ways; way < ways + WAYS; way++) {
        char text[256];
        if (!way->ran) continue;
        ran++;
        if (first == NULL) {
            first = way;
            continue;
        }
        bool differs = record_compare(&first->record, &way->record, &table, text, sizeof text) != 0;
        differing += differs;
        printf("%s and %s: %s%s\n", first->name, way->name, differs ? "differ from " : "the same bits",
               differs ? text : "");
    }
    table_free(&table);
    if (ran < 2)
        return error_set(err, EXIT_FAILED,
                         "--verify: fewer than two ways can be run, so nothing was compared; the lines above say why");
    const Record *record = &first->record;
    if (differing == 0)
        printf("verified: %d runs agree in %" PRId64 " step%s from step %" PRId64
               ", each in loss, norm, and the gradients and updated weights of %d tensors\n",
               ran, record->steps, record->steps == 1 ? "" : "s", record->first, tensors);
    if (fflush(stdout) != 0 || ferror(stdout))
        return error_set(err, EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
    return differing == 0 ? EXIT_DONE : EXIT_FAILED;
}

// --- in a rank

// Trains the recorded steps once. Only the record is kept; memory and groups are gone before the next run starts.
static int run_way_(Record *record, const Config *config, const Model *model, const Options *options, World *world,
                    StatusPage *status_page, Log *log, Error *err) {
    Run run = {0};
    RunAsk ask = {.resume = options->resume};
    int64_t steps;
    int status = steps_(options, &steps, err);
    if (status == 0) status = run_create(&run, config, model, &ask, world, status_page, log, err);
    if (status == 0) {
        metrics_close(run.metrics); // several runs follow, so step lines are not printed
        run.metrics = NULL;
        status = recorder_create(&run, steps, err);
    }
    if (status == 0) status = run_train(&run, err);
    if (status == 0) *record = recorder_take(run.recorder);
    run.succeeded = status == 0;
    status_page_set_action(status_page, "leaving");
    run_destroy(&run);
    return status;
}

int verify_as_rank(const Config *given, const Model *model, const Options *options, World *world,
                   StatusPage *status_page, Log *log, Error *err) {
    const char *path = getenv(RECORD_VARIABLE);
    Config config = *given;
    Way ways[WAYS] = {0};
    int64_t stages = given->parallel.pipeline;
    int status = 0, code = EXIT_DONE;
    log->level = LOG_QUIET;
    reduce_(&config);
    if (path != NULL) { // one way, whose record the parent compares
        status = run_way_(&ways[0].record, &config, model, options, world, status_page, log, err);
        if (status == 0 && world_rank(world) == 0) status = record_write(&ways[0].record, path, err);
        record_free(&ways[0].record);
        return status == 0 ? EXIT_DONE : -1;
    }
    // The ways that this number of ranks allows, one after another.
    bool pairs = stages > 1 && plan_can_balance(given);
    for (int i = 0; status == 0 && i < 2; i++) {
        name_(&ways[i], given, stages, i == 1 && pairs ? BPIPE_ON : BPIPE_OFF);
        if (i == 1 && !pairs) strcat(ways[i].name, ", once more");
        config.schedule.bpipe = ways[i].bpipe;
        config.schedule.slots = given->schedule.slots;
        if (config.schedule.slots < config_min_slots(&config)) config.schedule.slots = 0;
        Log all = log_of_all(log); // omits the stage that run_create stored in the log
        if (world_rank(world) == 0) log_line(&all, "verify: %s", ways[i].name);
        status = run_way_(&ways[i].record, &config, model, options, world, status_page, log, err);
        ways[i].ran = status == 0;
    }
    if (status == 0 && world_rank(world) == 0) code = compare_ways_(ways, model, given, err);
    if (code < 0) status = -1;
    if (status == 0) status = world_broadcast(world, &code, sizeof code, err);
    for (int i = 0; i < WAYS; i++) record_free(&ways[i].record);
    return status == 0 ? code : -1;
}

// --- in the parent

typedef struct Verify {
    const Model *model;
    const Options *options;
    const Log *log;
    char **argv;
    int file;        // unnamed file in memory, for the record of one run
    bool on_the_cpu; // run all ways on the CPU: too few GPUs for the largest one
} Verify;

enum { MOST_CHANGES = 12 };

// Loads the configuration with the user's overrides, followed by the changes of a way, which take precedence. Then
// applies reduce_.
static int load_(const Options *options, Config *config, const char changes[MOST_CHANGES][64], int count, Error *err) {
    int own = options->override_count;
    const char **overrides = xcalloc((size_t)(own + count), sizeof *overrides);
    memcpy(overrides, options->overrides, (size_t)own * sizeof *overrides);
    for (int i = 0; i < count; i++) overrides[own + i] = changes[i];
    int status = config_load(config, options->config, overrides, own + count, err);
    free(overrides);
    reduce_(config);
    return status;
}

// Runs one way: starts the program again as a job of its own, with the changes as -o options. The ranks find the file
// for the record through /proc of this process: it has no name, so nothing is left over if a run is killed. Returns the
// exit code, or -1 with err; EXIT_DONE with way->ran false if it cannot run on this machine.
static int go_(const Verify *verify, Way *way, const Config *given, Error *err) {
    Config config = {0};
    char changes[MOST_CHANGES][64], option[] = "-o", path[64];
    RunAsk ask = {.resume = verify->options->resume};
    Error unable = {0};
    Log quiet = *verify->log;
    int count = 0, argc = 0;
    // 1. The way's changes to the configuration, as overrides that follow the user's own. The last four apply only
    //    to the way with one stage, which is the reference and runs the simplest schedule.
    static const char *const plain[] = {
        "parallel.layers=auto", "schedule.slots=auto",  "schedule.recompute_layers=0",  "schedule.recompute=none",
        "schedule.name=1f1b",   "schedule.chunks=auto", "schedule.split_backward=auto", "schedule.file="};
    // One stage computes the same bits with flash if all stages use it, with none if none does: recomputing changes no
    // bit.
    bool flash = config_attention(given, 0) == ATTENTION_FLASH, mixed = false;
    for (int s = 1; s < (int)given->parallel.pipeline; s++)
        mixed |= (config_attention(given, s) == ATTENTION_FLASH) != flash;
    bool other = way->stages != given->parallel.pipeline, one = other && way->stages == 1;
    snprintf(changes[count++], 64, "schedule.bpipe=%s", way->bpipe == BPIPE_ON ? "on" : "off");
    if (verify->on_the_cpu) snprintf(changes[count++], 64, "hardware.device=cpu");
    if (other) snprintf(changes[count++], 64, "parallel.pipeline=%" PRId64, way->stages);
    for (int i = 0; other && i < (one ? 8 : 4); i++) strcpy(changes[count++], plain[i]);
    if (one && given->attention.modes_given > 1 && !mixed)
        snprintf(changes[count++], 64, "attention.mode=%s", flash ? "flash" : "none");
    // 2. Checks whether the way can run here.
    if (way->stages < given->parallel.pipeline && mixed) {
        log_line(verify->log, "verify: %s: left out: only some stages have attention.mode flash", way->name);
        return EXIT_DONE;
    }
    if (load_(verify->options, &config, changes, count, &unable) != 0 ||
        run_check_start(&config, verify->log->program, verify->model, &ask, &unable) != 0) {
        log_line(verify->log, "verify: %s: left out: %s", way->name, unable.text);
        return EXIT_DONE;
    }
    // 3. The run.
    log_status(verify->log, "verify: %s, %lld rank%s", way->name, (long long)config_world(&config),
               config_world(&config) == 1 ? "" : "s");
    while (verify->argv[argc] != NULL) argc++;
    char **argv = xcalloc((size_t)(argc + 2 * count) + 1, sizeof *argv);
    memcpy(argv, verify->argv, (size_t)argc * sizeof *argv);
    for (int i = 0; i < count; i++) argv[argc + 2 * i] = option, argv[argc + 2 * i + 1] = changes[i];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)getpid(), verify->file);
    quiet.level = LOG_QUIET;
    Job job = {.ranks = (int)config_world(&config),
               .patience = {config.train.peer_timeout_s, config.train.timeout_s},
               .one_host = true,
               .remedy = "the run ends"};
    int code = setenv(RECORD_VARIABLE, path, 1) != 0 || ftruncate(verify->file, 0) != 0
                   ? error_set(err, EXIT_FAILED, "internal: no file for the run's record")
                   : launch_ranks(&quiet, &job, argv, NULL, NULL, err);
    free(argv);
    if (code > EXIT_DONE) log_line(verify->log, "verify: the run with %s failed; nothing was compared", way->name);
    if (code == EXIT_DONE && record_read(&way->record, verify->file, err) != 0) code = -1;
    way->ran = code == EXIT_DONE;
    return code;
}

bool verify_is_run(void) { return getenv(RECORD_VARIABLE) != NULL; }

// Compares one stage with the configuration's stages. If the configuration has one stage, compares with as many as its
// microbatches and layers allow, at most FEW_STAGES.
int verify_command(const Model *model, const Options *options, const Log *log, char **argv, Error *err) {
    int64_t steps;
    if (steps_(options, &steps, err) != 0) return -1;
#ifndef HAVE_MPI
    return error_set(err, EXIT_USAGE,
                     "--verify: compares one stage with several, and the program was built without MPI; install it "
                     "(scripts/install_deps.sh) and run make again");
#endif
    Config given = {0};
    Way ways[WAYS] = {0};
    Verify verify = {model, options, log, argv, memfd_create("record", MFD_CLOEXEC), false};
    if (verify.file < 0) return error_set(err, EXIT_FAILED, "cannot create a file in memory: %s", strerror(errno));
    int code = load_(options, &given, NULL, 0, err) == 0 ? EXIT_DONE : -1;
    if (code == EXIT_DONE) {
        int64_t few = min_i64(min_i64(config_microbatches(&given), given.model.layers), FEW_STAGES);
        int64_t stages = given.parallel.pipeline > 1 ? given.parallel.pipeline : few;
        int64_t ranks = stages * given.parallel.tensor * config_replicas(&given);
        verify.on_the_cpu = given.hardware.device == DEVICE_AUTO && !device_has_gpus(&given, ranks);
        name_(&ways[0], &given, 1, BPIPE_OFF);
        name_(&ways[1], &given, stages, BPIPE_OFF);
        name_(&ways[2], &given, stages, BPIPE_ON);
        if (stages == 1) strcat(ways[1].name, ", once more");
        for (int i = 0; code == EXIT_DONE && i < (stages == 1 ? 2 : WAYS); i++)
            code = go_(&verify, &ways[i], &given, err);
    }
    if (code == EXIT_DONE) code = compare_ways_(ways, model, &given, err);
    for (int i = 0; i < WAYS; i++) record_free(&ways[i].record);
    close(verify.file);
    return code;
}
