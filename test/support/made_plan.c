// Loads a configuration, makes its schedule and plans it; the test fails if any of these fails.
#include "made_plan.h"
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

// Replaces the only function of a backend that a plan calls: the size of the attention's scratch.
static int64_t made_scratch_(Backend *be, const AttentionShape *shape) {
    (void)be;
    (void)shape;
    return 1000;
}

Config loaded(const char *path, const char *overrides) {
    Config config;
    Error err = {0};
    char text[1024];
    const char *words[32];
    int count = 0;
    snprintf(text, sizeof text, "%s", overrides);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) words[count++] = word;
    if (config_load(&config, path, words, count, &err) != 0) fail_msg("%s", err.text);
    return config;
}

Made made_for(Backend be, const char *path, const char *overrides) {
    Made all = {.config = loaded(path, overrides)};
    Error err = {0};
    be.attention_scratch = made_scratch_;
    all.schedule = plan_schedule(&all.config, &err);
    if (all.schedule == NULL) fail_msg("%s", err.text);
    all.plan = plan_make(model_of(&all.config), &all.config, all.schedule, &be);
    return all;
}

Made made(const char *path, const char *overrides) { return made_for((Backend){0}, path, overrides); }

void unmake(Made *all) {
    plan_free(&all->plan);
    schedule_free(all->schedule);
}
