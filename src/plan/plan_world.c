// Finds the fewest ranks on which the model fits: for each number of tensor ranks, by bisection over the stages.
#include "planner.h"

#include "config/config_schema.h"

int plan_fewest_stages(const int64_t *stages, int64_t count, int64_t t, int64_t d, WorldFits *fits, void *argument,
                       SmallestWorld *best, Error *err) {
    int64_t fails = -1, works = count;
    while (works > 0 && best->ranks > 0 && stages[works - 1] > (best->ranks - 1) / (t * d)) works--;
    while (works - fails > 1) {
        int64_t middle = fails + (works - fails) / 2, p = stages[middle];
        SmallestWorld at = {.ranks = p * t * d, .pipeline = p, .tensor = t, .data = d};
        bool enough = false;
        if (fits(argument, &at, &enough, err) != 0) return -1;
        if (enough) *best = at;
        *(enough ? &works : &fails) = middle;
    }
    return 0;
}

// Cuts the configuration into p stages and t tensor ranks, at micro-batch size 1. Returns false if that is invalid.
static bool smallest_cut_(const Config *from, int64_t p, int64_t t, Config *to) {
    Error ignored = {0};
    *to = *from;
    to->parallel.pipeline = p;
    to->parallel.tensor = t;
    to->parallel.data = to->parallel.context = 1;
    to->parallel.layers_given = 0;
    to->schedule.micro_batch = 1;
    to->schedule.slots = 0;
    to->schedule.bpipe = BPIPE_OFF;
    return config_check(to, &ignored) == 0;
}

static int world_fits_(void *argument, SmallestWorld *at, bool *fits, Error *err) {
    const Planner *planner = argument;
    int64_t batch = planner->config->train.global_batch;
    Config config;
    if (!smallest_cut_(planner->config, at->pipeline, at->tensor, &config)) return 0;
    Planner like = *planner;
    like.config = &config;
    for (int way = PLAN_PLAIN; way <= PLAN_BPIPE && !*fits; way++) {
        RunLayout layout = planner_layout(&like, 1, (PlanWay)way);
        Forecast forecast;
        if (planner_never_fits(&like, &layout)) continue;
        // Memory never shrinks with more microbatches: if p of them do not fit, skip building the full schedule.
        config.train.global_batch = at->pipeline;
        if (planner_forecast(&like, &layout, false, &forecast, err) != 0) return -1;
        config.train.global_batch = batch;
        if (forecast.possible && !forecast.fits) continue;
        if (planner_forecast(&like, &layout, false, &forecast, err) != 0) return -1;
        *fits = forecast.possible && forecast.fits;
        at->bpipe = way == PLAN_BPIPE;
    }
    return 0;
}

// Tensor ranks stay within a node. Numbers that do not divide the model are skipped, since config_check refuses them.
int plan_smallest_world(const Planner *planner, SmallestWorld *world, Error *err) {
    const Config *config = planner->config;
    int64_t layers = config->model.layers, batch = config->train.global_batch, most = layers < batch ? layers : batch;
    int64_t stages[CONFIG_MAX_STAGES], count = most < CONFIG_MAX_STAGES ? most : CONFIG_MAX_STAGES;
    *world = (SmallestWorld){0};
    for (int64_t p = 1; p <= count; p++) stages[p - 1] = p;
    for (int64_t t = 1; t <= cost_domain(config, 1); t++) {
        Config cut;
        Planner asked = *planner;
        if (!smallest_cut_(config, 1, t, &cut)) continue;
        if (plan_fewest_stages(stages, count, t, 1, world_fits_, &asked, world, err) != 0) return -1;
    }
    return 0;
}
