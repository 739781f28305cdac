// Answers what-if questions by planning a changed copy of the configuration. An answer has up to three steps, and later
// steps are skipped if the question does not need them: is it possible, does it fit, how long does a step take?
#include "planner.h"
#include "config/gpus.h"
#include "base/alloc.h"
#include "base/units.h"

#include "backend/attention_scratch.h"
#include "config/config_schema.h"
#include "ranks/affinity.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---------------------------------------------------------------- the device

static int64_t scratch_of_gpu_(Backend *be, const AttentionShape *shape) {
    return attention_scratch_cuda(shape, be->element, be->capability);
}

static void planner_destroy_(Backend *be) { free(be); }

Backend *planner_backend(const Config *config, Error *err) {
    if (hardware_is_cpu(config)) {
        int64_t world = config_world(config);
        int ranks = world > affinity_allowed() ? affinity_allowed() : (int)world;
        return backend_cpu_create(config->train.precision, affinity_threads(ranks), err);
    }
    Backend *be = xcalloc(1, sizeof *be);
    be->precision = config->train.precision;
    be->element = config->train.precision == PRECISION_BF16 ? 2 : 4;
    be->capability = gpu_capability(gpu_row(config->hardware.gpu));
    be->attention_scratch = scratch_of_gpu_;
    be->own_bytes = CUDA_OWN_BYTES;
    be->lent_page = CUDA_LENT_PAGE;
    be->destroy = planner_destroy_;
    return be;
}

// ---------------------------------------------------------------- the profile

int planner_find_profile(Planner *planner, const Config *config, const Log *log, Error *err) {
    const char *path = config->hardware.profile;
    bool named = config->place[config_find("hardware.profile") - config_keys] == CONFIG_OVERRIDE;
    if (path[0] == '\0' || (!named && access(path, F_OK) != 0)) return 0;
    Error damaged = {0};
    char why[256] = "";
    int status = profile_read(&planner->profile, path, &damaged);
    if (status == 0 && profile_differs(&planner->profile, config, planner->hardware.device, why, sizeof why) == NULL) {
        planner->measured = true;
        Hardware *hardware = &planner->hardware;
        if (config->hardware.peak_tflops == 0 && planner->profile.peak_tflops > 0) { // of a rank with cores of its own
            hardware->cost.flops = hardware->peak = planner->profile.peak_tflops * 1e12;
            if (hardware->cpu) hardware->peak *= hardware->cores_share / (double)config_world(config);
        }
        return 0;
    }
    if (named && status != 0) return config_error(config, "hardware.profile", err, "%s", damaged.text);
    if (named)
        return config_error(config, "hardware.profile", err,
                            "%s does not match this run: %s; make a new one with --profile", path, why);
    if (status != 0) log_line(log, "%s; planning from counted times", damaged.text);
    else log_line(log, "%s does not match this run: %s; planning from counted times", path, why);
    return 0;
}

int planner_create(Planner *planner, const Config *config, const Model *model, const Log *log, Error *err) {
    *planner = (Planner){.config = config, .model = model, .be = planner_backend(config, err)};
    if (planner->be == NULL) return -1;
    planner->table = model_table(model, &config->model);
    hardware_describe(&planner->hardware, config, planner->be->device);
    planner->counted = counted_memo();
    planner->parts = memo_create(2 * sizeof(RunLayout));
    planner->held = plan_memo();
    planner->asked = memo_create(3 * sizeof(int64_t));
    // The cache identifies lists by their layout, which does not include the contents of a schedule file.
    if (config->schedule.file[0] == '\0') planner->lists = schedule_cache_create();
    return planner_find_profile(planner, config, log, err);
}

TimeSource planner_source(const Planner *planner) {
    return (TimeSource){.hardware = &planner->hardware,
                        .model = planner->model,
                        .profile = planner->measured ? &planner->profile : NULL,
                        .counted = planner->counted,
                        .lists = planner->lists};
}

void planner_free(Planner *planner) {
    if (planner->be != NULL) planner->be->destroy(planner->be);
    schedule_cache_free(planner->lists);
    memo_free(planner->counted);
    memo_free(planner->parts);
    memo_free(planner->held);
    memo_free(planner->asked);
    table_free(&planner->table);
    profile_free(&planner->profile);
    memset(planner, 0, sizeof *planner);
}

// ---------------------------------------------------------------- schedules

