// The program: reads the command line and the configuration, answers questions by itself, and starts, joins or is the
// ranks that train. From here the way of a step is run_train (run_train.c), engine_run (engine.c), stage_forward
// (stage.c), and layer_forward (layer.c) with the model's part (train_llama.cu, train_gpt.cu).
#include "trainer.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "config/completion.h"
#include "ranks/affinity.h"
#include "device/device.h"
#include "plan/emulate.h"
#include "base/files.h"
#include "ranks/supervisor.h"
#include "launch/launch.h"
#include "config/manual.h"
#include "config/options.h"
#include "plan/plan_report.h"
#include "search/search_command.h"
#include "search/sweep.h"
#include "restart.h"
#include "run.h"
#include "engine/trace.h"
#include "verify.h"
#include "version_report.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int trainer_say_(const Log *log, const Error *err) {
    log_line(log, "%s", err->text);
    return err->code;
}

// An error found before ranks know each other occurs on all ranks of a host, and the first one reports it. The others
// leave after it, because mpirun ends all ranks when one has left.
static int trainer_fail_(const Log *log, const Error *err) {
    if (world_speaks()) return trainer_say_(log, err);
    sleep(1);
    return err->code;
}

// Describes the job for ranks and for the processes that supervise them.
static Job trainer_job_(const Config *config, char *remedy, size_t size) {
    if (config->checkpoint.dir[0] != '\0')
        snprintf(remedy, size, "the job ends; go on with --resume %s", config->checkpoint.dir);
    else
        snprintf(remedy, size, "the job ends; nothing was saved, since checkpoint.dir is not set");
    return (Job){.ranks = (int)config_world(config),
                 .patience = {config->train.peer_timeout_s, config->train.timeout_s},
                 .one_host = true,
                 .remedy = remedy};
}

static int trainer_check_family_(const Config *config, const char *program, const Model *model, Error *err) {
    if (config->model.family == model->family) return 0;
    char where[CONFIG_TEXT];
    config_where(config, "model.family", where, sizeof where);
    const char *word = config_word("model.family", config->model.family);
    return error_set(err, EXIT_USAGE, "%s: model.family: %s trains %s; use train_%s for %s", where, program,
                     model->name, word, word);
}

static int print_schedule_(Config *config, const Model *model, const Log *log, Error *err) {
    Schedule *schedule = verdict_resolve(config, model, log, err) == 0 ? plan_schedule(config, err) : NULL;
    if (schedule == NULL) return -1;
    int written = schedule_write(schedule, stdout);
    schedule_free(schedule);
    if (written != 0 || fflush(stdout) != 0)
        return error_set(err, EXIT_FAILED, "the schedule could not be written to stdout");
    return 0;
}

static int check_data_(const Config *config, Error *err) {
    Blend *train = NULL;
    Dataset *val = NULL;
    int status = run_open_data(config, &train, &val, err);
    blend_close(train);
    dataset_close(val);
    Evaluation *hellaswag = NULL;
    if (status == 0) status = run_open_evaluation(config, false, &hellaswag, err);
    evaluation_close(hellaswag);
    return status;
}

// Checks that --generate and --validate have trained weights to start from.
static int check_trained_(const Config *config, const RunAsk *ask, Error *err) {
    if (ask->resume == NULL && config->checkpoint.init_from[0] == '\0')
        return error_set(err, EXIT_USAGE,
                         "--%s: %s which model? Give --resume DIR with a run's checkpoints, or "
                         "-o checkpoint.init_from=DIR with a model as transformers saves it",
                         ask->validate ? "validate" : "generate", ask->validate ? "of" : "from");
    if (!ask->validate) return run_sample_check(config, ask->generate, err);
    Dataset *val = NULL;
    Evaluation *hellaswag = NULL;
    int status = run_open_validation(config, &val, err);
    if (status == 0) status = run_open_evaluation(config, true, &hellaswag, err);
    dataset_close(val);
    evaluation_close(hellaswag);
    return status;
}

