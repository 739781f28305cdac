// Finds the fewest ranks that would do, for a configuration in which nothing fits.
#include "config/config_schema.h"
#include "base/alloc.h"
#include "plan_report.h"

#include <stdlib.h>

// Cuts the configuration into p stages and t tensor ranks, at micro-batch size 1; false if it cannot be.
static bool smallest_cut_(const Config *from, int64_t p, int64_t t, Config *to) {
    Error ignored = {0};
    *to = *from;
    to->parallel.pipeline = p;
    to->parallel.tensor = t;
    to->parallel.data = 1;
    to->parallel.layers_given = 0;
    to->schedule.micro_batch = 1;
    to->schedule.slots = 0;
    to->schedule.bpipe = BPIPE_OFF;
    return config_check(to, &ignored) == 0;
}

static int plan_world_try_(const Planner *planner, Config *config, int64_t p, int64_t t, SmallestWorld *found,
                           Error *err) {
    if (!smallest_cut_(planner->config, p, t, config)) return 0;
    Planner like = *planner;
    like.config = config;
    for (int bpipe = 0; bpipe < 2; bpipe++) {
        Variant variant = {1, bpipe == 1, config->attention.mode};
        Forecast forecast;
        // Memory never shrinks with more microbatches: if p of them do not fit, skip building the full schedule.
        config->train.global_batch = p;
        if (planner_fit(&like, variant, &forecast, err) != 0) return -1;
        config->train.global_batch = planner->config->train.global_batch;
        if (forecast.possible && !forecast.fits) continue;
        if (planner_fit(&like, variant, &forecast, err) != 0) return -1;
        if (!forecast.possible || !forecast.fits) continue;
        *found = (SmallestWorld){p * t, p, t, bpipe == 1};
        return 0;
    }
    return 0;
}

// More stages hold less each, so the fewest that fit are found by bisection between a number that does not fit and one
// that does. Only worlds smaller than the best so far are tried.
static int plan_world_fewest_stages_(const Planner *planner, Config *config, int64_t t, SmallestWorld *best,
                                     Error *err) {
    int64_t batch = planner->config->train.global_batch, layers = planner->config->model.layers;
    int64_t most = layers < batch ? layers : batch;
    if (most > CONFIG_MAX_STAGES) most = CONFIG_MAX_STAGES;
    if (best->ranks > 0 && (best->ranks - 1) / t < most) most = (best->ranks - 1) / t;
    int64_t fails = 0, fits = most + 1;
    SmallestWorld found = {0};
    while (fits - fails > 1) {
        SmallestWorld at = {0};
        int64_t p = fails + (fits - fails) / 2;
        if (plan_world_try_(planner, config, p, t, &at, err) != 0) return -1;
        if (at.ranks > 0) found = at;
        *(at.ranks > 0 ? &fits : &fails) = p;
    }
    if (found.ranks > 0) *best = found;
    return 0;
}

int plan_smallest_world(const Planner *planner, SmallestWorld *world, Error *err) {
    *world = (SmallestWorld){0};
    Config *config = xmalloc(sizeof *config);
    int status = 0;
    // Tensor ranks stay within a node; those that do not divide the model are refused as a configuration would be.
    for (int64_t t = 1; status == 0 && t <= planner->config->hardware.gpus_per_node; t++)
        if (smallest_cut_(planner->config, 1, t, config))
            status = plan_world_fewest_stages_(planner, config, t, world, err);
    free(config);
    return status;
}
