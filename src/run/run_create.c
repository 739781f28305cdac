// Creates a run: finds the rank's coordinates, opens its groups and device, allocates, and initializes or loads.
// Every step that can fail on one rank ends with an exchange, so that all ranks fail together with one message.
#include "checkpoint/hf_config.h"
#include "comm/comm_pushed.h"
#include "ranks/affinity.h"
#include "plan/fits.h"
#include "plan/plan_time.h"
#include "plan/planner.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "base/units.h"
#include "run.h"
#include "config/gpus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// --- steps of the start

// Collective. If any rank failed, all ranks fail with the error of the lowest failed rank (and its host, if there are
// several), so no rank waits for a rank that has left. Ranks of one host check at different times and can disagree.
static int fail_together_(World *world, int status, Error *err) {
    Error mine = {0};
    bool one_host = world_place(world)->nodes == 1;
    const char *host = one_host ? "" : world_place(world)->host;
    if (status != 0) error_set(&mine, err->code, "%s%s%s", host, one_host ? "" : ": ", err->text);
    return world_agree(world, &mine, err);
}

// Measures the TFLOP/s per core while all cores that this rank may use are busy, as in training.
static double core_peak_(const Run *run) {
    int allowed = affinity_allowed();
    return backend_cpu_measure_peak(run->config->train.precision, allowed) / allowed;
}

// Remeasures the peak on rank 0 (MetricsSetup.measure).
static double measure_peak_(void *context) {
    const Run *run = context;
    return core_peak_(run) * run->peak_cores;
}

static int find_peak_(Run *run, double cores, Error *err) {
    const HardwareConfig *hardware = &run->config->hardware;
    const Gpu *planned = gpu_row(hardware->gpu), *here = gpu_by_name(run->be->device);
    double peak = hardware->peak_tflops;
    bool others = run->device.cuda && planned != NULL && here != NULL && here != planned;
    if (others && peak == gpu_peak(planned, run->config->train.precision)) {
        log_line(&run->all, "hardware.gpu is %s, but the GPU is %s: MFU uses the peak of the actual GPU",
                 gpu_words[hardware->gpu], run->be->device);
        return 0;
    }
    if (peak == 0.0 && run->be->peak_tflops == 0.0 && !run->device.cuda) {
        // Rank 0 measures while the other ranks sleep. Every rank's peak is that of its share of its host's cores.
        double core = world_rank(run->world) == 0 ? core_peak_(run) : 0.0;
        if (world_broadcast(run->world, &core, sizeof core, err) != 0) return -1;
        peak = core * cores;
        run->peak_cores = cores;
    }
    if (peak > 0.0) run->be->peak_tflops = peak;
    return 0;
}

// A group of the ranks with the same color, ordered by key; color -1: this rank is not a member.
typedef struct RunGroup {
    Comm **comm;
    const char *name;
    int color, key;
    DeviceUse use;
} RunGroup;

