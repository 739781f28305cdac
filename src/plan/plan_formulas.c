// Prints, under the table of schedules, the cost of published methods that this engine cannot run, by their authors'
// formulas. The methods take part in no decision, because a formula ignores messages. Bytes are counted per stage,
// since stages may be uneven.
#include "base/grid.h"
#include "base/units.h"
#include "plan_report.h"

#include <math.h>

// Returns the row of 1F1B without split backwards and evictions, which the formulas start from; NULL: no such row.
static const Forecast *plain_row_(const PlanAnswer *answer) {
    const ScheduleTable *table = &answer->schedules;
    RunLayout plain = layout_of(&answer->config);
    plain.name = schedule_kind_plain();
    plain.split = SPLIT_OFF;
    plain.bpipe = BPIPE_OFF;
    for (int i = 0; i < table->count; i++) {
        LayoutMask same = LAYOUT_BIT(name) | LAYOUT_BIT(split) | LAYOUT_BIT(bpipe) | LAYOUT_BIT(recompute);
        if (layout_same(&table->rows[i].layout, &plain, same | LAYOUT_BIT(attention) | LAYOUT_BIT(pointwise)))
            return &table->rows[i];
    }
    return NULL;
}

// Prints FSDP in place of the pipeline: every tensor rank's states are spread over all p d ranks, and each of these
// ranks computes all layers. Every microbatch gathers the weights twice and sums the gradients once; compute hides
// these collectives as long as it runs.
static void print_fsdp_(const PlanAnswer *answer, const Forecast *row, FILE *file) {
    const Config *config = &answer->config;
    const Plan *plan = &answer->plan_1f1b;
    const Hardware *hardware = &answer->planner.hardware;
    int64_t d = config->parallel.data, shards = d * plan->stages, batch = shards * config->schedule.micro_batch;
    if (config->train.global_batch % batch != 0 || config->parallel.context > 1) return;
    double sent = 0, states = 0, bundles = 0, layer = 0;
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        sent += 2 * (double)stage->states.weights + (double)stage->states.gradients;
        states += (double)(stage->states.weights + stage->states.gradients) +
                  (double)(d * (stage->states.masters + stage->states.moments));
        bundles += (double)stage->at.bundle_bytes;
        if (stage->at.layers > 0) layer = fmax(layer, (double)(stage->states.weights / stage->at.layers));
    }
    int64_t t = config->parallel.tensor, node = hardware_domain(hardware, config);
    double rate = hardware->cost.tensor, network = hardware_network(hardware, config);
    if (config_world(config) > node) rate = fmin(rate, network / (double)(t < node ? t : node));
    double moves = (double)(config->train.global_batch / batch) * sent * (double)(shards - 1) / (double)shards / rate;
    double busy = (1 - row->time.bubble) * row->time.pipeline;
    char bytes[32], step[32], beyond[32];
    grid_line(file, "",
              "FSDP (ZeRO-3) over %lld ranks instead of the pipeline: about %s a rank and %s a step, of which %s "
              "are gathers and sums beyond compute (arXiv 2304.11277)",
              (long long)shards, grid_bytes((int64_t)(states / (double)shards + bundles + 2 * layer), bytes),
              grid_seconds(fmax(busy, moves) + row->time.optimizer, step), grid_seconds(fmax(0, moves - busy), beyond));
}

// Prints vocabulary parallelism: embedding and head are spread over all stages, and each stage keeps one more bundle.
static void print_vocabulary_(const PlanAnswer *answer, const Forecast *row, FILE *file) {
    const Plan *plan = &answer->plan_1f1b;
    const PlanTime *time = &row->time;
    int64_t states = 0, peak = 0;
    char bytes[32], step[32];
    for (int s = 0; s < plan->stages; s++) states += states_total(&plan->stage[s].states);
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        int64_t held = memory_total(&stage->memory) + stage->slot_bytes - states_total(&stage->states);
        peak = max_i64(peak, held + states / plan->stages);
    }
    double work = (double)config_microbatches(&answer->config) * time->slowest;
    double uneven = fmax(0, work - (1 - time->bubble) * time->pipeline);
    grid_line(file, "",
              "vocabulary parallelism, with embedding and head on all stages: about %s on the fullest rank and %s a "
              "step, for stages with equal layers (arXiv 2411.05288)",
              grid_bytes(peak, bytes), grid_seconds(time->step - uneven, step));
}

void plan_formulas_print(const PlanAnswer *answer, FILE *file) {
    const Forecast *row = plain_row_(answer);
    if (row == NULL || !row->time.known || answer->config.parallel.pipeline < 2) return;
    grid_line(file, "formulas", "not run here, not simulated, not among the schedules above:");
    print_fsdp_(answer, row, file);
    print_vocabulary_(answer, row, file);
}