// Returns how many of a configuration's microbatches suffice to time its schedule.
static int64_t planner_microbatches_(const Config *config) {
    int64_t enough = plan_enough_microbatches((int)config->parallel.pipeline), all = config_microbatches(config);
    // Up to this many forwards, simulating the complete schedule is as fast as simulating two extracts.
    enum { SMALL = 16384 };
    bool small = all <= enough || all * config->parallel.pipeline <= SMALL;
    // GPipe keeps a bundle of every microbatch, so a shorter schedule does not show its memory.
    return small || config_schedule_kind(config)->keeps_all ? all : config_fewer_microbatches(config, enough);
}

ScheduleLoan planner_schedule(const Planner *planner, const Config *config, Error *err) {
    return schedule_cache_borrow(planner->lists, config, planner_microbatches_(config), err);
}

// Returns the slot counts of a schedule by its in_flight formula, without building lists. With evictions, lent slots
// and slots on the host are not counted.
static ScheduleLoan count_slots_(const Config *config) {
    const ScheduleKind *kind = config_schedule_kind(config);
    ScheduleSpec spec = config_schedule_spec(config);
    Schedule *counts = schedule_new(kind->name, spec.stages, spec.microbatches);
    int most = config->schedule.bpipe != BPIPE_ON ? INT_MAX
               : config->schedule.slots > 0       ? (int)config->schedule.slots
                                                  : (int)config_min_slots(config);
    for (int s = 0; s < spec.stages; s++) counts->stage[s].own_slots = min_int(kind->in_flight(&spec, s), most);
    counts->slots = counts->stage[0].own_slots;
    counts->split = spec.split;
    return (ScheduleLoan){counts, counts};
}

int planner_enough_for_slots(const ScheduleKind *kind, int stages) {
    return kind->in_flight != NULL ? 2 * stages + 8 : plan_enough_microbatches(stages);
}

// Returns how many microbatches suffice to count the slots of every stage; 0 if a formula counts them.
static int64_t byte_microbatches_(const Planner *planner, const Config *config) {
    const ScheduleKind *kind = config_schedule_kind(config);
    int64_t enough = planner_enough_for_slots(kind, (int)config->parallel.pipeline);
    bool listed = config->schedule.file[0] != '\0' || kind->in_flight == NULL;
    if (!listed && config->schedule.bpipe == BPIPE_OFF) return 0;
    if (listed || !kind->keeps_all) return config_fewer_microbatches(config, enough);
    // More microbatches leave more bundles on the host. They count if ranks share the host's memory.
    return planner->hardware.memory_bytes > 0 ? config_fewer_microbatches(config, enough) : config_microbatches(config);
}

ScheduleLoan planner_borrow(const Planner *planner, const Config *config, Error *err) {
    int64_t microbatches = byte_microbatches_(planner, config);
    if (microbatches == 0) return count_slots_(config);
    return schedule_cache_borrow(planner->lists, config, microbatches, err);
}

// Returns whether the schedule is legal and every batch divides into enough microbatches of this size. If BPipe is on,
// there must be something to evict and enough slots. Required sharding of gradients must be possible.
static bool possible_(const Planner *planner, const Config *config) {
    int64_t p = config->parallel.pipeline, unit = config->schedule.micro_batch * config->parallel.data, batch;
    if (config->parallel.shard_gradients == SHARD_ON && !config_shards_gradients(config)) return false;
    bool cut = plan_schedule_holds(p, config->train.global_batch / unit);
    for (int64_t i = 0; cut && (batch = config_batch(config, i)) > 0; i++)
        cut = batch % unit == 0 && (p == 1 || batch / unit * config_slices(config) >= p);
    cut = cut && config_schedule_legal(config);
    if (!cut || config->schedule.bpipe != BPIPE_ON) return cut;
    if (!plan_can_balance(config)) return false;
    return config->schedule.slots == 0 || config->schedule.slots >= schedule_cache_least_slots(planner->lists, config);
}

// ---------------------------------------------------------------- forecasts

Plan planner_plan(const Planner *planner, const Config *config, const Schedule *schedule) {
    return plan_make_from(&planner->table, config, schedule, planner->be, planner->held);
}