// Lists all groups, in the order in which every rank makes them. Returns how many.
static int list_groups_(Run *run, RunGroup group[RUN_MOST_GROUPS]) {
    const ParallelConfig *c = &run->config->parallel;
    int p = (int)c->pipeline, t = (int)c->tensor, contexts = (int)c->context, replicas = contexts * (int)c->data;
    Coordinates at = run->at;
    int column = at.replica * t + at.tensor, partner = bpipe_partner(p, at.stage), place = at.replica % contexts;
    int first, last, chunk, count = 0; // first, last: stages of the embedding and the head
    schedule_home(run->schedule, 0, &first, &chunk);
    schedule_home(run->schedule, p * run->schedule->chunks - 1, &last, &chunk);
    const StageSchedule *stages = run->schedule->stage;
    bool evicts = partner != SCHEDULE_NO_PEER && stages[at.stage].lent_slots + stages[partner].lent_slots > 0;
    bool tied = run->config->model.tie_embeddings == TIE_TRUE && first != last;
    bool end = at.stage == first || at.stage == last;
    int pair = evicts ? column * p + min_int(at.stage, partner) : -1;
    int tensor = t > 1 ? at.replica * p + at.stage : -1, data = replicas > 1 ? at.stage * t + at.tensor : -1;
    int context = contexts > 1 ? (at.replica / contexts * p + at.stage) * t + at.tensor : -1;
    run->lanes = p2p_lanes(run->schedule);
    for (int i = 0; i < run->lanes; i++)
        group[count++] = (RunGroup){&run->lane[i], "pipeline", column, at.stage, USE_NEIGHBOURS};
    group[count++] = (RunGroup){&run->tensor, "tensor", tensor, at.tensor, USE_COMPUTE};
    group[count++] = (RunGroup){&run->data, "data", data, at.replica, USE_BESIDE};
    for (int i = 0; i < 2; i++, place = contexts - 1 - place)
        group[count++] = (RunGroup){&run->context[i], "context", context, place, USE_COMPUTE};
    group[count++] = (RunGroup){&run->pair, "pair", pair, at.stage, USE_PAIR};
    group[count++] = (RunGroup){&run->pair_far, "pair", pair, at.stage, USE_PAIR};
    group[count++] = (RunGroup){&run->tied, "tied", tied && end ? column : -1, at.stage, USE_BESIDE};
    // Expert ranks are neighbours in the order of the stage's ranks; every e-th rank holds the same experts.
    int e = (int)c->expert, of_stage = replicas * t, block = at.stage * of_stage;
    int experts = run->config->model.experts > 0 && e > 1 ? block + column / e : -1;
    int same = run->config->model.experts > 0 && of_stage > e ? block + column % e : -1;
    group[count++] = (RunGroup){&run->experts, "experts", experts, column % e, USE_EXCHANGE};
    group[count++] = (RunGroup){&run->same_experts, "same experts", same, column / e, USE_BESIDE};
    return count;
}

// Replaces the groups by groups for the device's memory, in the same order on all ranks. On a GPU, the compute stream
// waits for the tensor and context groups, and the host waits for the other groups. A stage copies its evicted bundles
// if it can map its partner's slots; otherwise it sends them as messages.
static int convert_groups_(Run *run, const RunGroup *groups, int count, Error *err) {
    double blocks = 0, beside = 0; // largest number of NCCL blocks of a rank's groups on the device at once
    for (int i = 0; i < count; i++) {
        // A stage has two neighbours and two directions with each; a pair's bundles have two groups. Inside a node
        // they need NCCL only where a GPU cannot map another's memory, which is found out later.
        int links = groups[i].use == USE_PAIR ? 1 : 4;
        if (*groups[i].comm == NULL) continue;
        if (groups[i].use == USE_BESIDE) beside = BESIDE_CTAS; // these groups share a stream
        else if (groups[i].use == USE_EXCHANGE) blocks += EXCHANGE_CTAS;
        else blocks += groups[i].use == USE_COMPUTE ? COMPUTE_CTAS : links * LINK_CTAS;
    }
    blocks += beside;
    if (world_max(run->world, &blocks, 1, err) != 0) return -1;
    run->be->blocks = (int)blocks;
    for (int i = 0; i < count; i++) {
        Comm **comm = groups[i].comm;
        if (*comm == NULL || comm == &run->pair) continue; // comm_pushed_create takes over the pair's
        *comm = device_comm(&run->device, run->be, *comm, groups[i].use, err);
        if (*comm == NULL) return -1;
    }
    if (run->pair != NULL) run->pair = comm_pushed_create(run->be, STREAM_EVICT, run->pair, run->pair_far);
    run->pair_far = NULL;
    return 0;
}

bool run_trains(const Options *ask) { return ask->generate == NULL && !ask->validate; }

// Refuses to start if there is no checkpoint to resume from, if the run would save among another run's checkpoints, or
// if the file of --tune cannot be written. Changes no file.
static int check_checkpoints_(const Config *config, const Options *ask, Error *err) {
    const char *products = config->hardware.products_file;
    if (checkpoint_check_resume(config, ask->resume, ask->resume_if_any != NULL, run_trains(ask), err) != 0) return -1;
    if (ask->tune && products[0] == '\0')
        return config_error(config, "hardware.products_file", err, "is empty; set it to the file that --tune writes");
    if (ask->tune && (errno = file_check_to_write(products)) != 0) return file_failed(products, "written", err);
    if (!run_trains(ask) || ask->tune) return 0;
    if (config->checkpoint.dir[0] != '\0' && hf_config_check(config, err) != 0) return -1;
    return checkpoint_check_dir(config, ask->resume, err);
}

