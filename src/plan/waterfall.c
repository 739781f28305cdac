// Plans the pipeline a second time with free messages: the time saved, and the compute that messages delay on GPUs, is
// the line of messages. Compute is the average busy time of the stages, divided into the kinds of work that were
// counted (counted.h); what their collectives between nodes delay each other belongs to these. Measured stages, ranks
// that share cores and the overhead of actions differ from the count; the difference is added to the products' loss.
// The rest of the pipeline is idle time: imbalance is the average stage's wait for the slowest, and the ramp is the
// remainder.
#include "backend/attention_scratch.h"
#include "base/grid.h"
#include "base/units.h"
#include "plan_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const lines_[WATERFALL_LINES] = {
    "products at peak",   "rate and shape",       "attention", "passes over memory",
    "tensor collectives", "experts' exchange",    "imbalance", "idle",
    "messages",           "sums over data ranks", "optimizer"};

static bool told_(const Waterfall *fall, int line) {
    return fall->experts || (line != WATERFALL_EXCHANGE && line != WATERFALL_UNEVEN);
}

// Returns the seconds of all work of a stage for one microbatch.
static double stage_work_(const StageTime *stage) { return stage->forward + stage->backward; }

static void waterfall_divide_(Waterfall *fall, const PlanAnswer *answer, const PlanCosts *costs,
                              const PlanTime *unsent) {
    const PlanTime *time = &answer->time;
    int p = answer->plan.stages;
    double m = (double)config_microbatches(&answer->config), *at = fall->seconds;
    double most = 0, sum = 0, slowed = 0, between = 0;
    for (int s = 0; s < p; s++) {
        const StageTime *stage = &costs->stage[s];
        at[WATERFALL_PEAK] += m / p * stage->spent.peak;
        at[WATERFALL_ATTENTION] += m / p * stage->spent.attention;
        at[WATERFALL_PASSES] += m / p * stage->spent.passes;
        at[WATERFALL_TENSOR] += m / p * stage->spent.exposed;
        at[WATERFALL_EXCHANGE] += m / p * stage->spent.exchange;
        at[WATERFALL_UNEVEN] += m / p * stage->spent.uneven;
        between += stage->spent.between;
        slowed += costs->stage[s].hides * (1 - 1 / costs->costs.last[s]) / p;
        most = fmax(most, m * stage_work_(stage));
        sum += m / p * stage_work_(stage);
    }
    double waits = time->idle, busy = time->pipeline - waits;
    double delayed = answer->planner.hardware.cpu ? 0 : fmax(0, busy - (unsent->pipeline - unsent->idle));
    if (between > 0)
        at[fall->experts ? WATERFALL_EXCHANGE : WATERFALL_TENSOR] += fmax(0, busy - delayed - slowed - sum);
    at[WATERFALL_LOSS] = busy - slowed - delayed;
    for (int line = 0; line <= WATERFALL_UNEVEN; line++)
        if (line != WATERFALL_LOSS) at[WATERFALL_LOSS] -= at[line];
    at[WATERFALL_MESSAGES] = fmin(waits, fmax(0, time->pipeline - unsent->pipeline));
    at[WATERFALL_IDLE] = waits - at[WATERFALL_MESSAGES];
    at[WATERFALL_MESSAGES] += delayed;
    fall->imbalance = fmin(most - sum, at[WATERFALL_IDLE]);
    fall->ramp = at[WATERFALL_IDLE] - fall->imbalance;
    at[WATERFALL_DATA] = time->reduction + slowed;
    at[WATERFALL_OPTIMIZER] = time->step - time->pipeline - time->reduction;
}

// ---------------------------------------------------------------- advice

