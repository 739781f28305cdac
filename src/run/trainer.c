// The program: reads command line and configuration; answers planning queries, or runs as a rank or as the parent of
// ranks. A step then passes through run_train (run_train.c), engine_run (engine.c), stage_forward (stage.c),
// layer_forward (layer.c) and the model's functions (train_llama.cu, train_gpt.cu).
#include "trainer.h"
#include "base/alloc.h"

#include "ranks/affinity.h"
#include "device/device.h"
#include "plan/emulate.h"
#include "base/files.h"
#include "base/units.h"
#include "base/version.h"
#include "ranks/supervisor.h"
#include "launch/launch.h"
#include "plan/plan_report.h"
#include "plan/foreign.h"
#include "config/config_schema.h"
#include "search/search_command.h"
#include "checkpoint/checkpoint_files.h"
#include "run.h"
#include "engine/trace.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef HAVE_MPI
#include <mpi.h>
#endif

// The command line, and everything needed to execute it.
typedef struct Trainer {
    const Model *model;
    Options options;
    Config *config;
    Log log;
    int argc;
    char **argv;
    bool launched; // mpirun or srun started this process as a rank
    Supervisor *supervisor;
    Job job;                      // for ranks and for the processes that supervise them
    char go_on[CONFIG_TEXT + 64]; // for job.remedy
    // In the parent of ranks that may be started again.
    Restarts restarts;
    int64_t before; // sequence number of the newest checkpoint before the first launch
    time_t began;   // time of the last launch
    char **resumes; // arguments that resume from checkpoint.dir
} Trainer;

// --- restarts after a loss: a rank died or fell silent, or no rank made progress. Any other end is final: a rank that
// reports an error would report it again, and a full disk would still be full.

// Copies the arguments with --resume checkpoint.dir in place of any other resume option. The caller frees the list. The
// folder is named, not its newest checkpoint: if that checkpoint is damaged, the ranks take the previous one.
static char **arguments_(const Trainer *t) {
    static char option[] = "--resume";
    int kept = 0;
    char **with = xcalloc((size_t)t->argc + 3, sizeof *with);
    for (int i = 0; i < t->argc; i++) {
        const char *given = t->argv[i];
        bool value = strcmp(given, "--resume") == 0 || strcmp(given, "--resume-if-any") == 0;
        bool whole = strncmp(given, "--resume=", 9) == 0 || strncmp(given, "--resume-if-any=", 16) == 0;
        if (value) i++;
        else if (!whole) with[kept++] = t->argv[i];
    }
    with[kept++] = option, with[kept] = t->config->checkpoint.dir;
    return with;
}

// Implements LaunchAgain: decides whether to start the ranks again, and from which checkpoint.
static bool again_(void *context, const JobEnd *end, char ***argv) {
    Trainer *t = context;
    const char *dir = t->config->checkpoint.dir;
    char why[256], path[CHECKPOINT_PATH], from[64] = "their last starting point";
    struct stat status;
    CheckpointName newest;
    checkpoint_newest(dir, &newest, NULL);
    bool saved = newest.sequence > t->before && file_join(path, dir, newest.name, NULL) == 0;
    if (!restart_allowed(&t->restarts, end, why)) {
        log_line(&t->log, "%s; %s", why, t->job.remedy[end->saved]);
        return false;
    }
    time_t now = time(NULL), since = t->began;
    if (saved && stat(path, &status) == 0 && status.st_mtime > since) since = status.st_mtime;
    double seconds = difftime(now, since);
    // Without a newer checkpoint the ranks go back to the step at which this start began.
    int64_t lost = end->step - (saved && newest.step > 0 ? newest.step + 1 : end->began);
    if (saved && newest.step > 0) snprintf(from, sizeof from, "step %lld", (long long)newest.step);
    log_line(&t->log, "starting the ranks again from %s, with %lld restart%s left; lost: %lld step%s, %.0f s", from,
             (long long)t->restarts.left, t->restarts.left == 1 ? "" : "s", (long long)max_i64(lost, 0),
             lost == 1 ? "" : "s", max_double(seconds, 0)); // the clock may be set back
    if (saved && t->resumes == NULL) *argv = t->resumes = arguments_(t);
    t->began = now;
    return true;
}