// Returns the schedule to plan for: the configuration's for training, a forward-only one of one batch for --validate,
// or a forward-only one of one microbatch for --generate. Returns NULL with err.
static Schedule *run_schedule_(const Config *config, const Options *ask, Error *err) {
    Schedule whole = {.stages = (int)config->parallel.pipeline, .chunks = 1, .slices = config_slices(config)};
    whole.edge_buffers = SCHEDULE_EDGE_BUFFERS;
    if (run_trains(ask)) return plan_schedule(config, err);
    return schedule_forward_like(&whole, ask->validate ? (int)config_microbatches(config) : 1);
}

int run_check_start(const Config *config, const char *program, const Model *model, const Options *ask, Error *err) {
    Schedule *schedule = run_schedule_(config, ask, err);
    bool proved = schedule != NULL && (!run_trains(ask) || plan_check_ramp(config, schedule, err) == 0);
    Backend *be = proved ? planner_backend(config, err) : NULL;
    int status = be == NULL ? -1 : 0;
    if (be != NULL) {
        Plan plan = plan_make(model, config, schedule, be);
        status = plan_check_machine(&plan, config, program, device_has_gpus(config, config_world(config)), err);
        plan_free(&plan);
        be->destroy(be);
    }
    schedule_free(schedule);
    if (status != 0 || check_checkpoints_(config, ask, err) != 0) return -1;
    if (!run_trains(ask) && ask->resume == NULL && config->checkpoint.init_from[0] == '\0')
        return error_set(err, EXIT_USAGE,
                         "--%s: no model is given; give --resume DIR with a run's checkpoints, or "
                         "-o checkpoint.init_from=DIR with a model saved by transformers",
                         ask->validate ? "validate" : "generate");
    // Opens and closes all data sets, so that a wrong path is reported once, before ranks start.
    RunData data = {0};
    status = run_open_data(config, ask, NULL, &data, err);
    run_close_data(&data);
    if (status == 0 && (ask->generate != NULL || (run_trains(ask) && config->sample.every > 0)))
        status = run_sample_check(config, ask->generate, err);
    return status;
}

// Prepares the search for the slowest rank, with the plan's times of every rank.
static void create_slowest_(Run *run) {
    int world = world_size(run->world), t = (int)run->config->parallel.tensor;
    Config known = *run->config;
    Hardware hardware;
    PlanCosts costs;
    Error unknown = {0};
    if (known.hardware.peak_tflops == 0.0) known.hardware.peak_tflops = run->be->peak_tflops;
    hardware_describe(&hardware, &known, run->be->device);
    TimeSource source = {.hardware = &hardware, .model = run->model};
    bool planned = plan_costs_make(&costs, &known, run->schedule, &run->plan, &source, &unknown) == 0;
    run->slowest = slowest_create(world);
    for (int r = 0; r < world; r++) {
        Coordinates at = topology_coordinates(&run->config->parallel, r);
        const StageTime *time = planned ? &costs.stage[at.stage] : NULL;
        if (planned) run->slowest->planned[r] = (RankSeconds){{time->forward, time->backward}};
        run->slowest->peers[r] = at.stage * t + at.tensor;
    }
    if (planned) plan_costs_free(&costs);
}