// Checks, before any rank starts, that the machine has what the plan asks for and that the data are there.
static int check_start_(const Config *config, const char *program, const Model *model, const RunAsk *ask, Error *err) {
    Schedule *schedule = run_schedule(config, ask, err);
    Backend *be = schedule == NULL ? NULL : planner_backend(config, err);
    Plan plan = {0};
    int status = be == NULL ? -1 : 0;
    if (status == 0) plan_make(&plan, model, config, schedule, be);
    if (status == 0)
        status = plan_check_machine(&plan, config, program, device_has_gpus(config, config_world(config)), err);
    plan_free(&plan);
    if (be != NULL) be->destroy(be);
    schedule_free(schedule);
    if (status == 0) status = run_check_checkpoints(config, ask, err);
    if (status == 0 && !run_trains(ask)) return check_trained_(config, ask, err);
    if (status == 0) status = check_data_(config, err);
    if (status == 0 && config->sample.every > 0) status = run_sample_check(config, NULL, err);
    return status;
}

// Reports why this rank fails: through the parent of all ranks, or on stderr; once if all ranks found the same.
static int rank_fail_(World *world, StatusPage *page, const Log *log, const Error *err) {
    bool speaks = !err->everywhere || world_rank(world) == 0;
    if (speaks && !status_page_report(page, err)) log_line(log, "%s", err->text);
    if (!err->everywhere && world_size(world) > 1) world_abort(world, err->code);
    return err->code;
}

// The command line, and what it takes to answer it.
typedef struct Trainer {
    const Model *model;
    Options options;
    Config *config;
    Log log;
    int argc;
    char **argv;
} Trainer;

static RunAsk ask_of_(const Options *options) {
    bool if_any = options->resume == NULL && options->resume_if_any != NULL;
    return (RunAsk){.resume = if_any ? options->resume_if_any : options->resume,
                    .generate = options->generate,
                    .validate = options->validate,
                    .resume_if_any = if_any};
}

// Does the rank's work: training, or one of the other modes. Returns the exit code.
static int work_(Trainer *t, World *world, StatusPage *page) {
    const Options *options = &t->options;
    RunAsk ask = ask_of_(options);
    Error err = {0};
    int status = verdict_agree(t->config, t->model, world, &t->log, &err);
    if (status == 0 && options->verify != NULL) {
        int code = verify_as_rank(t->config, t->model, options, world, page, &t->log, &err);
        return code < 0 ? rank_fail_(world, page, &t->log, &err) : code;
    }
    Run run;
    memset(&run, 0, sizeof run);
    if (status == 0) status = run_create(&run, t->config, t->model, &ask, world, page, &t->log, &err);
    if (status == 0) status = run_trace_open(&run, options->trace, &err);
    if (status == 0)
        status = ask.generate != NULL ? run_generate(&run, &err)
                 : ask.validate       ? run_validate(&run, options->json, &err)
                                      : run_train(&run, &err);
    int code = status == 0 ? EXIT_DONE : rank_fail_(world, page, &t->log, &err);
    status_page_set_action(page, "leaving");
    run_trace_close(&run);
    run_destroy(&run);
    return code;
}

// Runs this process as a rank: it joins the others, works, and leaves.
static int rank_main_(Trainer *t, bool launched) {
    char remedy[CONFIG_TEXT + 64];
    Error err = {0};
    Job job = trainer_job_(t->config, remedy, sizeof remedy);
    double began = clock_seconds();
    job.one_host = world_on_one_host();
    // From here on this is the rank; the process that the launcher started is its supervisor.
    Supervisor *supervisor = supervisor_start(t->log.program, &job, launched, &err);
    StatusPage *page = supervisor_page(supervisor);
    World *world = err.code != 0 ? NULL : world_join(&t->argc, &t->argv, &err);
    if (world == NULL) {
        if (!status_page_report(page, &err)) trainer_say_(&t->log, &err);
        return supervisor_leave(supervisor, err.code);
    }
    t->log.rank = world_size(world) > 1 ? world_rank(world) : -1;
    Details details;
    details_begin(&details, &t->log, world);
    details.since = began;
    details_phase(&details, "world joined");
    world_set_status_page(world, page);
    int code = supervisor_join(supervisor, world, &t->log, &err) == 0 ? work_(t, world, page)
                                                                      : rank_fail_(world, page, &t->log, &err);
    world_leave(world);
    return supervisor_leave(supervisor, code);
}

// Lets ranks, and the runs of --verify, read a configuration that came through a pipe from this process's copy.
static void trainer_pass_copy_(Trainer *t) {
    char *path = NULL;
    for (int i = 1; t->config->copy > 0 && i < t->argc; i++) {
        const char *given = t->options.config, *argument = t->argv[i];
        if (given < argument || given > argument + strlen(argument)) continue;
        if (asprintf(&path, "%.*s/proc/%d/fd/%d", (int)(given - argument), argument, (int)getpid(), t->config->copy) <
            0)
            return;
        t->options.config = path + (given - argument);
        t->argv[i] = path; // for as long as the program runs
        return;
    }
}