// Fills in whether the plan fits: by the fullest rank, or by all ranks together if only the host's memory is known.
static void take_fit_(const Planner *planner, const Config *config, const Plan *plan, Forecast *forecast) {
    const Hardware *hardware = &planner->hardware;
    forecast->fullest = plan_fullest(plan);
    forecast->peak_bytes = memory_total(&plan->stage[forecast->fullest].memory);
    double reserve = planner->config->hardware.reserve_gib;
    int64_t together = 0, ranks = config_world(config) / plan->stages;
    for (int s = 0; s < plan->stages; s++)
        together += ranks * (memory_total(&plan->stage[s].memory) + plan_host_bytes(&plan->stage[s]));
    forecast->lacks = plan_lacks((double)forecast->peak_bytes, (double)hardware->memory_bytes, reserve);
    forecast->fits = hardware->memory_bytes > 0
                         ? forecast->lacks <= 0
                         : plan_lacks((double)together, (double)hardware->host_bytes, reserve) <= 0;
}

bool planner_never_fits(const Planner *planner, const Config *config) {
    if (config->schedule.file[0] != '\0' || config_schedule_kind(config)->in_flight == NULL ||
        !possible_(planner, config))
        return false;
    Forecast forecast;
    ScheduleLoan loan = count_slots_(config);
    Plan plan = planner_plan(planner, config, loan.schedule);
    take_fit_(planner, config, &plan, &forecast);
    plan_free(&plan);
    schedule_cache_return(&loan);
    return !forecast.fits;
}

static int planner_ask_(const Planner *planner, const Config *config, bool timed, double worth, Forecast *forecast,
                        Error *err) {
    const ScheduleConfig *asked = &config->schedule;
    bool evicts = asked->bpipe == BPIPE_ON;
    int status = 0;
    memset(forecast, 0, sizeof *forecast);
    forecast->layout = layout_of(config);
    if (!possible_(planner, config)) return 0;
    // 1. The slots and evictions of the lists; plan_time needs longer lists than bytes do.
    ScheduleLoan loan = timed ? planner_schedule(planner, config, err) : planner_borrow(planner, config, err);
    if (loan.schedule == NULL) return -1;
    forecast->possible = !evicts || plan_evicts(loan.schedule);
    forecast->slots = loan.schedule->slots;
    if (evicts)
        forecast->load_ahead = asked->load_ahead > 0 ? (int)asked->load_ahead
                                                     : bpipe_load_ahead(loan.schedule, (EvictTarget)asked->evict_to);
    // 2. Bytes.
    Plan plan = planner_plan(planner, config, loan.schedule);
    if (forecast->possible) take_fit_(planner, config, &plan, forecast);
    for (int s = 0; s < plan.stages && forecast->possible; s++)
        forecast->slot_bytes = max_i64(forecast->slot_bytes, plan.stage[s].slot_bytes);
    // 3. Seconds, unless the transfers by themselves take longer than `worth`.
    TimeSource source = planner_source(planner);
    timed = timed && forecast->possible && (planner->measured || planner->hardware.cost.flops != 0);
    if (timed && evicts && isfinite(worth))
        timed = plan_transfer_seconds(config, loan.schedule, &plan, &source) <= worth;
    if (timed) status = plan_time(&forecast->time, config, loan.schedule, &plan, &source, worth, err);
    plan_free(&plan);
    schedule_cache_return(&loan);
    return status;
}

bool planner_split_open(const Config *config) {
    const ScheduleConfig *schedule = &config->schedule;
    return schedule->split_backward == SPLIT_AUTO && schedule->file[0] == '\0' &&
           schedule->name < schedule_kind_count && !config_schedule_kind(config)->splits &&
           config->parallel.pipeline > 1 && config->hardware.device != DEVICE_CPU;
}

