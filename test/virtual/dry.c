// The program's half of a dry run (VIRTUAL_DRY=1): skips the parts of a run that need computed values, and supplies
// virtual time. The linker replaces the program's functions by the __wrap_ functions of the same names; without
// VIRTUAL_DRY these only forward the call.
//
//   - weights are not initialised, and loss and norm, which have no meaning, are written as null;
//   - the step guard finds every step good;
//   - experts are chosen equally often, since no router computes;
//   - options that would save or evaluate the model are refused at the start;
//   - the rank's main thread reads virtual time and sleeps in virtual time; other threads (the supervisor's) keep real
//     time.
#include "program.h"

#include "config/gpus.h"
#include "device/device.h"
#include "engine/step_guard.h"
#include "model/tensors.h"
#include "plan/fits.h"
#include "run/metrics.h"
#include "run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef HAVE_MPI
#include <mpi.h>
#endif

// The library finds both by their names.
__attribute__((visibility("default"))) VirtualDry virtual_dry;
__attribute__((visibility("default"))) VirtualClock virtual_clock;

static bool asked_(void) {
    const char *text = getenv("VIRTUAL_DRY");
    return text != NULL && strcmp(text, "1") == 0;
}

// ---------------------------------------------------------------- time

static const VirtualClock *clock_table(void) { return &virtual_clock; }

#include "naps.h"

// ---------------------------------------------------------------- the device

// Chooses the GPU that the configuration names, or an H100. Computes its costs from the configuration's keys.
static void choose_gpu_(const Config *config) {
    enum { H100_BYTES_LESS = 881852416 }; // than the nominal 80 GiB
    const HardwareConfig *hardware = &config->hardware;
    const Gpu *gpu = hardware->gpu > 0 ? gpu_row(hardware->gpu) : gpu_by_name("H100");
    double peak = hardware->peak_tflops > 0 ? hardware->peak_tflops : gpu_peak(gpu, config->train.precision);
    int capability = hardware->gpu > 0 ? gpu_capability(gpu_row(hardware->gpu)) : 90;
    virtual_dry = (VirtualDry){
        .on = asked_(),
        .memory_bytes = ((int64_t)gpu->memory_gib << 30) - H100_BYTES_LESS,
        .capability = capability,
    };
    snprintf(virtual_dry.gpu, sizeof virtual_dry.gpu, "NVIDIA %s", gpu->name);
    cost_of_gpu(&virtual_dry.cost, config, peak * 1e12);
    virtual_dry.multiprocessors = virtual_dry.cost.multiprocessors;
}

#ifdef HAVE_MPI
static void progress_(void) {
    int some;
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &some, MPI_STATUS_IGNORE);
}
#endif

// All ranks join together, so that no message is sent in real time and received in virtual time.
static void join_(const World *world) {
    virtual_clock.join();
#ifdef HAVE_MPI
    if (world_size(world) == 1) return;
    PMPI_Barrier(MPI_COMM_WORLD);
    virtual_clock.progress_with(progress_);
#endif
}

// The kernels run and the host waits for them, as in a run; then the counts are replaced.
static __typeof__(((Backend *)0)->route_counts) computed_counts_;
static void even_counts_(Backend *be, int64_t *counts, int64_t parts, const int32_t *chosen, int64_t rows,
                         const RouteShape *shape) {
    computed_counts_(be, counts, parts, chosen, rows, shape);
    for (int64_t i = 0; i < parts * shape->experts; i++) {
        int64_t part = i / shape->experts, expert = i % shape->experts;
        int64_t copies = (rows * (part + 1) / parts - rows * part / parts) * shape->chosen;
        counts[i] = copies / shape->experts + (expert < copies % shape->experts);
    }
}

// Products of experts are priced as the loops that they are in.
static __typeof__(((Backend *)0)->experts_forward) experts_forward_;
static __typeof__(((Backend *)0)->experts_backward_input) experts_input_;
static __typeof__(((Backend *)0)->experts_backward_weight) experts_weight_;

static void forward_(Backend *be, void *y, const void *x, const void *w, int64_t stride, const int64_t *first,
                     int64_t experts, int64_t in, int64_t out) {
    virtual_dry.experts = experts;
    experts_forward_(be, y, x, w, stride, first, experts, in, out);
    virtual_dry.experts = 0;
}

static void input_(Backend *be, void *dx, const void *dy, const void *w, int64_t stride, const int64_t *first,
                   int64_t experts, int64_t in, int64_t out) {
    virtual_dry.experts = experts;
    experts_input_(be, dx, dy, w, stride, first, experts, in, out);
    virtual_dry.experts = 0;
}

static void weight_(Backend *be, float *dw, int64_t stride, const void *dy, const void *x, const int64_t *first,
                    int64_t experts, int64_t in, int64_t out) {
    virtual_dry.experts = experts;
    experts_weight_(be, dw, stride, dy, x, first, experts, in, out);
    virtual_dry.experts = 0;
}

