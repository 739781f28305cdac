// Measures profiles. On a CPU every measurement runs in its own process, so it starts without the memory and threads of
// earlier measurements. Running out of memory ends only that process. Identical processes load the other cores.
#include "emulate.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"
#include "ranks/affinity.h"
#include "planner.h"
#include "profile.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MICROBATCHES = 4, // two complete and two split backwards
    MOST_RUNS = 32,
};
static const double ENOUGH_SECONDS = 0.4;

typedef struct Session {
    Profile *profile;
    const Planner *planner;
    const Log *log;
    double norm, optimizer;
    int64_t optimized; // number of cases summed in `norm` and `optimizer`
    // The case that is measured: one stage at one micro-batch size and attention mode.
    Config *config; // the run's, with this size and mode, and MICROBATCHES microbatches
    Schedule *list;
    Plan plan;
    int stage;
} Session;

typedef struct Result {
    bool done;
    ProfileStage stage;
    double norm, optimizer; // seconds per element
} Result;

// Measures the seconds per element of the gradient norm and of AdamW, over the elements that this rank owns.
static void measure_optimizer_(Emulation *e, double *norm, double *adamw) {
    Stage *stage = &e->stage;
    Backend *be = e->be;
    int64_t count = 0, elements = 0;
    AdamwTensor *list = xcalloc((size_t)stage->tensors.count, sizeof *list);
    double *squares = xcalloc((size_t)stage->tensors.count, sizeof *squares), start;
    *norm = *adamw = 0;
    for (int64_t i = 0; i < stage->tensors.count; i++) {
        TensorPiece piece = tensors_piece(&stage->tensors, i);
        const Tensor *tensor = &stage->tensors.tensors[i];
        if (tensor->alias || tensor->spec->buffer || piece.begin >= piece.end) continue;
        list[count++] = (AdamwTensor){.weight = piece.weight,
                                      .master = piece.master,
                                      .m = piece.m,
                                      .v = piece.v,
                                      .gradient = piece.gradient,
                                      .count = piece.end - piece.begin,
                                      .written = tensor->written};
        elements += piece.end - piece.begin;
    }
    // A learning rate of zero leaves the weights unchanged. Only the last pass counts: the first touches new memory.
    AdamwStep step = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1, .gradient_scale = 1, .step = 1};
    for (int pass = 0; pass < 3 && elements > 0; pass++) {
        start = clock_seconds();
        be->squared_norms(be, squares, list, count);
        *norm = (clock_seconds() - start) / (double)elements;
        start = clock_seconds();
        be->adamw(be, list, count, &step);
        be->synchronize(be, NULL);
        *adamw = (clock_seconds() - start) / (double)elements;
    }
    free_all(list, squares);
}

static int measure_case_(const Session *at, bool forever, Result *result, Error *err) {
    double seconds[TIMED_ACTIONS][MOST_RUNS];
    Emulation emulation = {0};
    EmulationTimes times;
    Backend *be = emulation_backend(at->planner->config, err); // the threads of a rank of the run
    if (be == NULL) return -1;
    int status = emulation_create(&emulation, at->config, at->planner->model, at->list, &at->plan.stage[at->stage],
                                  &at->planner->hardware, be, err);
    if (status == 0) status = engine_rehearse(emulation.engine, at->list, err);
    for (int round = 0; status == 0 && (round == 0 || forever); round++) {
        int runs = -1; // run -1 is a warm-up
        double start = clock_seconds();
        while (status == 0 && runs < MOST_RUNS && (runs < 1 || clock_seconds() - start < ENOUGH_SECONDS)) {
            status = emulation_run(&emulation, at->list, &times, err);
            if (runs < 0) start = clock_seconds();
            for (int k = 0; k < TIMED_ACTIONS && runs >= 0; k++) seconds[k][runs] = times.seconds[k];
            runs++;
        }
        if (status != 0) break;
        MemoryBytes peak = emulation_peak(&emulation);
        for (int k = 0; k < TIMED_ACTIONS; k++) result->stage.seconds[k] = emulation_median(seconds[k], runs);
        result->stage.peak_bytes = memory_total(&peak);
        measure_optimizer_(&emulation, &result->norm, &result->optimizer);
        result->done = true;
    }
    emulation_destroy(&emulation);
    be->destroy(be);
    return status;
}

// ---------------------------------------------------------------- processes

static pid_t fork_(const Session *at, int result_to) {
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Error err = {0};
    Result result = {0};
    if (measure_case_(at, result_to < 0, &result, &err) != 0 && result_to >= 0) log_line(at->log, "%s", err.text);
    bool told = result_to < 0 || write(result_to, &result, sizeof result) == sizeof result;
    _exit(told ? 0 : 1);
}

// Returns the number of ranks that compute at the same time on this host; 1 on a GPU.
static int at_a_time_(const Session *at) {
    double share = at->planner->hardware.cores_share, world = (double)config_world(at->config);
    return !at->planner->hardware.cpu ? 1 : (int)(share < world ? share : world);
}

