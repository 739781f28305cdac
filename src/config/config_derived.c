// Figures that follow from the keys and that several modules ask for.
#include "config.h"

int64_t config_microbatches(const Config *config) {
    return config->train.global_batch / (config->schedule.micro_batch * config->parallel.data);
}

int64_t config_step_tokens(const Config *config) {
    return config->train.global_batch * config->model.seq_len;
}

int64_t config_world(const Config *config) {
    return config->parallel.pipeline * config->parallel.tensor * config->parallel.data;
}

int64_t config_layers(const Config *config, int virtual_stages, int g) {
    const ParallelConfig *parallel = &config->parallel;
    if (parallel->layers_given == virtual_stages) return parallel->layers_per_stage[g];
    int64_t even = config->model.layers / virtual_stages, rest = config->model.layers % virtual_stages;
    // Later stages first, because they keep fewer microbatches; the embedding costs less time than the head.
    return even + (g < virtual_stages - 1 && g >= virtual_stages - 1 - rest);
}

int config_attention(const Config *config, int stage) {
    const AttentionConfig *attention = &config->attention;
    return attention->modes_given > 1 ? attention->mode_of_stage[stage] : attention->mode;
}

int64_t config_recompute(const Config *config, int stage) {
    const ScheduleConfig *schedule = &config->schedule;
    return schedule->recompute_of_stage[schedule->recompute_given > 1 ? stage : 0];
}

void config_set_attention(Config *config, int mode) {
    config->attention.modes_given = 1;
    config->attention.mode = config->attention.mode_of_stage[0] = mode;
}

// The remainder goes to stages without embedding and head, later ones first, because 1F1B keeps fewer microbatches
// there; then to the first stage, whose embedding costs less time than the last stage's head.
void config_spread_layers(Config *config, int64_t parts) {
    int64_t layers = config->model.layers, rest = layers % parts, *of = config->parallel.layers_per_stage;
    config->parallel.layers_count = parts;
    for (int64_t s = 0; s < parts; s++) of[s] = layers / parts;
    for (int64_t s = parts - 2; s >= 0 && rest > 0; s--, rest--) of[s]++;
}

int64_t config_padded_vocab(const Config *config) {
    int64_t unit = 128 * config->parallel.tensor;
    return (config->model.vocab + unit - 1) / unit * unit;
}