// Makes the plan and the list of ranks. Checks them on every host, then prints them once.
static int create_settle_(Run *run, Error *err) {
    const Config *config = run->config;
    const WorldPlace *place = world_place(run->world);
    Roster *roster = &run->roster;
    Backend *be = run->be;
    run->plan = plan_make(run->model, config, run->schedule, be);
    // Rank 0 reports for all ranks: device_open ensures that all use the same kind of device.
    if (run->device.about[0] != '\0') log_status(&run->all, "%s", run->device.about);
    if (be->note[0] != '\0') log_line(&run->all, "%s", be->note);
    if (roster_make(roster, run->world, be->device, err) != 0) return -1;
    double versions[] = {(double)be->library, -(double)be->library};
    if (world_max(run->world, versions, 2, err) != 0) return -1;
    if (versions[0] != -versions[1])
        log_line(&run->all,
                 "the ranks have cuBLAS %.0f to %.0f, which may sum in different orders; install one version on all "
                 "hosts",
                 -versions[1], versions[0]);
    // Before any rank allocates, check that the planned memory of all ranks fits into this host and the GPU's free
    // memory: only now is the use by other programs known. Ranks that share a GPU find out only when they allocate
    // whether its memory suffices.
    Machine machine = machine_look(run->device.cuda);
    int64_t of_stage[CONFIG_MAX_STAGES], planned = memory_total(&run->plan.stage[run->at.stage].memory);
    Error why = {0};
    roster_count(roster, &config->parallel, place->node, of_stage);
    if (run->device.cuda) machine.gpu_bytes = be->memory_size / run->device.ranks_on_gpu;
    int status = plan_check_fit(&run->plan, config, run->log->program, &machine, of_stage, err);
    if (status == 0 && be->check_free != NULL && be->check_free(be, planned - memory_total(&be->held), &why) != 0)
        status = error_set(err, why.code, "rank %d, stage %d: %.900s", world_rank(run->world), run->at.stage, why.text);
    if (fail_together_(run->world, status, err) != 0) return -1;

    if (world_rank(run->world) > 0) return 0;
    bool quiet = run->log->level == LOG_QUIET;
    if (!quiet) plan_print(&run->plan, config, run->schedule, stderr);
    if (!quiet && roster->count > 1) roster_print(roster, &config->parallel, stderr);
    int pairs, apart = roster_pairs_apart(roster, &config->parallel, &pairs);
    if (apart > 0 && config->schedule.evict_to == EVICT_TO_PEER && plan_evictions(run->schedule) > 0)
        log_line(&run->all,
                 "%d of %d pairs of stages span two hosts, so evicted bundles cross the network; use "
                 "parallel.placement adjacent, and hosts with room for 2 * tensor ranks, to keep pairs on one host",
                 apart, pairs);
    if (roster->count > 1 && !run->schedule->forward_only) create_slowest_(run);
    log_detail(&run->all, "found: %s; rank 0 of %d on %s, %d of them there", place->library, roster->count, place->host,
               place->local_size);
    log_detail(&run->all, "chosen: device %s", be->device);
    log_detail(&run->all, "chosen: %s", be->kernels);
    log_detail(&run->all, "chosen: messages by %s",
               roster->count == 1   ? "none, one rank"
               : !run->device.cuda  ? "MPI, between buffers in host memory"
               : run->device.shared ? "MPI, through buffers in host memory, since ranks share a GPU"
                                    : "NCCL, between buffers on the GPUs");
    return 0;
}

// Allocates the stage and everything that works on it. Logs how collectives over tensor ranks and evicted bundles are
// transferred.
static int create_stage_(Run *run, Error *err) {
    const Config *config = run->config;
    run->validation = schedule_forward_like(run->schedule, (int)config_microbatches(config));
    if (stage_create(&run->stage, run->model, config, run->schedule, run->be, run->at.stage, run->tensor,
                     run->at.replica, err) != 0)
        return -1;
    if (run->device.cuda && !run->device.shared)
        run->be->moving = counted_moves(gpu_by_name(run->be->device), config, &run->stage.at);
    stage_use_context(&run->stage, run->context);
    run->stage.pass.experts = run->experts;
    if (config->log.experts)
        run->stage.copies = xcalloc((size_t)(config->model.layers * config->model.experts), sizeof(double));
    EngineGroups groups = {run->lane, run->pair};
    SlotCounts slots = plan_slots(&run->plan.stage[run->at.stage]);
    run->engine = engine_create(&run->stage, run->schedule, &slots, &groups, run->status_page, err);
    if (run->engine == NULL) return -1;
    OptimizerGroups meeting = {run->world, run->tensor, run->data, run->tied, run->same_experts};
    run->optimizer = optimizer_create(&run->stage, &meeting);
    batch_create(&run->batch, &run->stage, run->at.replica);
    run->batch.end_of_text = run->sets.end_of_text;

    const char *why = run->pair == NULL ? "" : comm_pushed_why(run->pair);
    bool speaks = run->at.tensor == 0 && run->at.replica == 0; // one rank logs for its stage
    if (speaks && why[0] != '\0')
        log_line(run->log,
                 "stage %d sends evicted bundles as messages, because it cannot copy them to its partner's memory: %s",
                 run->at.stage, why);
    if (speaks && run->tensor != NULL && run->tensor->why[0] != '\0')
        log_line(run->log,
                 "stage %d gathers and sums over tensor ranks by NCCL, which occupies multiprocessors, because it "
                 "cannot use copies: %s",
                 run->at.stage, run->tensor->why);
    bool mapped = run->tensor != NULL && run->tensor->use_memory != NULL, registered = run->stage.registered;
    if (mapped && run->stage.at.shape.copies)
        log_detail(&run->all, "chosen: gathers and sums over tensor ranks by %s",
                   registered ? "copies into the memory of the other ranks" : "NCCL");
    else if (mapped)
        log_detail(&run->all, "chosen: collectives over tensor ranks work in memory that is %sregistered with NCCL",
                   registered ? "" : "not ");
    const StageSchedule *list = &run->schedule->stage[run->at.stage];
    const Action *evict = NULL;
    int direct = 0, far = 0;
    for (int64_t i = 0; i < list->count; i++)
        if (list->actions[i].kind == ACTION_EVICT) evict = &list->actions[i];
    if (!speaks || evict == NULL) return 0;
    if (run->pair != NULL) comm_pushed_ways(run->pair, &direct, &far);
    log_detail(run->log, "chosen: evicted bundles go %s",
               evict->peer == SCHEDULE_HOST ? "to host memory, copied by this stage"
               : direct > 0                 ? "into the partner's memory, copied by this stage alone"
                                            : "to the partner as messages, which it must receive");
    return 0;
}

