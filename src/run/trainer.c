#include "trainer.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "config/completion.h"
#include "ranks/affinity.h"
#include "details.h"
#include "device/device.h"
#include "plan/emulate.h"
#include "base/files.h"
#include "ranks/heartbeat.h"
#include "launch/launch.h"
#include "config/manual.h"
#include "config/options.h"
#include "plan/plan_answer.h"
#include "run.h"
#include "run_evaluate.h"
#include "run_sample.h"
#include "run_trace.h"
#include "engine/trace.h"
#include "verify.h"
#include "base/version.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int trainer_say_(const Log *log, const Error *err) {
    log_line(log, "%s", err->text);
    return err->code;
}

// What is wrong before ranks know each other is wrong on all ranks of a host: the first one says it. The others go after it, since
// mpirun ends all when one has gone.
static int trainer_fail_(const Log *log, const Error *err) {
    if (world_speaks()) return trainer_say_(log, err);
    sleep(1);
    return err->code;
}

static Patience patience_(const Config *config) {
    return (Patience){config->train.peer_timeout_s, config->train.timeout_s};
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

// Text comes from a model that was trained, and a loss says something of one.
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

// Before any rank starts: is the data there, and does the machine have what the plan asks for?
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
    if (status == 0 && !run_trains(ask)) return check_trained_(config, ask, err);
    if (status == 0) status = check_data_(config, err);
    if (status == 0 && config->sample.every > 0) status = run_sample_check(config, NULL, err);
    return status;
}

// Says the last word of a rank: on the board, where a parent reads it, else on stderr; once where all ranks found the same.
static int rank_fail_(World *world, StatusPage *status_page, Heartbeat *heartbeat, const Log *log, const Error *err) {
    bool speaks = !err->everywhere || world_rank(world) == 0;
    if (speaks && !status_page_report(status_page, err->code, err->text)) log_line(log, "%s", err->text);
    int code = err->code;
    if (!err->everywhere && world_size(world) > 1) {
        heartbeat_excuse_me(heartbeat);
        world_abort(world, code);
    }
    return code;
}

static int act_(Run *run, const Options *options, Error *err) {
    if (options->generate != NULL) return run_generate(run, err);
    return options->validate ? run_validate(run, options->json, err) : run_train(run, err);
}

static int train_as_rank_(Config *config, const Model *model, const Options *options, World *world,
                          StatusPage *status_page, Heartbeat *heartbeat, Log *log) {
    Error err = {0};
    Run run;
    RunAsk ask = {options->resume, options->generate, options->validate};
    int code = EXIT_DONE;
    memset(&run, 0, sizeof run);
    if (options->verify != NULL) {
        code = verify_as_rank(config, model, options, world, status_page, log, &err);
        return code < 0 ? rank_fail_(world, status_page, heartbeat, log, &err) : code;
    }
    if (verdict_agree(config, model, world, log, &err) != 0 ||
        run_create(&run, config, model, &ask, world, status_page, log, &err) != 0 ||
        run_trace_open(&run, options->trace, &err) != 0 || act_(&run, options, &err) != 0)
        code = rank_fail_(world, status_page, heartbeat, log, &err);
    status_page_set_action(status_page, "leaving");
    run_trace_close(&run);
    run_destroy(&run);
    return code;
}

static int rank_main_(Config *config, const Model *model, const Options *options, bool launched, Log *log, int argc,
                      char **argv) {
    Error err = {0};
    StatusPage *status_page = status_page_attach(-1);
    if (status_page == NULL) status_page = status_page_alone();
    status_page_set_action(status_page, HEARTBEAT_JOINING);
    double began = clock_seconds();
    Heartbeat *heartbeat = heartbeat_start(status_page, patience_(config), launched, log->program, &err);
    World *world = err.code != 0 ? NULL : world_join(&argc, &argv, &err);
    if (world == NULL)
        return status_page_report(status_page, err.code, err.text) ? status_page_leave(status_page, err.code)
                                                                   : trainer_say_(log, &err);
    log->rank = world_size(world) > 1 ? world_rank(world) : -1;
    Details details;
    details_begin(&details, log, world);
    details.since = began;
    details_phase(&details, "world joined");
    world_set_status_page(world, status_page);
    int code = heartbeat_join(heartbeat, world, log, &err) == 0
                   ? train_as_rank_(config, model, options, world, status_page, heartbeat, log)
                   : rank_fail_(world, status_page, heartbeat, log, &err);
    world_leave(world);
    heartbeat_leave(heartbeat);
    code = status_page_leave(status_page, code);
    status_page_close(status_page);
    return code;
}