// --- in a rank

// A checksum of the sources, from the Makefile. Ranks must have the same, and so must the program for virtual GPUs.
#ifndef SOURCES
#define SOURCES "unknown"
#endif
static const char BUILT_FROM_[] = "built from the sources " SOURCES;

// Writes what all ranks must have alike, a line each: the program, and the keys except `hardware`, which describes a
// host. Of texts, which are mostly paths, only whether there is one: it decides what the ranks do together.
static char *common_(const Config *config) {
    char *text;
    size_t length;
    FILE *file = xmemstream(&text, &length);
    fprintf(file, "a program %s\n", BUILT_FROM_);
    for (const ConfigKey *key = config_keys; key < config_keys + config_key_count; key++) {
        const char *field = (const char *)config + key->offset;
        if (strncmp(key->name, "hardware.", 9) == 0 || config_lacks(config, key)) continue;
        fprintf(file, "%s ", key->name);
        if (config_takes_text(key)) fputs(key->type == KEY_LIST || *field != '\0' ? "set" : "empty", file);
        else config_write_field(config, key, field, file);
        fputc('\n', file);
    }
    xmemstream_close(file);
    return text;
}

// Collective. Every rank reads the configuration by itself. Refuses ranks that read another one than rank 0: a copy on
// their host's disk, or a file that was edited meanwhile. They would train another model, or wait for each other.
static int compare_config_(const Config *config, World *world, Error *err) {
    Error differs = {0};
    char *mine = common_(config), *first = xstrdup(mine);
    int64_t bytes = (int64_t)strlen(mine) + 1;
    int status = world_broadcast(world, &bytes, sizeof bytes, err);
    first = xrealloc(first, (size_t)bytes);
    if (status == 0) status = world_broadcast(world, first, bytes, err);
    const char *a = mine, *b = first;
    while (status == 0 && *a != '\0' && *b != '\0' && differs.code == 0) {
        int line = (int)strcspn(a, "\n"), other = (int)strcspn(b, "\n");
        if (line != other || strncmp(a, b, (size_t)line) != 0)
            error_set(&differs, EXIT_USAGE,
                      "%s: rank %d on %s has %.*s, but rank 0 has %.*s; start all ranks with the same program and "
                      "configuration",
                      config->path, world_rank(world), world_place(world)->host, line, a, other, b);
        a += line + 1, b += other + 1;
    }
    free_all(mine, first);
    return status == 0 ? world_agree(world, &differs, err) : -1;
}