// Rehearses a step before the first message, so that no real step runs a kernel for the first time (engine_rehearse).
// The values of the weights, not loaded yet, do not matter. Afterwards all libraries have their memory. Checks
// that some memory is left for later growth, since a driver without free memory fails without a clear message, and
// compares the memory in use outside the plan with the plan's reserve.
static int create_rehearse_(Run *run, Details *details, Error *err) {
    enum { SPARE_BYTES = 200 << 20 };
    Backend *be = run->be;
    if (!be->loads_late) return 0;
    if (engine_rehearse(run->engine, run->schedule, err) != 0) return -1;
    if (!run->schedule->forward_only && optimizer_rehearse(run->optimizer, err) != 0) return -1;
    if (be->held_by_others != NULL && !run->device.shared) {
        if (be->check_free(be, SPARE_BYTES, err) != 0) return -1;
        double most[2] = {(double)be->held_by_others(be) / GIB, be->streams};
        if (world_max(run->world, most, 2, err) != 0) return -1;
        double others = run->outside_gib = most[0], reserve = run->config->hardware.reserve_gib;
        const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        if (queues != NULL && most[1] > atoi(queues))
            log_line(&run->all,
                     "a rank has %.0f streams, NCCL's included, which share CUDA's %s hardware queues "
                     "(CUDA_DEVICE_MAX_CONNECTIONS, up to 32): a stream that waits can hold up another one",
                     most[1], queues);
        log_detail(&run->all, "found: context, libraries, NCCL and other programs hold up to %.2f GiB of a GPU",
                   others);
        if (others > reserve)
            log_line(&run->all,
                     "context, libraries, NCCL and other programs hold up to %.2f GiB of a GPU, more than "
                     "hardware.reserve_gib, %.4g; plan with -o hardware.reserve_gib=%.1f",
                     others, reserve, others + 0.1);
    }
    details_phase(details, "one forward, backward and update rehearsed on the device");
    return 0;
}

// Loads a checkpoint to resume from, else weights to start from. A run that does not train logs nothing about training,
// and fails if it would start from initial weights.
static int create_load_(Run *run, const Options *ask, Error *err) {
    const char *resume = ask->resume, *model = run->config->checkpoint.init_from;
    Log log = *run->log;
    if (!run_trains(ask)) log.level = LOG_QUIET;
    if (resume != NULL || model[0] != '\0') status_page_set_action(run->status_page, "loading");
    if (resume != NULL) {
        if (checkpoint_resume(&run->from, resume, ask->resume_if_any != NULL, &run->stage, run->world, &log, err) != 0)
            return -1;
        batch_seek(&run->batch, run->from.state.step, run->from.state.samples);
        run->step_guard = run->from.state.step_guard;
    }
    bool found = run->from.found;
    if (!found && model[0] != '\0' && checkpoint_init_from(model, &run->stage, run->world, &log, err) != 0) return -1;
    if ((found || model[0] != '\0') && optimizer_gather(run->optimizer, err) != 0) return -1;
    if (run_trains(ask)) return 0;
    if (resume != NULL && !found && model[0] == '\0')
        return error_on_all(err, EXIT_USAGE, "%s %s: there is no checkpoint in it; name one that a run has saved",
                            resume_option(ask->resume_if_any != NULL), resume);
    if (found) log_status(&run->all, "weights of step %lld from %s", (long long)run->from.state.step, resume);
    return ask->generate != NULL ? run_sampler_create(run, ask->generate, err) : 0;
}

