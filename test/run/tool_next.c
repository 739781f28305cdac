// Started by test_transformers.py. `tool_next CONFIG DIR TOKEN...` loads the weights in DIR into one stage, reads
// seq_len tokens, and prints the likeliest next token after each.
#include "models.h"
#include "checkpoint/checkpoint.h"
#include "run/sample.h"

#include <stdlib.h>
#include <string.h>

static int create_(Stage *stage, Config *config, const char *path, const char *dir, World *world, Error *err) {
    const Log log = {"tool_next", -1, -1, LOG_NORMAL};
    if (config_load(config, path, NULL, 0, err) != 0) return -1;
    const Model *model = model_of(config);
    Backend *be = backend_cpu_create(config->train.precision, 1, err);
    const Schedule one = {.stages = 1, .chunks = 1};
    if (be == NULL || stage_create(stage, model, config, &one, be, 0, NULL, 0, err) != 0) return -1;
    return checkpoint_init_from(dir, stage, world, &log, err);
}

static int print_next_(Stage *stage, char **words, int count, Error *err) {
    const Shape *s = &stage->at.shape;
    const SampleRule greedy = {0.0, 0, 0};
    Backend *be = stage->be;
    if (count != s->rows) return error_set(err, EXIT_USAGE, "give %lld tokens", (long long)s->rows);
    int32_t *tokens = calloc((size_t)count, sizeof *tokens);
    float *logits = calloc((size_t)s->vocab_count, sizeof *logits);
    void *bundle = be->allocate(be, MEMORY_OWN_SLOTS, stage->at.bundle_bytes, "bundle", err);
    if (tokens == NULL || logits == NULL || bundle == NULL) return error_set(err, EXIT_FAILED, "out of memory");
    for (int i = 0; i < count; i++) tokens[i] = atoi(words[i]);
    be->upload(be, stage->tokens, tokens, count * 4);
    be->upload(be, stage->targets, tokens, count * 4);
    if (stage_forward(stage, 0, 0, bundle, NULL, NULL, 0.0f, err) != 0) return -1;
    for (int64_t row = 0; row < s->rows; row++) {
        SampleCandidate best;
        stage_logits(stage, row, logits);
        int64_t named = sample_candidates(&greedy, 0, logits, 0, s->vocab_count, &best);
        printf("%lld\n", (long long)sample_choose(&greedy, &best, named));
    }
    be->release(be, MEMORY_OWN_SLOTS, bundle, stage->at.bundle_bytes);
    free(tokens);
    free(logits);
    return 0;
}

int main(int argc, char **argv) {
    static Config config;
    static Stage stage;
    Error err = {0};
    World *world = world_join(&argc, &argv, &err);
    int status = argc < 4 || world == NULL ? -1 : create_(&stage, &config, argv[1], argv[2], world, &err);
    if (status == 0) status = print_next_(&stage, argv + 3, argc - 3, &err);
    if (status != 0) fprintf(stderr, "%s\n", err.text);
    Backend *be = stage.be;
    stage_destroy(&stage);
    if (be != NULL) be->destroy(be);
    world_leave(world, 0);
    return status == 0 ? EXIT_DONE : EXIT_FAILED;
}