// Runs this process as a rank: starts its supervisor, joins the others, trains, validates or generates, and leaves.
static int rank_main_(Trainer *t, Error *err) {
    const Options *options = &t->options;
    Run run = {0};
    Details details = details_begin(t->log);
    t->job.one_host = world_on_one_host();
    // From here on this process is the rank; the process that the launcher started is its supervisor.
    bool started = supervisor_start(t->supervisor, &t->job, t->launched, err) == 0;
    World *world = started ? world_join(&t->argc, &t->argv, err) : NULL;
    StatusPage *page = supervisor_page(t->supervisor);
    if (world == NULL) {
        if (!(started ? status_page_report(page, err) : supervisor_report_early(t->supervisor, err)))
            log_line(&t->log, "%s", err->text);
        return supervisor_leave(t->supervisor, err->code);
    }
    t->log.rank = world_size(world) > 1 ? world_rank(world) : -1;
    details.log = world_log(world, &t->log);
    details_phase(&details, "world joined");
    world_set_status_page(world, page);
    int code = EXIT_DONE, status = supervisor_join(t->supervisor, world, &t->log, err);
    if (status == 0) status = compare_config_(t->config, world, err);
    if (status == 0) status = verdict_agree(t->config, t->model, world, &t->log, err);
    if (status == 0) status = run_create(&run, t->config, t->model, &t->options, world, page, &t->log, err);
    if (status == 0) status = run_trace_open(&run, options->trace, err);
    if (status == 0)
        status = options->check              ? run_preflight(&run, options->json, err)
                 : options->tune             ? run_tune(&run, err)
                 : options->generate != NULL ? run_generate(&run, err)
                 : options->validate         ? run_validate(&run, options->json, err)
                                             : run_train(&run, err);
    run_restore_stderr();
    if (status != 0) {
        // The parent prints the error, or this rank if there is no parent. If all ranks found it, only rank 0 reports.
        bool speaks = !err->everywhere || world_rank(world) == 0;
        if (speaks && !status_page_report(page, err)) log_line(&t->log, "%s", err->text);
        if (!err->everywhere && world_size(world) > 1) world_abort(world, err->code);
        code = err->code;
    }
    status_page_set_action(page, status == 0 ? "leaving" : "leaving with an error");
    run_trace_close(&run);
    run_destroy(&run);
    world_leave(world, code);
    return supervisor_leave(t->supervisor, code);
}

// Writes the version in the first line, then the built-in libraries, one line each. Bug reports need the libraries that
// a program was built with, and users who copy a program to another machine want to know its capabilities there.
// Libraries report their own versions if they can; no device is touched.
static void version_report_(const char *program, FILE *file) {
    char gpu[256] = "";
    const CudaLibrary *cuda = cuda_load(gpu);
    if (cuda != NULL) cuda->versions(gpu, sizeof gpu);
    fprintf(file, "%s %s\n", program, VERSION);
#ifdef HAVE_DNNL
    const dnnl_version_t *dnnl = dnnl_version();
    fprintf(file, "CPU   oneDNN %d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
#else
    fputs("CPU   without oneDNN", file);
#endif
#ifdef _OPENMP
    fprintf(file, ", OpenMP (%d)\n", _OPENMP);
#else
    fputs(", without OpenMP\n", file);
#endif
#ifdef HAVE_MPI
    // MPI_Get_library_version may be called before MPI_Init. Its text may have further lines about the build.
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, ",\n")] = '\0';
    fprintf(file, "MPI   %s\n", mpi);
#else
    fputs("MPI   none: one rank only\n", file);
#endif
    fprintf(file, "GPU   %s%s\n", cuda == NULL ? "none: " : "", gpu);
}

// Handles options about plans and schedules, for which no rank starts. *code: the exit code, or -1 with err. Returns
// false if no such option was given.
static bool answer_plan_(Trainer *t, int *code, Error *err) {
    const Options *o = &t->options;
    bool asked = o->plan || o->profile || o->search || o->schedule || o->emulate_stage != NULL;
    if (asked && !world_speaks()) { // under a launcher, the first rank of a host answers
        *code = EXIT_DONE;
        return true;
    }
    if (!o->profile && (o->plan || o->search || o->schedule)) config_plan_device(t->config);
    if (o->plan && o->program != NULL) {
        *code = foreign_take(t->config, o->program, false, err);
        if (*code != 0) return true;
    }
    if (o->emulate_stage != NULL) {
        *code = emulate_command(t->config, t->model, o->emulate_stage, &t->log, err);
    } else if (options_sweep(o)) {
        *code = sweep_command(o, t->model, &t->log, err);
    } else if (o->search) {
        *code = search_command(t->config, t->model, o, &t->log, err);
    } else if (o->plan || o->profile) {
        *code = o->profile ? profile_command(t->config, t->model, &t->log, err) : EXIT_DONE;
        if (*code == EXIT_DONE) *code = plan_command(t->config, t->model, o->json, o->trace, &t->log, err);
    } else if (o->schedule) {
        *code = schedule_command(t->config, t->model, o, &t->log, err);
    } else {
        return false;
    }
    return true;
}