// Returns whether to keep waiting for the reader of stdout. Only a run of one rank uses this; with several ranks, the
// parent notices that the reader has paused.
static bool waits_for_reader_(void *context) {
    Run *run = context;
    status_page_progress(run->status_page);
    return !run_stop_requested();
}

// Checks the checkpoints on rank 0, for all ranks. Collective.
static int check_checkpoints_together_(Run *run, const Options *ask, Error *err) {
    int status = world_rank(run->world) == 0 ? check_checkpoints_(run->config, ask, err) : 0;
    return fail_together_(run->world, status, err);
}

// Refuses, on rank 0, to resume if the data or train.seed differ from the checkpoint's, unless checkpoint.changed is
// accept: samples would silently be repeated or skipped. Stores the data's identity for this run's own checkpoints.
static int create_identify_data_(Run *run, Error *err) {
    ResumePoint *from = &run->from;
    const Config *config = run->config;
    uint64_t data;
    if (blend_identify(run->sets.train, &data, err) != 0) return -1;
    bool other_data = from->found && from->state.data != 0 && from->state.data != data;
    bool other_seed = from->found && from->state.seed != config->train.seed;
    from->state.data = data;
    if (config->checkpoint.changed == CHANGED_ACCEPT || (!other_data && !other_seed)) return 0;
    if (other_data)
        return config_error(
            config, "data.train", err,
            "%s was trained on different data (shards were added, removed, reordered or written again, or a blend had "
            "other weights); restore them, or set checkpoint.changed: accept to continue with other samples",
            from->dir);
    return config_error(config, "train.seed", err,
                        "%s was trained with seed %lld; set this seed, or set checkpoint.changed: accept to continue "
                        "with the samples in another order",
                        from->dir, (long long)from->state.seed);
}

static void add_value_(char *list, size_t size, const JsonValue *value) {
    if (value->type == JSON_NUMBER) text_add(list, size, "%.15g", value->number);
    else if (value->type == JSON_BOOL) text_add(list, size, "%s", value->truth ? "true" : "false");
    else if (value->type == JSON_TEXT) text_add(list, size, "%s", value->text);
    else {
        for (const JsonValue *item = value->first; item != NULL; item = item->next) {
            text_add(list, size, "%s", item == value->first ? "[" : ", ");
            add_value_(list, size, item);
        }
        text_add(list, size, "]");
    }
}

// Compares the configuration in the checkpoint's training.json with this run's; both are JSON, so no key is listed
// here. Logs one line with the keys that differ, except in sections that change neither model nor sums, one if other
// kernels compute the products, and one if a decayed learning rate rises again; nothing of keys that training.json
// lacks.
static void tell_resumed_(const Run *run) {
    const ResumePoint *from = &run->from;
    const TrainConfig *train = &run->config->train;
    const Log *log = &run->all;
    char path[CHECKPOINT_PATH], list[1000] = "", products[17] = "", *text;
    size_t length;
    Json saved = {0}, own;
    FILE *file = xmemstream(&text, &length);
    config_write_json(run->config, file);
    xmemstream_close(file);
    json_parse(&own, text, (int64_t)length, "", NULL);
    if (file_path_within(path, from->dir, CHECKPOINT_TRAINING, NULL) == 0) json_read_file(&saved, path, NULL);
    const JsonValue *config = json_find(saved.root, "config"), *then = json_find(config, "train");
    for (const JsonValue *section = own.root->first; section != NULL; section = section->next)
        for (const JsonValue *key = section->first; key != NULL; key = key->next) {
            char old[1 << 14] = "", new[1 << 14] = "";
            const JsonValue *before = json_find(json_find(config, section->key), key->key);
            if (before == NULL || strstr("checkpoint hardware log sample", section->key)) continue;
            add_value_(old, sizeof old, before), add_value_(new, sizeof new, key);
            if (strcmp(old, new) != 0)
                text_add(list, sizeof list, "%s %s.%s %s -> %s", list[0] != '\0' ? "," : "", section->key, key->key,
                         old, new);
        }
    if (list[0] != '\0') log_status(log, "settings that differ from the checkpoint's (old -> new):%s", list);
    if (run->products.checksum != 0)
        snprintf(products, sizeof products, "%016llx", (unsigned long long)run->products.checksum);
    if (strcmp(json_text(saved.root, "products", ""), products) != 0)
        log_status(log, "matrix products use different kernels than before (hardware.products_file), so sums differ in "
                        "the last bits");
    const JsonValue *lr = json_find(saved.root, "lr"), *highest = json_find(then, "lr");
    double next = optimizer_lr(train, from->state.step + 1);
    bool warm = from->state.step < train->warmup_steps || from->state.step >= train->steps;
    bool decayed = lr != NULL && highest != NULL && lr->number < 0.99 * highest->number;
    if (decayed && !warm && next > 1.01 * lr->number)
        log_status(log,
                   "the learning rate had decayed to %.3g at step %lld and rises to %.3g; to train on without the "
                   "decay, resume from a checkpoint before it",
                   lr->number, (long long)from->state.step, next);
    json_free(&saved);
    json_free(&own);
    free(text);
}

