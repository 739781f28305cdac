// Plans of configurations, for tests. A test fails if a configuration cannot be loaded or planned.
#pragma once

#include "models.h"
#include "plan/plan.h"
#include "unit.h"

#define LLAMA       "configs/llama65b.yaml"
#define GPT         "configs/gpt3_96b.yaml"
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

typedef struct Made {
    Config config;
    Schedule *schedule;
    Plan plan;
} Made;

// Loads a configuration; overrides are separated by spaces.
static inline Config loaded(const char *path, const char *overrides) {
    Config config;
    char text[1024];
    const char *words[32];
    int count = 0;
    snprintf(text, sizeof text, "%s", overrides);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) words[count++] = word;
    assert_succeeds(config_load(&config, path, words, count, &unit_error));
    return config;
}

// The only function of a backend that a plan calls: the size of the attention's scratch.
static inline int64_t made_scratch_(__attribute__((unused)) Backend *be,
                                    __attribute__((unused)) const AttentionShape *shape) {
    return 1000;
}

// Loads a configuration and plans it; values of the backend that the plan uses come from `be`.
static inline Made made_for(Backend be, const char *path, const char *overrides) {
    Made all = {.config = loaded(path, overrides)};
    be.attention_scratch = made_scratch_;
    all.schedule = assert_made(plan_schedule(&all.config, &unit_error));
    all.plan = plan_make(model_of(&all.config), &all.config, all.schedule, &be);
    return all;
}

static inline Made made(const char *path, const char *overrides) { return made_for((Backend){0}, path, overrides); }

static inline void unmake(Made *all) {
    plan_free(&all->plan);
    schedule_free(all->schedule);
}
// A Made that ends with its block.
#define AutoMade __attribute__((cleanup(unmake))) Made