// Environment variable with the layout that the parent has decided for its ranks.
#define LAYOUT_VARIABLE "TRAINER_LAYOUT"

// Trains, validates or generates, according to the options: in ranks that a launcher started, in this process if it is
// the only rank, else in ranks that this process starts. Those ranks get the unchanged command line and the decided
// layout. Returns an exit code, or -1 with err.
static int train_(Trainer *t, Error *err) {
    Config *config = t->config;
    bool trains = run_trains(&t->options);
    char text[LAYOUT_ENCODED];
    RunLayout layout;
    if (config_require(config, "data.", err) != 0) return -1;
    if (!trains) config->schedule.bpipe = BPIPE_OFF; // forwards keep no bundles to balance
    if (world_under_launcher(&t->launched, err) != 0) return -1;
    const char *decided = t->launched ? getenv(LAYOUT_VARIABLE) : NULL;
    if (decided != NULL) {
        if (!layout_decode(&layout, decided) ||
            (int64_t)layout.pipeline * layout.tensor * layout.data * layout.context != config_world(config))
            return error_set(err, EXIT_USAGE, "%s: does not match this program and configuration; unset it",
                             LAYOUT_VARIABLE);
        layout_set(&layout, config);
    }
    bool saves = trains && !t->options.check && !t->options.tune;
    const char *unsaved = !saves ? "the job ends"
                          : config->checkpoint.dir[0] == '\0'
                              ? "the job ends; nothing was saved, since checkpoint.dir is not set"
                          : config->checkpoint.every == 0
                              ? "the job ends; nothing was saved, since checkpoint.every is 0"
                              : "the job ends; nothing was saved since its start: give the same command again";
    snprintf(t->go_on, sizeof t->go_on, "the job ends; continue with --resume %s", config->checkpoint.dir);
    double progress_s = t->options.tune ? 0 : config->train.timeout_s; // --tune only measures
    t->job = (Job){.ranks = (int)config_world(config),
                   .patience = {config->train.peer_timeout_s, progress_s},
                   .one_host = true,
                   .trains = saves,
                   .remedy = {unsaved, t->go_on}};
    if (t->launched) return rank_main_(t, err);
    // Before any rank starts: decides the keys that the configuration leaves to the plan, checks machine and data.
    Details details = details_begin(log_of_all(&t->log));
    if (t->options.trace != NULL && trace_check(t->options.trace, err) != 0) return -1;
    if (verdict_resolve(config, t->model, &t->log, err) != 0) return -1;
    if (run_check_start(config, t->log.program, t->model, &t->options, err) != 0) return -1;
    details_phase(&details, "plan, machine and data checked");
    if (config_world(config) == 1 && config->train.max_restarts == 0) {
        // If the reader of step lines exits (head), writing then fails, and the run ends with a checkpoint.
        if (trains) signal(SIGPIPE, SIG_IGN);
        return rank_main_(t, err);
    }
    layout = layout_of(config);
    setenv(LAYOUT_VARIABLE, layout_encode(&layout, text), 1);
    CheckpointName newest;
    checkpoint_newest(config->checkpoint.dir, &newest, NULL);
    t->before = newest.sequence, t->began = time(NULL), t->restarts.left = config->train.max_restarts;
    bool again = saves && config->train.max_restarts > 0;
    int code = launch_ranks(&t->log, &t->job, t->argv, again ? again_ : NULL, t, err);
    free(t->resumes);
    return err->code != 0 ? -1 : code;
}