static void look_at_experts_(Backend *be) {
    computed_counts_ = be->route_counts, be->route_counts = even_counts_;
    experts_forward_ = be->experts_forward, be->experts_forward = forward_;
    experts_input_ = be->experts_backward_input, be->experts_backward_input = input_;
    experts_weight_ = be->experts_backward_weight, be->experts_backward_weight = weight_;
}

__typeof__(device_open) __real_device_open, __wrap_device_open;
Backend *__wrap_device_open(Device *device, const Config *config, World *world, int threads, Error *err) {
    char why[256];
    if ((asked_() || config->hardware.gpu > 0) && config->hardware.device != DEVICE_CPU) choose_gpu_(config);
    if (asked_() && config->hardware.device != DEVICE_CPU) {
        if (cuda_load(why) != NULL && virtual_clock.join != NULL) join_(world);
    }
    Backend *be = __real_device_open(device, config, world, threads, err);
    if (be != NULL && virtual_dry.on) look_at_experts_(be);
    return be;
}

// ---------------------------------------------------------------- what a run leaves out

// Evicted bundles are never touched, so this machine's memory is no limit: neither the check nor the kernel refuses
// them. Each rank still checks its GPU's memory.
__typeof__(machine_look) __real_machine_look, __wrap_machine_look;
Machine __wrap_machine_look(bool cuda_available) {
    Machine machine = __real_machine_look(cuda_available);
    if (asked_()) machine.free_bytes = 0;
    return machine;
}

__typeof__(mmap) __real_mmap, __wrap_mmap;
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    return __real_mmap(at, bytes, protection, flags | (asked_() ? MAP_NORESERVE : 0), file, offset);
}

__typeof__(plan_check_machine) __real_plan_check_machine, __wrap_plan_check_machine;
int __wrap_plan_check_machine(const Plan *plan, const Config *config, const char *program, bool cuda, Error *err) {
    return asked_() ? 0 : __real_plan_check_machine(plan, config, program, cuda, err);
}

__typeof__(tensors_init) __real_tensors_init, __wrap_tensors_init;
void __wrap_tensors_init(StageTensors *tensors, Backend *be, int64_t seed, int64_t layers, double std) {
    if (!virtual_dry.on) __real_tensors_init(tensors, be, seed, layers, std);
}

__typeof__(step_guard_decide) __real_step_guard_decide, __wrap_step_guard_decide;
StepDecision __wrap_step_guard_decide(StepGuard *state, const TrainConfig *train, double loss, double norm,
                                      double *loss_z, double *norm_z) {
    if (!virtual_dry.on) return __real_step_guard_decide(state, train, loss, norm, loss_z, norm_z);
    *loss_z = *norm_z = NAN;
    return STEP_APPLY;
}

__typeof__(metrics_step) __real_metrics_step, __wrap_metrics_step;
int __wrap_metrics_step(Metrics *metrics, const StepFigures *figures, Error *err) {
    StepFigures without = *figures;
    without.dry = virtual_dry.on;
    if (virtual_dry.on) without.loss = without.norm = without.loss_z = without.norm_z = NAN;
    return __real_metrics_step(metrics, &without, err);
}

__typeof__(metrics_val) __real_metrics_val, __wrap_metrics_val;
int __wrap_metrics_val(Metrics *metrics, int64_t step, double loss, Error *err) {
    return __real_metrics_val(metrics, step, virtual_dry.on ? NAN : loss, err);
}

static int refuse_(const Config *config, const Options *ask, Error *err) {
    const char *what = ask->validate           ? "--validate would print a loss"
                       : ask->generate != NULL ? "--generate would print text"
                       : ask->resume_if_any    ? "--resume-if-any would load weights"
                       : ask->resume != NULL   ? "--resume would load weights"
                                               : NULL;
    err->everywhere = true;
    if (what != NULL) return error_set(err, EXIT_USAGE, "VIRTUAL_DRY=1 computes nothing: %s; leave it out", what);
    if (config->checkpoint.dir[0] != '\0' && config->checkpoint.every > 0)
        return error_set(err, EXIT_USAGE,
                         "VIRTUAL_DRY=1 computes nothing: there are no weights to save; set checkpoint.every=0");
    err->everywhere = false;
    return 0;
}

__typeof__(run_create) __real_run_create, __wrap_run_create;
int __wrap_run_create(Run *run, const Config *config, const Model *model, const Options *ask, World *world,
                      StatusPage *status_page, Log *log, Error *err) {
    if (!asked_()) return __real_run_create(run, config, model, ask, world, status_page, log, err);
    memset(run, 0, sizeof *run);
    if (refuse_(config, ask, err) != 0) return -1;
    return __real_run_create(run, config, model, ask, world, status_page, log, err);
}