// What a configuration leaves to the plan.
typedef struct Undecided {
    bool name, split, bpipe;
} Undecided;

// Writes what was decided as overrides, at most eight, and returns how many.
static int decided_overrides_(const Config *config, const Undecided *undecided, char (*text)[96], size_t size) {
    const ScheduleConfig *schedule = &config->schedule;
    int n = 0;
    if (undecided->name || undecided->bpipe)
        snprintf(text[n++], size, "schedule.bpipe=%s", config_word("schedule.bpipe", schedule->bpipe));
    if (undecided->name || (undecided->split && schedule->split_backward != SPLIT_AUTO))
        snprintf(text[n++], size, "schedule.split_backward=%s",
                 config_word("schedule.split_backward", schedule->split_backward));
    if (!undecided->name) return n;
    snprintf(text[n++], size, "schedule.name=%s", config_schedule_kind(config)->name);
    snprintf(text[n++], size, "schedule.chunks=%d", config_chunks(config));
    snprintf(text[n++], size, "schedule.evict_to=%s", config_word("schedule.evict_to", schedule->evict_to));
    if (schedule->group > 0) snprintf(text[n++], size, "schedule.group=%lld", (long long)schedule->group);
    if (schedule->bpipe == BPIPE_ON) snprintf(text[n++], size, "schedule.slots=%lld", (long long)schedule->slots);
    if (schedule->recompute_given == 1)
        snprintf(text[n++], size, "schedule.recompute_layers=%lld", (long long)schedule->recompute_of_stage[0]);
    return n;
}

// Runs the parent of ranks on this machine. They get the command line as it was given, plus what was decided for them.
static int parent_main_(Trainer *t, const Undecided *undecided, Error *err) {
    enum { DECIDED = 8, TEXT = 96 };
    char option[] = "-o", text[DECIDED][TEXT];
    int count = decided_overrides_(t->config, undecided, text, TEXT);
    char **with = xcalloc((size_t)t->argc + 2 * DECIDED + 1, sizeof *with);
    memcpy(with, t->argv, (size_t)t->argc * sizeof *with);
    for (int i = 0; i < count; i++) {
        with[t->argc + 2 * i] = option;
        with[t->argc + 2 * i + 1] = text[i];
    }
    char remedy[CONFIG_TEXT + 64];
    Job job = trainer_job_(t->config, remedy, sizeof remedy);
    RunAsk ask = ask_of_(&t->options);
    int code = run_trains(&ask) ? restart_launch(&t->log, t->config, &job, with, err)
                                : launch_ranks(&t->log, &job, with, NULL, err);
    free(with);
    return err->code != 0 ? trainer_fail_(&t->log, err) : code;
}

// Checks plan, machine and data before any rank starts, and decides what the configuration leaves to the plan.
static int check_before_ranks_(Trainer *t, Error *err) {
    RunAsk ask = ask_of_(&t->options);
    Details details;
    details_begin(&details, &t->log, NULL);
    if (t->options.trace != NULL && trace_check(t->options.trace, err) != 0) return -1;
    if (verdict_resolve(t->config, t->model, &t->log, err) != 0) return -1;
    if (check_start_(t->config, t->log.program, t->model, &ask, err) != 0) return -1;
    details_phase(&details, "plan, machine and data checked");
    return 0;
}

// Runs training, --validate, --generate and --verify: in ranks that a launcher started, in this process if it is the
// only rank, else in ranks that this process starts.
static int train_main_(Trainer *t) {
    Error err = {0};
    RunAsk ask = ask_of_(&t->options);
    if (!run_trains(&ask)) t->config->schedule.bpipe = BPIPE_OFF; // forwards leave nothing to balance
    bool launched = false;
    Undecided undecided = {.name = verdict_names_auto(t->config),
                           .split = t->config->schedule.split_backward == SPLIT_AUTO,
                           .bpipe = t->config->schedule.bpipe == BPIPE_AUTO};
    if (world_under_launcher(&launched, &err) != 0) return trainer_fail_(&t->log, &err);
    if (t->options.verify != NULL && !launched && !verify_is_run()) {
        int code = verify_command(t->model, &t->options, check_start_, &t->log, t->argv, &err);
        return code < 0 ? trainer_fail_(&t->log, &err) : code;
    }
    if (!launched && check_before_ranks_(t, &err) != 0) return trainer_fail_(&t->log, &err);
    bool alone = config_world(t->config) == 1 && t->config->train.max_restarts == 0;
    // A reader of step lines that goes away (head) is then a write error, and the run ends with a checkpoint.
    if (alone && !launched && run_trains(&ask)) signal(SIGPIPE, SIG_IGN);
    if (launched || alone) return rank_main_(t, launched);
    return parent_main_(t, &undecided, &err);
}