// Checks the limits that would crash the program, or make libraries fail without a message. Raises the limit on open
// files, because every connection between ranks is an open file: over TCP, one per peer.
static int check_limits_(Error *err) {
    enum { LEAST_STACK_KIB = 512, LEAST_FILES = 32, MANY_FILES = 65536 };
    struct rlimit limit;
    int64_t files = file_limit(MANY_FILES);
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < (rlim_t)LEAST_STACK_KIB << 10)
        return error_set(err, EXIT_FAILED, "the stack limit is %lld KiB, but a run may need %d KiB; raise ulimit -s",
                         (long long)limit.rlim_cur >> 10, LEAST_STACK_KIB);
    if (files >= LEAST_FILES) return 0;
    return error_set(err, EXIT_FAILED, "this program is limited to %lld open files but may need %d; raise ulimit -n",
                     (long long)files, LEAST_FILES);
}

// --- --dry-run

static const char DRY_[] = "VIRTUAL_DRY";

// Runs make in the checkout. Returns whether it succeeded.
static bool build_(const char *checkout) {
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO); // keeps stdout for results
        execlp("make", "make", "-s", "-C", checkout, "virtual", "NVCC=", (char *)NULL);
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return child > 0 && status == 0;
}

// Sets a variable of the environment that the user has not set.
static void set_number_(const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 0);
}

// Returns whether a metrics file has steps of a run that computed them; those of a dry run have no loss.
static bool has_losses_(const char *path) {
    char *line = NULL;
    size_t capacity = 0;
    struct stat status;
    FILE *file = stat(path, &status) == 0 && S_ISREG(status.st_mode) ? fopen(path, "re") : NULL;
    bool computed = false;
    while (file != NULL && !computed && getline(&line, &capacity, file) > 0)
        computed = strncmp(line, "{\"type\":\"step\"", 14) == 0 && strstr(line, "\"loss\":null") == NULL;
    if (file != NULL) fclose(file);
    free(line);
    return computed;
}

// Runs the same command in the program for virtual GPUs (docs/dry-runs.md), and builds that program if necessary.
// Replaces this process with it, with the configured number of GPUs per node, and without validation, evaluation,
// samples and checkpoints. Returns -1 with err, or 0 if this process is a dry run already.
static int dry_run_start_(const Config *config, const Log *log, int argc, char **argv, Error *err) {
    char own[4096], path[4200], make[4200];
    if (getenv(DRY_) != NULL) return 0;
    if (has_losses_(config->log.metrics))
        return error_set(err, EXIT_USAGE,
                         "--dry-run: log.metrics: %s has the steps of a run; give -o log.metrics=FILE or, for none, "
                         "-o log.metrics=",
                         config->log.metrics);
    // The program is in the checkout's root, or in build/release.
    if (!file_of_program(own, sizeof own)) own[0] = '\0';
    do {
        *(strrchr(own, '/') != NULL ? strrchr(own, '/') : own) = '\0';
        snprintf(make, sizeof make, "%s/Makefile", own);
    } while (own[0] != '\0' && access(make, R_OK) != 0);
    snprintf(path, sizeof path, "%s/build/virtual/%s", own, log->program);
    if (access(path, X_OK) != 0 && access(make, R_OK) != 0)
        return error_set(err, EXIT_FAILED, "--dry-run: needs a checkout with its Makefile; run it there");
    if (access(path, X_OK) != 0) {
        log_status(log, "dry run: building the program for virtual GPUs once, with make virtual; this takes minutes");
        if (!build_(own) || access(path, X_OK) != 0)
            return error_set(err, EXIT_FAILED, "--dry-run: make virtual failed in %s; run it there to see why", own);
    }
    enum { MOST_BYTES = 1 << 30 };
    int64_t size = 0;
    char *code = file_read_whole(path, MOST_BYTES, &size, err);
    if (code == NULL) return -1;
    bool same = memmem(code, (size_t)size, BUILT_FROM_, sizeof BUILT_FROM_) != NULL;
    free(code);
    if (!same)
        return error_set(err, EXIT_FAILED,
                         "--dry-run: %s was built from other sources than this program; run make programs virtual in "
                         "%s",
                         path, own);
    log_status(log, "dry run on virtual GPUs: nothing is computed, and times are from the virtual clock");
    int64_t node = config->hardware.gpus_per_node, world = config_world(config);
    set_number_(DRY_, 1);
    set_number_("VIRTUAL_GPUS", node);
    set_number_("VIRTUAL_NODES", (world + node - 1) / node);
    static char *const more[] = {
        "-o", "hardware.device=cuda", "-o", "checkpoint.every=0",     "-o", "checkpoint.dir=", "-o", "data.val_every=0",
        "-o", "sample.every=0",       "-o", "data.hellaswag_every=0", NULL};
    char **words = xcalloc((size_t)argc + sizeof more / sizeof *more, sizeof *words);
    memcpy(words, argv, (size_t)argc * sizeof *words);
    memcpy(words + argc, more, sizeof more);
    words[0] = path;
    execv(path, words);
    free(words);
    return error_set(err, EXIT_FAILED, "--dry-run: %s: %s", path, strerror(errno));
}