// Plans complete backwards and split backwards. gain: the fraction of a step that splitting saves; 0 if that is little.
// The GPU is described only by the keys of `hardware`, so that machines with and without a GPU decide alike.
static int ask_both_(const Planner *planner, const Config *config, bool timed, Forecast both[2], double *gain,
                     Error *err) {
    static const double LEAST = 0.005; // a smaller gain is within the plan's error
    Planner unmeasured = *planner;
    Config decided[2] = {*config, *config};
    Error errors[2] = {{0}};
    int status[2] = {0};
    unmeasured.measured = false;
    decided[0].schedule.split_backward = SPLIT_OFF, decided[1].schedule.split_backward = SPLIT_ON;
    // With a thousand stages, making the lists of one plan takes half a second, so both are made in parallel. If timed,
    // the second simulation waits for the first, whose time bounds it: it stops once it saves too little.
#pragma omp parallel for
    for (int i = 0; i < 2; i++) {
        bool waits = timed && i == 1;
        ScheduleLoan loan = {0};
        if (waits && possible_(planner, &decided[i])) loan = planner_schedule(planner, &decided[i], &errors[i]);
        if (!waits) status[i] = planner_ask_(&unmeasured, &decided[i], timed, INFINITY, &both[i], &errors[i]);
        schedule_cache_return(&loan);
    }
    double worth = both[0].time.known ? (1 - LEAST) * both[0].time.step : INFINITY;
    if (timed) status[1] = planner_ask_(&unmeasured, &decided[1], timed, worth, &both[1], &errors[1]);
    for (int i = 0; i < 2; i++)
        if (status[i] != 0) return error_set(err, errors[i].code, "%s", errors[i].text);
    *gain = both[1].time.known ? 1 - both[1].time.step / both[0].time.step : 0;
    if (*gain <= LEAST) *gain = 0;
    return 0;
}

// If only bytes are wanted and both kinds of backwards give the same answer, nothing is simulated. The forecast is then
// that of split backwards, which take slightly more memory than complete ones.
int planner_forecast_config(const Planner *planner, const Config *config, bool timed, Forecast *forecast, Error *err) {
    if (!planner_split_open(config) || planner->hardware.cpu || config->hardware.peak_tflops <= 0)
        return planner_ask_(planner, config, timed, INFINITY, forecast, err);
    Forecast both[2];
    double gain = 0;
    if (ask_both_(planner, config, timed, both, &gain, err) != 0) return -1;
    bool alike = both[0].possible == both[1].possible && both[0].fits == both[1].fits;
    if (!timed && !alike && ask_both_(planner, config, true, both, &gain, err) != 0) return -1;
    *forecast = both[gain > 0 || (!timed && alike)];
    if (timed && planner->measured) {
        Config decided = *config;
        decided.schedule.split_backward = gain > 0 ? SPLIT_ON : SPLIT_OFF;
        if (planner_ask_(planner, &decided, timed, INFINITY, forecast, err) != 0) return -1;
    }
    forecast->split_gain = gain;
    return 0;
}

int planner_forecast_run(const Planner *planner, Config *config, Forecast *forecast, Error *err) {
    if (planner_forecast_config(planner, config, true, forecast, err) != 0) return -1;
    if (forecast->possible || config->schedule.bpipe != BPIPE_ON) return 0;
    config->schedule.bpipe = BPIPE_OFF;
    return planner_forecast_config(planner, config, true, forecast, err);
}

int planner_forecast_within(const Planner *planner, const Config *config, double worth, Forecast *forecast,
                            Error *err) {
    return planner_ask_(planner, config, true, worth, forecast, err);
}

double planner_theirs(const Planner *planner, const Config *config, double step) {
    Config theirs = *config;
    Forecast forecast;
    Error err = {0};
    if (planner->measured || !hardware_theirs_differs(&planner->hardware, config)) return 0;
    theirs.hardware.trainer = TRAINER_NVIDIA;
    if (planner_forecast_config(planner, &theirs, true, &forecast, &err) != 0 || !forecast.time.known) return 0;
    return forecast.time.step / step;
}

double planner_compared(const Forecast *forecast) {
    static const double LEAST_GAIN = 0.999;
    return forecast->layout.bpipe == BPIPE_ON ? forecast->time.step / LEAST_GAIN : forecast->time.step;
}

static int plainness_(const RunLayout *layout) {
    int plain = schedule_kinds[layout->name].plain ? 0 : layout->name + 1;
    return 2 * plain + (layout->split == SPLIT_ON);
}

static bool recomputes_(const RunLayout *layout) {
    return layout->recompute != 0 || layout->pointwise != RECOMPUTE_NONE;
}

bool planner_prefers(const Forecast *a, const Forecast *b) {
    bool recomputes = recomputes_(&a->layout), evicts = a->layout.bpipe == BPIPE_ON;
    double one = planner_compared(a), other = planner_compared(b);
    if (fabs(one - other) > 1e-9 * other) return one < other;
    if (recomputes != recomputes_(&b->layout)) return !recomputes;
    if (evicts != (b->layout.bpipe == BPIPE_ON)) return !evicts;
    if (a->peak_bytes != b->peak_bytes) return a->peak_bytes < b->peak_bytes;
    return plainness_(&a->layout) < plainness_(&b->layout);
}