// Measures a case. A stage that fails, for example because it does not fit in memory, is left out.
static int run_case_(const Session *at, Result *result, Error *err) {
    enum { MOST_LOADS = 256 };
    pid_t loads[MOST_LOADS];
    int ends[2], others = at_a_time_(at) - 1;
    Error failed = {0};
    memset(result, 0, sizeof *result);
    if (!at->planner->hardware.cpu) { // in this process, because a GPU's driver does not survive a fork
        if (measure_case_(at, false, result, &failed) == 0) return 0;
        log_line(at->log, "%s", failed.text);
        memset(result, 0, sizeof *result);
        return 0;
    }
    if (pipe(ends) != 0) return error_set(err, EXIT_FAILED, "cannot create a pipe; raise ulimit -n");
    if (others > MOST_LOADS) others = MOST_LOADS;
    for (int i = 0; i < others; i++) loads[i] = fork_(at, -1);
    pid_t measures = fork_(at, ends[1]);
    close(ends[1]);
    bool told = measures > 0 && read(ends[0], result, sizeof *result) == sizeof *result;
    if (measures > 0) waitpid(measures, NULL, 0);
    close(ends[0]);
    for (int i = 0; i < others; i++) {
        if (loads[i] <= 0) continue;
        kill(loads[i], SIGKILL);
        waitpid(loads[i], NULL, 0);
    }
    if (measures < 0) return error_set(err, EXIT_FAILED, "cannot fork to measure");
    if (!told || !result->done) memset(result, 0, sizeof *result);
    return 0;
}

// ---------------------------------------------------------------- cases

// Returns a schedule in which only `stage` has actions: forwards and backwards in turn, which need one slot. Every
// second backward is split. NULL with err.
static Schedule *list_of_one_(int stages, int stage, int microbatches, Error *err) {
    Schedule *one = schedule_1f1b(1, microbatches, err);
    if (one == NULL) return NULL;
    StageSchedule *all = xcalloc((size_t)stages, sizeof *all), *list = &all[stage];
    *list = one->stage[0];
    list->actions = xrealloc(list->actions, 3 * (size_t)microbatches * sizeof *list->actions);
    list->count = 0;
    for (int i = 0; i < microbatches; i++) { // F0 B0 F1 I1 W1 F2 B2 ...
        ActionKind kinds[] = {ACTION_FORWARD, i % 2 == 0 ? ACTION_BACKWARD : ACTION_INPUT, ACTION_WEIGHT};
        for (int k = 0; k < 2 + i % 2; k++)
            list->actions[list->count++] = (Action){.kind = kinds[k], .microbatch = i, .peer = SCHEDULE_NO_PEER};
    }
    one->split = microbatches > 1;
    free(one->stage);
    one->stage = all;
    one->stages = stages;
    return one;
}

static int measure_stage_(Session *session, int stage, Error *err) {
    const Planner *planner = session->planner;
    const Hardware *hardware = &planner->hardware;
    const Config *config = session->config;
    const char *mode = config_word("attention.mode", config->attention.mode);
    long long micro_batch = (long long)config->schedule.micro_batch;
    int stages = (int)config->parallel.pipeline;
    Result result = {0};
    session->stage = stage;
    session->list = list_of_one_(stages, stage, MICROBATCHES, err);
    if (session->list == NULL) return -1;
    session->plan = plan_make(planner->model, config, session->list, planner->be);
    const PlanStage *planned = &session->plan.stage[stage];
    double bytes = (double)memory_total(&planned->memory), reserve = config->hardware.reserve_gib;
    bool fits = plan_lacks(bytes, (double)hardware->memory_bytes, reserve) <= 0 &&
                plan_lacks(bytes * at_a_time_(session), (double)hardware->host_bytes, reserve) <= 0;
    int status = fits ? run_case_(session, &result, err) : 0;
    if (!fits)
        log_status(session->log, "%s attention, micro-batch %lld, stage %d of %d: not measured, it does not fit", mode,
                   micro_batch, stage, stages);
    if (status == 0 && result.done) {
        ProfileStage *took = &result.stage;
        took->attention = config->attention.mode;
        took->softmax = config->attention.softmax;
        took->micro_batch = config->schedule.micro_batch;
        took->layers = planned->at.layers;
        took->first = planned->at.first;
        took->last = planned->at.last;
        session->norm += result.norm;
        session->optimizer += result.optimizer;
        session->optimized++;
        log_status(session->log,
                   "%s attention, micro-batch %lld, stage %d of %d: forward %.2f ms, backward %.2f ms, "
                   "split %.2f + %.2f ms",
                   mode, micro_batch, stage, stages, 1e3 * took->seconds[TIMED_FORWARD],
                   1e3 * took->seconds[TIMED_BACKWARD], 1e3 * took->seconds[TIMED_INPUT],
                   1e3 * took->seconds[TIMED_WEIGHT]);
        xpush(session->profile->stages, session->profile->count, *took);
    }
    plan_free(&session->plan);
    schedule_free(session->list);
    return status;
}

// Measures the peak in a forked process: threads started in this one would be missing in every process forked later.
static double host_peak_(int precision) {
    int ends[2];
    double peak = 0;
    if (pipe(ends) != 0) return 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        peak = backend_cpu_measure_peak(precision, affinity_allowed());
        _exit(write(ends[1], &peak, sizeof peak) == sizeof peak ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &peak, sizeof peak) != sizeof peak) peak = 0;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return peak;
}

