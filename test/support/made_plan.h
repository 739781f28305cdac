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
// Loads a configuration and plans it, for a backend whose attention takes 1000 bytes of scratch.
Made made(const char *path, const char *overrides);
// The same, with what else the plan asks of a backend from `be`.
Made made_for(Backend be, const char *path, const char *overrides);
void unmake(Made *all);
