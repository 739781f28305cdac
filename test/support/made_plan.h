// Plans of configurations, for tests.
#pragma once

#include "plan/plan.h"

#define LLAMA       "configs/llama65b.yaml"
#define GPT         "configs/gpt3_96b.yaml"
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

typedef struct Made {
    Config config;
    Schedule *schedule;
    Plan plan;
} Made;

// Loads a configuration; overrides are separated by spaces.
Config loaded(const char *path, const char *overrides);
// Loads a configuration and plans it, for a backend with 1000 bytes of attention scratch.
Made made(const char *path, const char *overrides);
// Does the same; other values of the backend that the plan uses come from `be`.
Made made_for(Backend be, const char *path, const char *overrides);
void unmake(Made *all);
// A Made that ends with its block.
#define AutoMade __attribute__((cleanup(unmake))) Made
