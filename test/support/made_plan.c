// Loads, makes the schedule, plans; a failure fails the test.
#include "made_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

// A backend that is only asked for the attention's scratch.
static int64_t made_scratch_(Backend *be, const AttentionShape *shape) {
    (void)be;
    (void)shape;
    return 1000;
}

Config loaded(const char *path, const char *const *overrides, int count) {
    Config config;
    Error err = {0};
    if (config_load(&config, path, overrides, count, &err) != 0) fail_msg("%s", err.text);
    return config;
}

Made made_for(Backend be, const char *path, const Model *model, const char *const *overrides, int count) {
    Made all = {.config = loaded(path, overrides, count)};
    Error err = {0};
    be.attention_scratch = made_scratch_;
    all.schedule = plan_schedule(&all.config, &err);
    if (all.schedule == NULL) fail_msg("%s", err.text);
    plan_make(&all.plan, model, &all.config, all.schedule, &be);
    return all;
}

Made made(const char *path, const Model *model, const char *const *overrides, int count) {
    return made_for((Backend){0}, path, model, overrides, count);
}

void unmake(Made *all) {
    plan_free(&all->plan);
    schedule_free(all->schedule);
}