// Opens the additional parts of a training run: checkpoints, samples and metrics.
static int create_training_(Run *run, const Options *ask, Error *err) {
    const Config *config = run->config;
    // With --resume-if-any, checkpoint.dir may be new.
    if (checkpoint_lock(&run->checkpoint, config, run->world, ask->resume_if_any != NULL, err) != 0) return -1;
    // Check again: the checkpoints may have changed while this start waited for the lock.
    if (check_checkpoints_together_(run, ask, err) != 0) return -1;
    if (create_load_(run, ask, err) != 0) return -1;
    int identified = world_rank(run->world) == 0 ? create_identify_data_(run, err) : 0;
    if (fail_together_(run->world, identified, err) != 0) return -1;
    if (run->from.found && world_rank(run->world) == 0) tell_resumed_(run);
    if (checkpoint_create(run->checkpoint, &run->stage, &run->from, run->log, err) != 0) return -1;
    if (config->sample.every > 0 && run_sampler_create(run, NULL, err) != 0) return -1;
    if (world_rank(run->world) > 0) return 0;
    MetricsSetup setup = {.flops_per_token_full = model_flops_per_token(config, true),
                          .flops_per_token_causal = model_flops_per_token(config, false),
                          .peak_tflops = run->be->peak_tflops,
                          .world = config_world(config),
                          .measure = run->peak_cores > 0.0 ? measure_peak_ : NULL,
                          .context = run,
                          .outside_gib = run->outside_gib,
                          .say_all = run->log->level == LOG_VERBOSE,
                          .waits = world_size(run->world) == 1 ? waits_for_reader_ : NULL};
    run->metrics = metrics_open(config, &setup, run->from.found ? run->from.state.step : -1, err);
    if (run->metrics == NULL) return -1;
    Error trouble = {0};
    if (metrics_run(run->metrics, run->plan.parameters, &trouble) == 0) return 0;
    if (!run->from.found) return *err = trouble, -1;
    // A resumed run continues without this line, as it would without a step's line: a full disk must not end a restart.
    run_tell_metrics(run, run->from.state.step, &trouble);
    return 0;
}

