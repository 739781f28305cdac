// Other ways to the same memory, for the micro-batch size that BPipe is about. Formulas: recompute as in Chen et al. 2016 (only the layers'
// inputs are kept); interleaved 1F1B, Narayanan et al. 2021 (memory x (1 + (p-1)/(p v)), bubble (p-1)/(m v) of the work; p has to divide m);
// V-Half, Qi et al. 2024 (p/2 + 1 microbatches, about half of 1F1B's bubble, twice the stage-to-stage traffic, a backward in two halves). Host
// offload is this trainer's own schedule, simulated.
#include "base/grid.h"
#include "base/alloc.h"
#include "plan_report.h"

#include <stdlib.h>

// The case in question: 1F1B at one micro-batch size.
typedef struct Case {
    const PlanAnswer *answer;
    Config *config;
    Schedule *schedule;
    Plan plan;
    PlanTime time; // known: false where nothing is known of the device
    double m, p;
} Case;

// One line: what, the fullest rank's bytes, share of the stages' time that is idle, step time, and what it costs.
static void rivals_row_(Grid *grid, const char *what, double bytes, double bubble, double step, const char *cost) {
    char text[32];
    grid_cell(grid, "%s", what);
    grid_cell(grid, "%s", grid_bytes((int64_t)bytes, text));
    grid_cell(grid, bubble < 0 ? "-" : "%.1f%%", 100 * bubble);
    grid_cell(grid, step <= 0 ? "-" : "%.1f ms", 1e3 * step);
    grid_cell(grid, "%s", cost);
}

static void heading_(Grid *grid) {
    const char *cells[] = {"way", "fullest rank", "bubble", "step", "cost"};
    grid->columns = 5;
    for (int i = 0; i < 5; i++) grid_cell(grid, "%s", cells[i]);
}

// Bytes of the fullest rank when every stage holds `in_flight(stage)` bundles of `bundle(stage)` bytes.
typedef struct Holding {
    double in_flight[2];        // of a stage: [0] + [1] * 1F1B's
    double of_bundle, of_input; // what is kept of a bundle, and of each layer's input
    double once;                // bundles of one layer beside the slots
} Holding;

static double fullest_(const Case *at, Holding holding) {
    double most = 0;
    for (int s = 0; s < at->plan.stages; s++) {
        const PlanStage *stage = &at->plan.stage[s];
        double slots = (double)stage->memory.bytes[MEMORY_OWN_SLOTS];
        double kept = holding.of_bundle * (double)stage->slot_bytes +
                      holding.of_input * (double)(stage->at.layers * stage->at.message_bytes);
        double bytes = (double)memory_total(&stage->memory) - slots + holding.once * (double)stage->at.layer_bundle +
                       (holding.in_flight[0] + holding.in_flight[1] * stage->own_slots) * kept;
        if (bytes > most) most = bytes;
    }
    return most;
}

// The pipeline as predicted for 1F1B, with `work` times its work and with the idle share of another schedule instead of 1F1B's; what comes
// from messages and uneven stages stays as it is.
typedef struct Way {
    double bubble, step;
} Way;

static Way way_(const Case *at, double work, double idle) {
    const PlanTime *time = &at->time;
    if (!time->known) return (Way){idle / (1 + idle), 0};
    double own = (at->p - 1) / at->m, busy = (1 - time->bubble) * time->pipeline;
    double pipeline = work * (time->pipeline + at->m * time->slowest * (idle - own));
    return (Way){1 - work * busy / pipeline, pipeline + time->step - time->pipeline};
}

static void formula_(const Case *at, Grid *grid, const char *what, Holding holding, Way way, const char *cost) {
    rivals_row_(grid, what, fullest_(at, holding), way.bubble, way.step, cost);
}