// The ranks get the command line as it was given, and what was decided for them behind it.
static int trainer_launch_(const Config *config, bool decided, Log *log, int argc, char **argv, Error *err) {
    char bpipe[32];
    char **with = xcalloc((size_t)argc + 3, sizeof *with);
    memcpy(with, argv, (size_t)argc * sizeof *with);
    snprintf(bpipe, sizeof bpipe, "schedule.bpipe=%s", config_word("schedule.bpipe", config->schedule.bpipe));
    char option[] = "-o";
    if (decided) with[argc] = option, with[argc + 1] = bpipe;
    int code = launch_ranks(log, (int)config_world(config), with, patience_(config), err);
    free(with);
    return code;
}

static int train_(Config *config, const Model *model, const Options *options, Log *log, int argc, char **argv) {
    Error err = {0};
    Details details;
    details_begin(&details, log, NULL);
    RunAsk ask = {options->resume, options->generate, options->validate};
    if (!run_trains(&ask)) config->schedule.bpipe = BPIPE_OFF; // forwards leave nothing to balance
    bool under = false, undecided = config->schedule.bpipe == BPIPE_AUTO;
    if (world_under_launcher(&under, &err) != 0) return trainer_fail_(log, &err);
    if (options->verify != NULL && !under && !verify_is_run()) {
        int verified = verify_command(model, options, check_start_, log, argv, &err);
        return verified < 0 ? trainer_fail_(log, &err) : verified;
    }
    if (!under && options->trace != NULL && trace_check(options->trace, &err) != 0) return trainer_fail_(log, &err);
    if (!under &&
        (verdict_resolve(config, model, log, &err) != 0 || check_start_(config, log->program, model, &ask, &err) != 0))
        return trainer_fail_(log, &err);
    if (!under) details_phase(&details, "plan, machine and data checked");
    if (under || config_world(config) == 1) return rank_main_(config, model, options, under, log, argc, argv);
    int code = trainer_launch_(config, undecided, log, argc, argv, &err);
    return err.code != 0 ? trainer_fail_(log, &err) : code;
}

static int trainer_flush_(Error *err) {
    if (fflush(stdout) == 0 && ferror(stdout) == 0) return 0;
    return error_set(err, EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
}

// What the tables and the version answer without a configuration. false: nothing of it was asked.
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
        printf("%s %s\n", program, VERSION);
    else
        return false;
    return true;
}

static int run_options_(const Options *options, const Model *model, Log *log, int argc, char **argv) {
    Error err = {0};
    if (answer_(options, log->program)) return trainer_flush_(&err) == 0 ? EXIT_DONE : trainer_say_(log, &err);
    log->level = options->quiet ? LOG_QUIET : options->verbose ? LOG_VERBOSE : LOG_NORMAL;
    affinity_spin_briefly(argv);
    Config *config = xcalloc(1, sizeof *config);
    if (config == NULL) return EXIT_FAILED;
    int code = EXIT_DONE;
    if (config_load(config, options->config, options->overrides, options->override_count, &err) != 0 ||
        trainer_check_family_(config, log->program, model, &err) != 0)
        code = trainer_fail_(log, &err);
    else if (options->emulate_stage != NULL)
        code = emulate_command(config, model, options->emulate_stage, log, &err) == 0 ? EXIT_DONE
                                                                                      : trainer_fail_(log, &err);
    else if (options->profile && profile_command(config, model, log, &err) != 0)
        code = trainer_fail_(log, &err);
    else if (options->plan || options->profile)
        code = plan_command(config, model, options->json, options->trace, log, &err) == 0 ? EXIT_DONE
                                                                                          : trainer_fail_(log, &err);
    else if (options->schedule)
        code = print_schedule_(config, model, log, &err) == 0 ? EXIT_DONE : trainer_fail_(log, &err);
    else
        code = train_(config, model, options, log, argc, argv);
    free(config);
    return code;
}

int trainer_main(const char *program, const Model *model, int argc, char **argv) {
    file_reserve_standard();
    signal(SIGXFSZ, SIG_IGN); // what a limit on a file's size cuts is an error to report, not the end
    Log log = {program, -1, -1, LOG_NORMAL};
    Options options;
    Error err = {0};
    int code = options_parse(&options, argc, argv, &err) == 0 ? run_options_(&options, model, &log, argc, argv)
                                                              : trainer_fail_(&log, &err);
    options_free(&options);
    return code;
}
