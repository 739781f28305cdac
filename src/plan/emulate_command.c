// --emulate-stage S: runs one stage's list of the configured schedule on this device, and reports the results.
#include "emulate.h"
#include "base/alloc.h"
#include "fits.h"
#include "base/grid.h"
#include "verdict.h"

#include <stdlib.h>
#include <string.h>

// What is emulated, and what it needs.
typedef struct Subject {
    Config config; // with schedule.bpipe resolved
    const Model *model;
    Hardware hardware;
    Backend *be;
    Schedule *schedule;
    Plan plan;
    int stage;
    Emulation emulation;
} Subject;

static int emulate_read_stage_(const char *text, int64_t stages, int *stage, Error *err) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end != text && *end == '\0' && value >= 0 && value < stages) {
        *stage = (int)value;
        return 0;
    }
    return error_set(err, EXIT_USAGE, "--emulate-stage: %s is not a stage; use 0 to %lld", text, (long long)stages - 1);
}

static bool moves_(const StageSchedule *list) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->actions[i].peer >= 0) return true;
    return false;
}

// Checks that the memory is free: a host that is asked for more than it has does not refuse, but kills some process.
static int check_workspace_(const Subject *subject, Error *err) {
    const PlanStage *stage = &subject->plan.stage[subject->stage];
    int64_t bytes = memory_total(&stage->memory) + stage->host_slots * stage->slot_bytes;
    char needs[32], has[32];
    Machine machine;
    machine_look(&machine, !subject->hardware.cpu);
    if (!subject->hardware.cpu || machine.free_bytes == 0 || bytes <= machine.free_bytes) return 0;
    return error_set(err, EXIT_FAILED,
                     "--emulate-stage: stage %d needs %s of memory, and %s are free here; use a smaller "
                     "schedule.micro_batch or more stages",
                     subject->stage, grid_bytes(bytes, needs), grid_bytes(machine.free_bytes, has));
}

static int prepare_(Subject *subject, const Log *log, Error *err) {
    if (verdict_resolve(&subject->config, subject->model, log, err) != 0) return -1;
    subject->be = emulation_backend(&subject->config, err);
    if (subject->be == NULL) return -1;
    hardware_describe(&subject->hardware, &subject->config, subject->be->device);
    subject->schedule = plan_schedule(&subject->config, err);
    if (subject->schedule == NULL) return -1;
    plan_make(&subject->plan, subject->model, &subject->config, subject->schedule, subject->be);
    if (check_workspace_(subject, err) != 0) return -1;
    return emulation_create(&subject->emulation, &subject->config, subject->model, subject->schedule,
                            &subject->plan.stage[subject->stage], moves_(&subject->schedule->stage[subject->stage]),
                            &subject->hardware, subject->be, err);
}

static void print_memory_(const Subject *subject, FILE *file) {
    char peak[32], planned[32], exact[32];
    const PlanStage *stage = &subject->plan.stage[subject->stage];
    MemoryBytes held = emulation_peak(&subject->emulation);
    int64_t bytes = memory_total(&held), plan = memory_total(&stage->memory);
    fprintf(file, "peak      %s allocated, %s bytes; planned %s%s\n", grid_bytes(bytes, peak), grid_count(bytes, exact),
            grid_bytes(plan, planned), bytes == plan ? ", the same to the byte" : "");
}

static double tensor_seconds_(const Subject *subject) {
    const StageShape *at = &subject->plan.stage[subject->stage].at;
    ModelTimes times;
    hardware_tensor_times(&times, &subject->hardware, &subject->config, &at->shape);
    double seconds = (double)at->layers * (times.layer.tensor_forward + times.layer.tensor_backward);
    if (at->first) seconds += times.embedding.tensor_forward + times.embedding.tensor_backward;
    if (at->last) seconds += times.head.tensor_forward;
    return seconds;
}

static void print_times_(const Subject *subject, const EmulationTimes *times, FILE *file) {
    const Config *config = &subject->config;
    double backward = times->backward > 0 ? times->backward : times->input + times->weights;
    double all = times->forward + backward, tensor = tensor_seconds_(subject);
    double share = (double)(config->parallel.pipeline * config->parallel.tensor) * subject->hardware.cost.flops;
    double flops = model_flops_per_token(config, true) * (double)(config->schedule.micro_batch * config->model.seq_len);
    fprintf(file, "time      forward %.3f ms", 1e3 * times->forward);
    if (times->backward > 0) fprintf(file, ", backward %.3f ms", 1e3 * times->backward);
    if (times->input > 0)
        fprintf(file, ", gradient of the input %.3f ms, gradients of weights %.3f ms", 1e3 * times->input,
                1e3 * times->weights);
    fprintf(file, " a microbatch, median of %lld; compute waited %.3f ms for transfers\n",
            (long long)times->microbatches, 1e3 * times->exposed);
    if (tensor > 0)
        fprintf(file, "tensor    collectives over %lld ranks, modelled: %.3f ms a microbatch\n",
                (long long)config->parallel.tensor, 1e3 * tensor);
    if (share <= 0) return;
    fprintf(file, "MFU       of a pipeline whose stages are all like this one and never idle: %.1f%%",
            100 * flops / (share * all));
    if (tensor > 0) fprintf(file, " without collectives, %.1f%% with them", 100 * flops / (share * (all + tensor)));
    fputc('\n', file);
}

static int emulate_(Subject *subject, const Log *log, FILE *file, Error *err) {
    EmulationTimes times;
    if (prepare_(subject, log, err) != 0) return -1;
    if (emulation_rehearse(&subject->emulation, subject->schedule, log, err) != 0) return -1;
    // The first run touches memory for the first time.
    for (int run = 0; run < 2; run++)
        if (emulation_run(&subject->emulation, subject->schedule, &times, err) != 0) return -1;
    const StageShape *at = &subject->plan.stage[subject->stage].at;
    char layers[STAGE_LAYERS_TEXT];
    fprintf(file, "stage     %d of %d, layers %s, alone on %s; schedule %s\n", subject->stage, at->stages,
            stage_layers_text(at, layers), subject->be->device, subject->schedule->name);
    if (subject->emulation.scratch != NULL)
        fprintf(file, "emulated  bundles leave and come at %.4g GB/s, through one slot that is not counted\n",
                1e-9 * subject->hardware.cost.pair);
    print_memory_(subject, file);
    print_times_(subject, &times, file);
    return 0;
}

int emulate_command(const Config *config, const Model *model, const char *stage, const Log *log, Error *err) {
    Subject *subject = xcalloc(1, sizeof *subject);
    subject->config = *config;
    subject->model = model;
    int status = emulate_read_stage_(stage, config->parallel.pipeline, &subject->stage, err);
    if (status == 0) status = emulate_(subject, log, stdout, err);
    emulation_destroy(&subject->emulation);
    plan_free(&subject->plan);
    schedule_free(subject->schedule);
    if (subject->be != NULL) subject->be->destroy(subject->be);
    free(subject);
    return status;
}