static void formulas_(const Case *at, Grid *grid) {
    double p = at->p, idle = (p - 1) / at->m, v = 2;
    Holding plain = {{0, 1}, 1, 0, 0}, inputs = {{0, 1}, 0, 1, 1};
    Holding interleaved = {{0, 1 + (p - 1) / (p * v)}, 1, 0, 0},
            half = {{(double)((at->plan.stages + 2) / 2), 0}, 1, 0, 0};
    formula_(at, grid, "1F1B", plain, way_(at, 1, idle), "-");
    formula_(at, grid, "1F1B, all recomputed", inputs, way_(at, 4.0 / 3, idle), "every forward twice");
    if (at->config->model.layers < 2 * at->plan.stages) return; // a rank of these two has two chunks of layers
    if (config_microbatches(at->config) % at->plan.stages == 0)
        formula_(at, grid, "interleaved, v=2", interleaved, way_(at, 1, idle / v), "stage-to-stage traffic x2");
    formula_(at, grid, "V-Half", half, way_(at, 1, idle / 2), "traffic x2, split backward");
}

// Recomputed core attention and offload to host memory are this trainer's own; they are planned like everything else.
static int planned_(const Case *at, const char *what, bool bpipe, int attention, int evict_to, const char *cost,
                    Grid *grid, Error *err) {
    Config *config = xmalloc(sizeof *config);
    *config = *at->config;
    config->schedule.evict_to = evict_to;
    config->schedule.slots = 0;
    Planner like = at->answer->planner;
    like.config = config;
    Forecast forecast;
    Variant variant = {config->schedule.micro_batch, bpipe, attention};
    const ScheduleConfig *asked = &at->answer->config.schedule;
    bool alike = !bpipe || (asked->evict_to == evict_to && asked->slots == 0);
    int status = alike ? plan_answer_forecast(at->answer, variant, &forecast, err)
                       : planner_forecast(&like, variant, &forecast, err);
    if (status == 0 && forecast.possible)
        rivals_row_(grid, what, (double)forecast.peak_bytes, forecast.time.known ? forecast.time.bubble : -1,
                    forecast.time.step, cost);
    free(config);
    return status;
}

static int print_(const Case *at, FILE *file, Error *err) {
    Grid grid = {0};
    char cost[GRID_CELL], bundle[32];
    int mode = at->config->attention.mode;
    heading_(&grid);
    formulas_(at, &grid);
    snprintf(cost, sizeof cost, "%s out and back a bundle", grid_bytes(at->plan.stage[0].slot_bytes, bundle));
    int status = planned_(at, "BPipe", true, mode, EVICT_TO_PEER, cost, &grid, err);
    if (status == 0) status = planned_(at, "offload to host", true, mode, EVICT_TO_HOST, cost, &grid, err);
    if (status == 0 && mode == ATTENTION_NONE)
        status = planned_(at, "1F1B, attention recomputed", false, ATTENTION_RECOMPUTE, EVICT_TO_PEER,
                          "attention twice", &grid, err);
    if (status == 0) {
        fprintf(file,
                "rivals    at micro-batch %lld; all recomputed, interleaved and V-Half cannot be run here and are "
                "formulas\n",
                (long long)at->config->schedule.micro_batch);
        grid_print(&grid, file);
    }
    grid_free(&grid);
    return status;
}

// The micro-batch size that only BPipe makes possible where there is one, else this one.
static int64_t rivals_in_question_(const Verdict *verdict) {
    bool larger = verdict->plain.fits && verdict->larger.possible;
    return larger ? verdict->larger.variant.micro_batch : verdict->plain.variant.micro_batch;
}

int plan_print_rivals(const PlanAnswer *answer, FILE *file, Error *err) {
    if (answer->config.parallel.pipeline < 3 || answer->config.schedule.name != schedule_kind_index("1f1b")) return 0;
    Case at = {.answer = answer, .config = xmalloc(sizeof *at.config)};
    const Planner *planner = &answer->planner;
    Variant variant = {rivals_in_question_(&answer->verdict), false, answer->config.attention.mode};
    Forecast forecast;
    planner_config(planner, variant, at.config);
    at.schedule = planner_schedule(at.config, err);
    int status = at.schedule == NULL ? -1 : 0;
    if (status == 0) plan_make(&at.plan, planner->model, at.config, at.schedule, planner->be);
    if (status == 0) status = plan_answer_forecast(answer, variant, &forecast, err);
    if (status == 0) {
        at.time = forecast.time;
        at.m = (double)config_microbatches(at.config);
        at.p = at.plan.stages;
        status = print_(&at, file, err);
    }
    plan_free(&at.plan);
    schedule_free(at.schedule);
    free(at.config);
    return status;
}