static int trainer_flush_(Error *err) {
    if (fflush(stdout) == 0 && ferror(stdout) == 0) return 0;
    return error_set(err, EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
}

// Handles options that need no configuration (--help, --man, ...). Returns false if none was given.
static bool answer_(const Options *options, const char *program) {
    if (options->help)
        options_help(program, stdout);
    else if (options->help_config)
        options->markdown ? config_help_markdown(stdout) : config_help(stdout);
    else if (options->man)
        manual_write(program, stdout);
    else if (options->completion != NULL)
        completion_write(program, options->completion, stdout);
    else if (options->version)
        version_report(program, stdout);
    else
        return false;
    return true;
}

// Answers questions about a configuration in this process. Returns false if none was asked; *status: an exit code, or
// -1 with err.
static bool question_(Trainer *t, int *status, Error *err) {
    const Options *options = &t->options;
    *status = 0;
    if (options->emulate_stage != NULL) {
        *status = emulate_command(t->config, t->model, options->emulate_stage, &t->log, err);
        return true;
    }
    if (options->sweep_count > 0) {
        *status = sweep_command(options, t->model, &t->log, err);
        return true;
    }
    if (options->search) {
        *status = search_command(t->config, t->model, options->gpus, options->json, options->write, &t->log, err);
        return true;
    }
    if (options->profile) *status = profile_command(t->config, t->model, &t->log, err);
    if (*status == 0 && (options->plan || options->profile))
        *status = plan_command(t->config, t->model, options->json, options->trace, &t->log, err);
    else if (options->schedule)
        *status = print_schedule_(t->config, t->model, &t->log, err);
    return options->plan || options->profile || options->schedule;
}

// Checks the limits below which the program crashes, or libraries fail without a reason.
static int trainer_check_limits_(Error *err) {
    enum { LEAST_STACK_KIB = 512, LEAST_FILES = 32 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < (rlim_t)LEAST_STACK_KIB << 10)
        return error_set(err, EXIT_FAILED, "the stack is limited to %lld KiB and can need %d; raise ulimit -s",
                         (long long)limit.rlim_cur >> 10, LEAST_STACK_KIB);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < LEAST_FILES)
        return error_set(err, EXIT_FAILED,
                         "this program is limited to %lld open files and can need %d; raise ulimit -n",
                         (long long)limit.rlim_max, LEAST_FILES);
    return 0;
}

int trainer_main(const char *program, const Model *model, int argc, char **argv) {
    Trainer t = {.model = model, .log = {program, -1, -1, LOG_NORMAL}, .argc = argc, .argv = argv};
    Error err = {0};
    int code, status;
    file_reserve_standard();
    signal(SIGXFSZ, SIG_IGN); // exceeding a limit on a file's size is then a write error, which we report
    if (trainer_check_limits_(&err) != 0 || options_parse(&t.options, argc, argv, &err) != 0) {
        code = trainer_fail_(&t.log, &err);
    } else if (answer_(&t.options, program)) {
        code = trainer_flush_(&err) == 0 ? EXIT_DONE : trainer_say_(&t.log, &err);
    } else {
        t.log.level = t.options.quiet ? LOG_QUIET : t.options.verbose ? LOG_VERBOSE : LOG_NORMAL;
        affinity_spin_briefly(argv);
        t.config = xcalloc(1, sizeof *t.config);
        if (config_load(t.config, t.options.config, t.options.overrides, t.options.override_count, &err) != 0 ||
            trainer_check_family_(t.config, program, model, &err) != 0)
            code = trainer_fail_(&t.log, &err);
        else if (trainer_pass_copy_(&t), question_(&t, &status, &err))
            code = status >= 0 ? status : trainer_fail_(&t.log, &err);
        else
            code = train_main_(&t);
    }
    free(t.config);
    options_free(&t.options);
    return code;
}
