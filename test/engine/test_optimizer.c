// The optimizer with good and bad gradients: which tensor is blamed, and that a skipped update leaves no trace.
#include "models.h"
#include "engine/optimizer.h"
#include "made_plan.h"

#include <math.h>
#include <string.h>

// One rank with a complete small model.
typedef struct Bench {
    Config config;
    Backend *be;
    World *world;
    Stage stage;
    Optimizer *optimizer;
} Bench;

static Bench *bench_open(const char *path, const char *precision) {
    Bench *bench = calloc(1, sizeof *bench);
    char overrides[128];
    int argc = 0;
    char **argv = NULL;
    snprintf(overrides, sizeof overrides,
             "parallel.pipeline=1 model.layers=2 train.schedule=constant train.warmup_steps=0 train.precision=%s",
             precision);
    bench->config = loaded(path, overrides);
    bench->be = assert_made(backend_cpu_create(bench->config.train.precision, 1, &unit_error));
    bench->world = assert_made(world_join(&argc, &argv, &unit_error));
    const Schedule one = {.stages = 1, .chunks = 1};
    assert_succeeds(stage_create(&bench->stage, model_of(&bench->config), &bench->config, &one, bench->be, 0, NULL, 0,
                                 &unit_error));
    OptimizerGroups groups = {.world = bench->world};
    bench->optimizer = optimizer_create(&bench->stage, &groups);
    assert_non_null(bench->optimizer);
    return bench;
}

static void bench_close(Bench *bench) {
    optimizer_destroy(bench->optimizer);
    stage_destroy(&bench->stage);
    world_leave(bench->world, 0);
    bench->be->destroy(bench->be);
    free(bench);
}
UNIT_END(Bench, bench_close)
#define AutoBench UNIT_ENDS(bench_close) Bench

// Fills the gradients with arbitrary numbers that depend only on `seed`, in place of a backward.
static void fill_gradients(Bench *bench, int seed) {
    for (int group = 0; group < STATE_GROUPS; group++) {
        const StateArenas *arenas = &bench->stage.tensors.arenas[group];
        for (int64_t i = 0; i < arenas->gradient_elements; i++)
            arenas->gradients[i] = (float)sin((double)(2 * i + group) * 0.37 + seed) * 1e-3f;
    }
}

static Tensor *tensor_named(Bench *bench, const char *name) {
    StageTensors *tensors = &bench->stage.tensors;
    for (int64_t i = 0; i < tensors->count; i++)
        if (strcmp(tensors->tensors[i].spec->name, name) == 0) return &tensors->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static double norm_of(Bench *bench) {
    double norm = 0.0;
    assert_succeeds(optimizer_norm(bench->optimizer, &norm, &unit_error));
    return norm;
}

static void apply(Bench *bench, int64_t step, int64_t skipped) {
    assert_succeeds(optimizer_update(bench->optimizer, step, skipped, norm_of(bench), &unit_error));
}

// Returns weights, masters and moments, to detect changes; stores their size in *bytes. Caller frees.
static char *stage_states(const Stage *stage, size_t *bytes) {
    const StageTensors *t = &stage->tensors;
    StateBytes all = tensors_states(t);
    char *copy = calloc(1, (size_t)states_total(&all)), *to = copy;
    assert_non_null(copy);
    for (int group = 0; group < STATE_GROUPS; group++) {
        const StateArenas *a = &t->arenas[group];
        const void *parts[] = {a->weights, a->masters, a->moments};
        size_t floats = (size_t)a->state_elements * 4;
        size_t sizes[] = {(size_t)(a->elements * t->element), a->masters != NULL ? floats : 0, 2 * floats};
        for (int i = 0; i < 3; i++)
            if (sizes[i] > 0) to = (char *)memcpy(to, parts[i], sizes[i]) + sizes[i];
    }
    *bytes = (size_t)(to - copy);
    return copy;
}

static void skipped_leaves_no_trace(const char *path, const char *precision) {
    AutoBench *with = bench_open(path, precision), *without = bench_open(path, precision);
    size_t bytes;
    fill_gradients(with, 1);
    apply(with, 1, 0);
    char *before = stage_states(&with->stage, &bytes);
    fill_gradients(with, 2);
    with->stage.layers[3].gradient[7] = NAN;
    assert_true(isnan(norm_of(with)));
    optimizer_skip(with->optimizer);
    char *after = stage_states(&with->stage, &bytes);
    assert_memory_equal(before, after, bytes);
    for (int64_t t = 0; t < with->stage.tensors.count; t++) { // the next step's first backward overwrites the others
        const Tensor *tensor = &with->stage.tensors.tensors[t];
        for (int64_t i = 0; i < tensor->count; i++) assert_true(tensor->written || tensor->gradient[i] == 0.0f);
    }
    fill_gradients(with, 3);
    apply(with, 3, 1);
    // The same two updates with nothing in between; at a constant learning rate the step's number is Adam's alone.
    fill_gradients(without, 1);
    apply(without, 1, 0);
    fill_gradients(without, 3);
    apply(without, 2, 0);
    char *one = stage_states(&with->stage, &bytes), *other = stage_states(&without->stage, &bytes);
    assert_memory_equal(one, other, bytes);
    assert_memory_not_equal(one, before, bytes);
    free(before), free(after), free(one), free(other);
}

TEST(a_skipped_update_leaves_weights_moments_and_adams_count_as_they_were) {
    skipped_leaves_no_trace("configs/llama_tiny.yaml", "fp32");
    skipped_leaves_no_trace("configs/gpt_tiny.yaml", "fp32");
    skipped_leaves_no_trace("configs/llama_tiny.yaml", "bf16");
}

static Blame blamed(Bench *bench) {
    Blame blame;
    assert_false(isfinite(norm_of(bench)));
    assert_succeeds(optimizer_blame(bench->optimizer, &blame, &unit_error));
    return blame;
}

TEST(the_blamed_gradient_is_the_first_of_the_backward) {
    AutoBench *bench = bench_open("configs/llama_tiny.yaml", "fp32");
    fill_gradients(bench, 1);
    tensor_named(bench, "model.embed_tokens.weight")->gradient[5] = NAN;
    tensor_named(bench, "model.layers.0.mlp.down_proj.weight")->gradient[0] = NAN;
    tensor_named(bench, "model.layers.1.self_attn.q_proj.weight")->gradient[9] = INFINITY;
    Blame blame = blamed(bench);
    assert_string_equal(blame.gradient->name, "model.layers.1.self_attn.q_proj.weight");
    assert_true(isinf(blame.squares));
    assert_int_equal(blame.gradient_stage, 0);
    assert_null(blame.weight);
}

TEST(a_nan_weight_is_blamed_too) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        AutoBench *bench = bench_open("configs/llama_tiny.yaml", bf16 ? "bf16" : "fp32");
        Tensor *bad = tensor_named(bench, "model.layers.1.input_layernorm.weight");
        TensorPiece piece = tensors_piece(&bench->stage.tensors, bad - bench->stage.tensors.tensors);
        (piece.master != NULL ? piece.master : (float *)piece.weight)[3] = INFINITY;
        fill_gradients(bench, 1);
        tensor_named(bench, "lm_head.weight")->gradient[0] = NAN;
        Blame blame = blamed(bench);
        assert_string_equal(blame.gradient->name, "lm_head.weight");
        assert_string_equal(blame.weight->name, "model.layers.1.input_layernorm.weight");
    }
}