static int measure_size_(Session *session, int mode, int64_t b, Error *err) {
    Config *config = session->config;
    *config = *session->planner->config;
    config->schedule.micro_batch = b;
    config->schedule.bpipe = BPIPE_OFF;
    config->train.global_batch = MICROBATCHES * b * config->parallel.data;
    config_set_attention(config, mode);
    config->schedule.recompute_given = 1;
    config->schedule.recompute_of_stage[0] = 0;
    config->schedule.pointwise_given = 1;
    config->schedule.pointwise_of_stage[0] = RECOMPUTE_NONE;
    int p = (int)config->parallel.pipeline;
    if (config->parallel.layers_count != p)
        config_spread_layers(config, p); // measured with one chunk per stage, whatever the schedule
    if (measure_stage_(session, 0, err) != 0) return -1;
    if (p > 1 && measure_stage_(session, p - 1, err) != 0) return -1;
    // The time of a single layer comes from a stage in the middle, of the run or, if it has none with layers, of three.
    int middle = 1;
    while (middle < p - 2 && config_layers(config, p, middle) == 0) middle++;
    if (p <= 2 || config_layers(config, p, middle) == 0) {
        if (config->model.layers <= 2) return 0;
        config->parallel.pipeline = 3;
        config_spread_layers(config, 3);
        middle = 1;
    }
    return measure_stage_(session, middle, err);
}

// Measures the stages of a configuration (the first, one in the middle, the last) at micro-batch sizes 1, 2, 4, 8 and
// its own, as memory allows, in every attention mode; logs each measurement. On CPUs, as many ranks as can compute
// at once load the cores, as in a run.
int profile_command(const Config *config, const Model *model, const Log *log, Error *err) {
    const char *path = config->hardware.profile;
    if (path[0] == '\0')
        return config_error(config, "hardware.profile", err, "is empty; set it to the file that --profile writes");
    if (config_slices(config) > 1)
        return config_error(config, "schedule.slices", err, "profiles have no times for slices; set it to 1");
    if (config->parallel.context > 1)
        return config_error(config, "parallel.context", err, "profiles have no times for context ranks; set it to 1");
    if (profile_check(path, err) != 0) return -1;
    Profile profile = {0};
    Planner planner = {0};
    Config *plain = xmalloc(2 * sizeof *plain);
    *plain = *config;
    plain->hardware.profile[0] = '\0'; // an earlier profile must not influence this one
    Session session = {.profile = &profile, .planner = &planner, .log = log, .config = plain + 1};
    int64_t own = config->schedule.micro_batch, batch = config->train.global_batch / config->parallel.data;
    // 1. The device, and its figures unless the configuration gives them.
    HardwareConfig *given = &plain->hardware;
    bool cpu = hardware_is_cpu(plain);
    if (cpu && given->peak_tflops == 0)
        given->peak_tflops = host_peak_(plain->train.precision) / (double)config_world(plain);
    Backend *be = emulation_backend(plain, err);
    int status = be == NULL ? -1 : 0;
    if (be != NULL && !cpu && given->peak_tflops == 0) given->peak_tflops = be->peak_tflops;
    if (be != NULL && !cpu && given->memory_gib == 0) given->memory_gib = (double)be->memory_size / GIB;
    if (status == 0) {
        profile = (Profile){.cpu = cpu,
                            .precision = plain->train.precision,
                            .fp8 = plain->train.fp8,
                            .model = plain->model,
                            .tensor = plain->parallel.tensor,
                            .expert = plain->parallel.expert,
                            .sequence = plain->parallel.sequence,
                            .keeps_experts = plain->model.experts > 0,
                            .mask_documents = plain->data.mask_documents != 0};
        snprintf(profile.device, sizeof profile.device, "%s", be->device);
        be->destroy(be);
    }
    if (status == 0) status = planner_create(&planner, plain, model, log, err);
    if (status == 0) profile.peak_tflops = planner.hardware.cost.flops * 1e-12;
    // 2. The measurements.
    for (int mode = 0; mode <= ATTENTION_FLASH && status == 0; mode++) {
        bool among = own <= 8 && (own & (own - 1)) == 0;
        for (int64_t b = 1; b <= 8 && b <= batch && status == 0; b *= 2) status = measure_size_(&session, mode, b, err);
        if (status == 0 && !among) status = measure_size_(&session, mode, own, err);
    }
    if (status == 0 && profile.count == 0)
        status = error_set(err, EXIT_FAILED, "nothing could be measured: no stage fits this device at micro-batch 1");
    // 3. The file.
    profile.norm_seconds = session.norm / (double)session.optimized;
    profile.optimizer_seconds = session.optimizer / (double)session.optimized;
    if (status == 0) status = profile_write(&profile, path, err);
    if (status == 0) log_status(log, "%s: %lld stages measured", path, (long long)profile.count);
    planner_free(&planner);
    profile_free(&profile);
    free(plain);
    return status;
}