// Advises another split of the layers. Returns the number of sentences, 0 or 1; -1 with err.
static int advise_layers_(const PlanAnswer *answer, const PlanCosts *costs, char text[WATERFALL_ADVICE], Error *err) {
    int p = answer->plan.stages, most = 0, least = 0;
    for (int s = 1; s < p; s++) {
        if (stage_work_(&costs->stage[s]) > stage_work_(&costs->stage[most])) most = s;
        if (stage_work_(&costs->stage[s]) < stage_work_(&costs->stage[least])) least = s;
    }
    double ratio = stage_work_(&costs->stage[most]) / stage_work_(&costs->stage[least]);
    char list[96] = ""; // no advice if the list is longer
    Forecast forecast;
    Config dealt = answer->config;
    bool few = answer->config.model.layers < p; // with so few layers, some stage has none
    if (ratio < 1.02 || few || 2 * p > (int)sizeof list || answer->schedule->chunks > 1 ||
        answer->config.schedule.file[0] != '\0')
        return 0;
    // All stages get about the same amount of work.
    Schedule placed = {.stages = p, .chunks = 1};
    double layer = INFINITY, load[CONFIG_MAX_STAGES];
    for (int s = 0; s < p; s++) {
        double layers = (double)answer->plan.stage[s].at.layers;
        if (layers > 0) layer = fmin(layer, stage_work_(&costs->stage[s]) / layers);
    }
    for (int s = 0; s < p; s++)
        load[s] = stage_work_(&costs->stage[s]) - layer * (double)answer->plan.stage[s].at.layers;
    layout_deal_layers(&placed, dealt.model.layers, layer, load, dealt.parallel.layers_per_stage);
    dealt.parallel.layers_given = dealt.parallel.layers_count = p;
    dealt.schedule.split_backward = answer->planner.config->schedule.split_backward; // auto decides again
    if (planner_forecast_config(&answer->planner, &dealt, true, &forecast, err) != 0) return -1;
    double less = 1 - forecast.time.step / answer->time.step;
    if (!forecast.possible || !forecast.fits || !forecast.time.known || less < 0.005) return 0;
    for (int s = 0; s < p; s++)
        text_add(list, sizeof list, "%s%d", s > 0 ? "," : "", dealt.parallel.layers_per_stage[s]);
    if (strlen(list) == sizeof list - 1) return 0;
    snprintf(text, WATERFALL_ADVICE,
             "stage %d takes %.2g times as long as stage %d: -o parallel.layers=[%s], %.3g %% less", most, ratio, least,
             list, 100 * less);
    return 1;
}

int waterfall_make(Waterfall *fall, const PlanAnswer *answer, bool lines, Error *err) {
    const Planner *planner = &answer->planner;
    const Config *config = &answer->config;
    TimeSource source = planner_source(planner);
    source.free_messages = true;
    PlanCosts costs = {0};
    PlanTime unsent = {0};
    memset(fall, 0, sizeof *fall);
    if (!answer->time.known || planner->hardware.cost.flops == 0) return 0;
    ScheduleLoan loan = planner_schedule(planner, config, err);
    const Schedule *schedule = loan.schedule;
    if (schedule == NULL) return -1;
    Plan plan = planner_plan(planner, config, schedule);
    int status = lines ? plan_time(&unsent, config, schedule, &plan, &source, INFINITY, err) : 0;
    // The complete list has the right share of split backwards.
    if (status == 0) status = plan_costs_make(&costs, config, answer->schedule, &answer->plan, &source, err);
    if (status == 0) {
        fall->known = true;
        fall->experts = config->model.experts > 0;
        waterfall_divide_(fall, answer, &costs, &unsent);
        int said = advise_layers_(answer, &costs, fall->advice[0], err);
        if (said < 0) status = -1;
        if (said < 0) said = 0;
        if (answer->plan.no_flash) snprintf(fall->advice[said++], WATERFALL_ADVICE, "%s", answer->plan.flash);
        // A deterministic attention backward may add over 1/8 of a GPU's memory. On sm_80 and sm_90 it stores the
        // scores' gradient: 32 GiB a head at 128k tokens.
        AttentionShape shape = answer->plan.stage[0].at.shape.attention, quick = shape;
        quick.deterministic = DETERMINISTIC_OFF;
        int64_t most = planner->hardware.memory_bytes, own = attention_flash_workspace(&shape, planner->be->capability);
        int64_t less = attention_flash_workspace(&quick, planner->be->capability), t = config->parallel.tensor;
        if (!planner->hardware.cpu && most > 0 && shape.mode == ATTENTION_FLASH && (own - less) * 8 >= most)
            snprintf(fall->advice[said++], WATERFALL_ADVICE,
                     "attention's deterministic backward takes %.3g GiB: -o attention.deterministic=off takes %.3g GiB",
                     (double)own / GIB, (double)less / GIB);
        // Products of 16-bit numbers are slow if their rows are not read in pieces of 16 bytes (cost_product).
        const ModelConfig *m = &config->model;
        bool whole = m->heads * m->head_dim == m->hidden; // so hidden has to stay a multiple of heads
        const struct {
            const char *key;
            int64_t extent, ranks, multiple; // multiple: of the extents to advise
        } rows[] = {{"ffn", m->experts > 0 ? 0 : m->ffn, t, 64 * t},
                    {"hidden", m->hidden, whole ? t : 1, whole ? 8 * m->heads : 64}};
        bool cores = !planner->hardware.cpu && config->train.precision == PRECISION_BF16;
        for (int i = 0; i < 2 && cores; i++)
            if (rows[i].extent % (8 * rows[i].ranks) != 0)
                snprintf(fall->advice[said++], WATERFALL_ADVICE,
                         "model.%s%s is %.6g, not a multiple of 8: products lose up to a third of their rate; set it "
                         "to %lld",
                         rows[i].key, rows[i].ranks > 1 ? " / parallel.tensor" : "",
                         (double)rows[i].extent / (double)rows[i].ranks,
                         (long long)((rows[i].extent + rows[i].multiple - 1) / rows[i].multiple * rows[i].multiple));
        plan_costs_free(&costs);
    }
    plan_free(&plan);
    schedule_cache_return(&loan);
    return status;
}

