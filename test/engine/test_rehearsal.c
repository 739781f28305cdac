// The rehearsal at start-up, on a CPU that says it loads code late: every kind of work of a step runs, and no weight,
// master or moment changes by a bit.
#include "models.h"
#include "engine/optimizer.h"
#include "plan/emulate.h"
#include "plan/planner.h"
#include "stage_states.h"

#include <string.h>

// One stage of a pipeline whose neighbours and other tensor ranks are emulated.
typedef struct Bench {
    Config config;
    Backend *be;
    Schedule *schedule;
    Plan plan;
    World *world;
    Emulation emulation;
    Optimizer *optimizer;
} Bench;

// Calls of the backend's operations.
static struct {
    int forward, input, weight, written, updates;
    Backend as_made;
} count;

static void count_forward(Backend *be, void *y, void *aux, Factor x, Factor w, const void *bias, int64_t rows,
                          int64_t in, int64_t out, Epilogue epilogue) {
    count.forward++;
    count.as_made.linear_forward(be, y, aux, x, w, bias, rows, in, out, epilogue);
}

static void count_input(Backend *be, void *dx, const void *aux, Factor dy, Factor w, int64_t rows, int64_t in,
                        int64_t out, Epilogue epilogue) {
    count.input++;
    count.as_made.linear_backward_input(be, dx, aux, dy, w, rows, in, out, epilogue);
}

static void count_weight(Backend *be, float *dw, float *dbias, Factor dy, Factor x, int64_t rows, int64_t in,
                         int64_t out, bool adds) {
    count.weight++;
    count.written += !adds;
    count.as_made.linear_backward_weight(be, dw, dbias, dy, x, rows, in, out, adds);
}

static void count_update(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step) {
    count.updates++;
    count.as_made.adamw(be, tensors, tensor_count, step);
}

static void count_calls(Backend *be) {
    memset(&count, 0, sizeof count);
    count.as_made = *be;
    be->linear_forward = count_forward;
    be->linear_backward_input = count_input;
    be->linear_backward_weight = count_weight;
    be->adamw = count_update;
}

static void bench_open(Bench *bench, const Model *model, const char *const *overrides, int overrides_count, int stage) {
    const char *path = model == &llama_model ? "configs/llama_tiny.yaml" : "configs/gpt_tiny.yaml";
    Hardware hardware;
    int argc = 0;
    char **argv = NULL;
    memset(bench, 0, sizeof *bench);
    assert_succeeds(config_load(&bench->config, path, overrides, overrides_count, &unit_error));
    bench->be = assert_made(backend_cpu_create(bench->config.train.precision, 1, &unit_error));
    hardware_describe(&hardware, &bench->config, bench->be->device);
    bench->schedule = assert_made(plan_schedule(&bench->config, &unit_error));
    bench->plan = plan_make(model, &bench->config, bench->schedule, bench->be);
    assert_succeeds(emulation_create(&bench->emulation, &bench->config, model, bench->schedule,
                                     &bench->plan.stage[stage], &hardware, bench->be, &unit_error));
    bench->world = assert_made(world_join(&argc, &argv, &unit_error));
    OptimizerGroups groups = {.world = bench->world, .tensor = bench->emulation.tensor};
    bench->optimizer = optimizer_create(&bench->emulation.stage, &groups);
}

static void bench_close(Bench *bench) {
    optimizer_destroy(bench->optimizer);
    emulation_destroy(&bench->emulation);
    world_leave(bench->world, 0);
    plan_free(&bench->plan);
    schedule_free(bench->schedule);
    bench->be->destroy(bench->be);
}

static void rehearse(Bench *bench) {
    assert_succeeds(engine_rehearse(bench->emulation.engine, bench->schedule, &unit_error));
    assert_succeeds(optimizer_rehearse(bench->optimizer, &unit_error));
}

// Checks that a rehearsal of two microbatches runs each product `passes` times per layer and microbatch, the layers'
// gradients written in the first backward and added to in the others, and one update, and changes no bit of the stage.
static void leaves_no_trace(const Model *model, const char *schedule, const char *more, int stage, int passes) {
    const char *overrides[] = {"model.hidden=64", "model.seq_len=32", "schedule.bpipe=off", schedule, more};
    Bench *bench = malloc(sizeof *bench);
    assert_non_null(bench);
    bench_open(bench, model, overrides, 5, stage);
    const StageShape *at = &bench->emulation.stage.at;
    size_t bytes;
    char *before = stage_states(&bench->emulation.stage, true, &bytes);
    count_calls(bench->be);
    rehearse(bench); // a CPU has nothing to load
    assert_int_equal(count.forward + count.input + count.weight + count.updates, 0);
    bench->be->loads_late = true;
    rehearse(bench);
    int products = 4; // qkv, proj, and two of the MLP, where gate and up are one
    int least = 2 * passes * (products * (int)at->layers + at->last);
    int written = passes / (int)at->shape.slices * products * (int)at->layers;
    if (count.forward != least || count.input != least || count.weight != least || count.written != written ||
        count.updates != 1)
        fail_msg("%s %s stage %d: %d forward, %d input, %d weight products where %d belong, %d updates", schedule, more,
                 stage, count.forward, count.input, count.weight, least, count.updates);
    char *after = stage_states(&bench->emulation.stage, true, &bytes);
    assert_memory_equal(before, after, bytes);
    free(before), free(after);
    bench_close(bench);
    free(bench);
}

TEST(weights_moments_and_gradients_are_the_same_bits_afterwards) {
    for (int stage = 0; stage < 4; stage++) {
        leaves_no_trace(&llama_model, "schedule.name=1f1b", "train.precision=bf16", stage, 1);
        leaves_no_trace(&gpt_model, "schedule.name=v-half", "train.precision=fp32", stage, 1);
        leaves_no_trace(&gpt_model, "schedule.name=dualpipe-v", "train.precision=fp32", stage, 2);
        leaves_no_trace(&gpt_model, "schedule.name=seq1f1b", "schedule.slices=4", stage, 4);
    }
    leaves_no_trace(&gpt_model, "schedule.name=gpipe", "parallel.pipeline=1", 0, 1);
}