// --- main

static int load_(Trainer *t, Error *err) {
    const Options *o = &t->options;
    t->log.level = o->quiet ? LOG_QUIET : o->verbose ? LOG_VERBOSE : LOG_NORMAL;
    affinity_spin_briefly(t->argv);
    t->config = xcalloc(1, sizeof *t->config);
    if (config_keep_copy(o->config, err) != 0) return -1;
    if ((o->search ? search_load : config_load)(t->config, o->config, o->overrides, o->override_count, err) != 0)
        return -1;
    const char *word = config_word("model.family", t->config->model.family);
    if (t->config->model.family == family_find(t->model->family))
        return o->dry_run ? dry_run_start_(t->config, &t->log, t->argc, t->argv, err) : 0;
    return config_error(t->config, "model.family", err, "%s trains %s; use train_%s for %s", t->log.program,
                        t->model->family, word, word);
}

int trainer_main(const char *program, const Model *model, int argc, char **argv) {
    Trainer t = {.model = model, .log = {program, -1, -1, LOG_NORMAL}, .argc = argc, .argv = argv};
    Error err = {0};
    int code = -1;
    cuda_set_environment();
    file_prepare_standard();
    signal(SIGXFSZ, SIG_IGN); // exceeding a limit on a file's size is then a write error, which we report
    // A caller may pass on ignored and blocked signals. If SIGCHLD is ignored, no waitpid reports how a child ended; if
    // others are blocked, requests to stop do not arrive.
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    t.supervisor = supervisor_open(program, &err);
    bool parsed = t.supervisor != NULL && check_limits_(&err) == 0 && options_parse(&t.options, argc, argv, &err) == 0;
    const Options *o = &t.options;
    if (parsed && (o->help || o->help_config || o->version)) { // these need no configuration
        if (o->help) options_help(program, stdout);
        else if (o->version && !o->help_config) version_report_(program, stdout);
        else if (o->json) config_help_json(program, stdout);
        else config_help(stdout);
        code = fflush(stdout) == 0 && ferror(stdout) == 0 ? EXIT_DONE : EXIT_FAILED;
        if (code != EXIT_DONE) log_line(&t.log, "cannot write to standard output: %s", strerror(errno));
    } else if (parsed && load_(&t, &err) == 0 && !answer_plan_(&t, &code, &err)) {
        code = train_(&t, &err);
    }
    if (code < 0 && !supervisor_report_early(t.supervisor, &err)) {
        // An error found before the ranks have met occurs on all ranks of a host, and the first rank reports it. The
        // other ranks leave later, because mpirun ends all ranks when a rank has left.
        if (world_speaks()) log_line(&t.log, "%s", err.text);
        else sleep(1);
    }
    if (code < 0) code = err.code;
    free(t.config);
    options_free(&t.options);
    supervisor_free(t.supervisor);
    return code;
}