// ---------------------------------------------------------------- output

static double waterfall_sum_(const Waterfall *fall) {
    double step = 0;
    for (int line = 0; line < WATERFALL_LINES; line++) step += fall->seconds[line];
    return step;
}

void waterfall_print(const Waterfall *fall, FILE *file) {
    double step = waterfall_sum_(fall);
    char time[32], idle[32];
    if (!fall->known) return;
    Grid grid = {.columns = 4};
    const char *heading[] = {"where the step goes", "time", "share", ""};
    for (int i = 0; i < 4; i++) grid_cell(&grid, "%s", heading[i]);
    for (int line = 0; line < WATERFALL_LINES; line++) {
        if (!told_(fall, line)) continue;
        grid_cell(&grid, "%s", lines_[line]);
        grid_cell(&grid, "%s", grid_seconds(fall->seconds[line], time));
        grid_cell(&grid, "%.1f%%", 100 * fall->seconds[line] / step);
        if (line == WATERFALL_IDLE)
            grid_cell(&grid, "ramp %s, uneven stages %s", grid_seconds(fall->ramp, time),
                      grid_seconds(fall->imbalance, idle));
        else grid_cell(&grid, "%s", "");
    }
    grid_print(&grid, file);
    grid_free(&grid);
}

void waterfall_write_json(const Waterfall *fall, JsonOut *out) {
    double step = waterfall_sum_(fall);
    if (fall->known) json_begin(out, "waterfall", '[');
    else json_put_null(out, "waterfall");
    for (int line = 0; line < WATERFALL_LINES && fall->known; line++) {
        if (!told_(fall, line)) continue;
        json_begin(out, NULL, '{');
        json_members(out, "what %s ms %g share %g", lines_[line], 1e3 * fall->seconds[line],
                     fall->seconds[line] / step);
        if (line == WATERFALL_IDLE)
            json_members(out, "ramp_ms %g imbalance_ms %g", 1e3 * fall->ramp, 1e3 * fall->imbalance);
        json_end(out, '}');
    }
    if (fall->known) json_end(out, ']');
    json_begin(out, "advice", '[');
    for (int i = 0; i < WATERFALL_MOST && fall->advice[i][0] != '\0'; i++) json_put_text(out, NULL, fall->advice[i]);
    json_end(out, ']');
}