// The order matters. Files are opened before the device, so that a wrong path is reported without starting GPUs. Memory
// is checked on every host before any rank allocates. Checkpoints are loaded last, into memory that is known to fit.
int run_create(Run *run, const Config *config, const Model *model, const Options *ask, World *world,
               StatusPage *status_page, Log *log, Error *err) {
    *run = (Run){.config = config, .model = model, .world = world, .status_page = status_page, .log = log};
    bool trains = run_trains(ask);
    char cut[CONFIG_CUT];
    int64_t want = config_world(config), have = world_size(world);
    if (want != have)
        return error_on_all(
            err, EXIT_USAGE,
            "%s: this job has %lld rank%s, the configuration needs %lld (%s); start as many, or change parallel.*",
            config->path, (long long)have, have == 1 ? "" : "s", (long long)want, config_cut_text(config, cut));
    run->at = topology_coordinates(&config->parallel, world_rank(world));
    run->all = world_log(world, log);
    log->stage = run->at.stage;
    status_page_set_stage(status_page, run->at.stage);
    status_page_set_action(status_page, "start-up");
    Details details = details_begin(run->all);
    run->schedule = run_schedule_(config, ask, err);
    if (run->schedule == NULL || (trains && plan_ramp(config, run->schedule, run->ramp, err) != 0)) return -1;
    RunGroup groups[RUN_MOST_GROUPS];
    int count = list_groups_(run, groups);
    for (int i = 0; i < count; i++) {
        *groups[i].comm = world_split(world, groups[i].name, groups[i].color, groups[i].key, err);
        if (*groups[i].comm == NULL && groups[i].color >= 0) return -1;
    }
    details_phase(&details, "groups of ranks");
    if (check_checkpoints_together_(run, ask, err) != 0) return -1;
    if (fail_together_(world, run_open_data(config, ask, world, &run->sets, err), err) != 0) return -1;
    int64_t left_out = run->sets.hellaswag == NULL ? 0 : run->sets.hellaswag->left_out;
    if (left_out > 0)
        log_line(&run->all,
                 "data.hellaswag: %lld of %lld examples are left out: context and completion have more than "
                 "seq_len + 1 = %lld tokens",
                 (long long)left_out, (long long)(left_out + run->sets.hellaswag->examples),
                 (long long)config->model.seq_len + 1);
    if (trains) blend_tell(run->sets.train, config_samples(config, 0, config->train.steps), &run->all);
    details_phase(&details, "data opened");
    double cores = 1.0;
    if (affinity_share(world, &cores, err) != 0) return -1;
    // One thread per core of this rank's share; 1e-6 absorbs rounding errors, as in 3 * (1 / 3.0). 0 leaves the choice
    // to OMP_NUM_THREADS.
    int threads = getenv("OMP_NUM_THREADS") != NULL ? 0 : cores < 1.0 ? 1 : (int)(cores + 1e-6);
    run->be = device_open(&run->device, config, world, threads, err);
    if (run->be != NULL && run->device.cuda && have > 1 && affinity_allowed() < 2)
        log_line(log, "this rank may use only one core, for its own thread and those of CUDA, NCCL and MPI; give it "
                      "more (mpirun --bind-to none, srun --cpus-per-task)");
    if (run->be == NULL || convert_groups_(run, groups, count, err) != 0) return -1;
    run->products.measures = ask->tune;
    run->be->products = &run->products;
    if (!ask->tune && config->hardware.products_file[0] != '\0' && run_read_products(run, err) != 0) return -1;
    details_phase(&details, "device opened");
    if (find_peak_(run, cores, err) != 0) return -1;
    details_phase(&details, "peak known");
    if (create_settle_(run, err) != 0) return -1;
    details_phase(&details, "schedule, plan and memory checked");
    if (ask->check) return 0;
    if (create_stage_(run, err) != 0) return -1;
    details_phase(&details, "memory allocated, weights drawn");
    if (ask->tune) run_listen(run);
    if (ask->tune && batch_train(&run->batch, run->sets.train, 1, err) != 0) return -1; // measure on real tokens
    if (create_rehearse_(run, &details, err) != 0) return -1;
    if (ask->tune) return 0;
    if ((trains ? create_training_(run, ask, err) : create_load_(run, ask, err)) != 0) return -1;
    details_phase(&details, "checkpoint and metrics");
    log_detail(&run->all, "start-up: ready to train, %.1f ms in all", 1e3 * (details.since - details.began));
    return 0;
}

void run_destroy(Run *run) {
    RunGroup groups[RUN_MOST_GROUPS];
    int count = run->schedule != NULL ? list_groups_(run, groups) : 0;
    run_sampler_destroy(run);
    checkpoint_destroy(run->checkpoint);
    metrics_close(run->metrics);
    batch_destroy(&run->batch);
    optimizer_destroy(run->optimizer);
    engine_destroy(run->engine);
    free(run->stage.copies);
    stage_destroy(&run->stage);
    plan_free(&run->plan);
    schedule_free(run->validation);
    plan_ramp_free(run->ramp);
    slowest_destroy(run->slowest);
    roster_free(&run->roster);
    schedule_free(run->schedule);
    // Groups for device memory own streams of the device, so they are destroyed before the device.
    for (int i = count - 1; i >= 0; i--)
        if (*groups[i].comm != NULL) (*groups[i].comm)->destroy(*groups[i].comm);
    if (run->be != NULL) run->be->destroy(run->be);
    products_free(&run->products);
    run_close_data(&run->sets);
    memset(run, 0, sizeof *run);
}
