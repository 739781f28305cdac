// Prints, under the table of schedules, the cost of published methods that this engine cannot run, by their authors'
// formulas. The methods take part in no decision, because a formula ignores messages. Bytes are counted per stage,
// since stages may be uneven.
#include "base/grid.h"
#include "base/units.h"
#include "plan_report.h"

#include <math.h>

// 1. FSDP in place of the pipeline: every tensor rank's states are spread over all p d ranks, and each rank computes
// all layers. Every microbatch gathers the weights twice and sums the gradients once; compute hides these collectives
// as long as it runs.
// 2. Vocabulary parallelism: embedding and head are spread over all stages, and each stage keeps one more bundle.
void plan_formulas_print(const PlanAnswer *answer, FILE *file) {
    const ScheduleTable *table = &answer->schedules;
    const Config *config = &answer->config;
    const Plan *plan = &answer->plan_1f1b;
    const Hardware *hardware = &answer->planner.hardware;
    RunLayout plain = layout_of(config); // 1F1B without split backwards and evictions: the baseline of the formulas
    plain.name = schedule_kind_plain();
    plain.split = SPLIT_OFF;
    plain.bpipe = BPIPE_OFF;
    LayoutMask same = LAYOUT_BIT(name) | LAYOUT_BIT(split) | LAYOUT_BIT(bpipe) | LAYOUT_BIT(recompute) |
                      LAYOUT_BIT(attention) | LAYOUT_BIT(pointwise);
    const Forecast *row = table->rows;
    while (row < table->rows + table->count && !layout_same(&row->layout, &plain, same)) row++;
    if (row == table->rows + table->count || !row->time.known || config->parallel.pipeline < 2) return;
    grid_line(file, "formulas", "not run here, not simulated, not among the schedules above:");
    int64_t d = config->parallel.data, shards = d * plan->stages, batch = shards * config->schedule.micro_batch;
    int64_t all = 0, peak = 0; // bytes of the states of all stages; bytes of the fullest rank with its share of them
    double sent = 0, states = 0, bundles = 0, layer = 0, busy = (1 - row->time.bubble) * row->time.pipeline;
    char bytes[32], step[32], beyond[32];
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        sent += 2 * (double)stage->states.weights + (double)stage->states.gradients;
        states += (double)(stage->states.weights + stage->states.gradients) +
                  (double)(d * (stage->states.masters + stage->states.moments));
        bundles += (double)stage->at.bundle_bytes;
        if (stage->at.layers > 0) layer = fmax(layer, (double)(stage->states.weights / stage->at.layers));
        all += states_total(&stage->states);
    }
    if (config->train.global_batch % batch == 0 && config->parallel.context == 1) {
        int64_t t = config->parallel.tensor, node = hardware_domain(hardware, config);
        double rate = hardware->cost.tensor, network = hardware_network(hardware, config);
        if (config_world(config) > node) rate = fmin(rate, network / (double)(t < node ? t : node));
        double rounds = (double)(config->train.global_batch / batch);
        double moves = rounds * sent * (double)(shards - 1) / (double)shards / rate;
        grid_line(file, "",
                  "FSDP (ZeRO-3) over %lld ranks instead of the pipeline: about %s a rank and %s a step, of which %s "
                  "are exposed gathers and sums (arXiv 2304.11277)",
                  (long long)shards, grid_bytes((int64_t)(states / (double)shards + bundles + 2 * layer), bytes),
                  grid_seconds(fmax(busy, moves) + row->time.optimizer, step),
                  grid_seconds(fmax(0, moves - busy), beyond));
    }
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        int64_t held = memory_total(&stage->memory) + stage->slot_bytes - states_total(&stage->states);
        peak = max_i64(peak, held + all / plan->stages);
    }
    double uneven = fmax(0, (double)config_microbatches(config) * row->time.slowest - busy);
    grid_line(file, "",
              "vocabulary parallelism, with embedding and head on all stages: about %s on the fullest rank and %s a "
              "step, for stages with equal layers (arXiv 2411.05288)",
              grid_bytes(peak, bytes), grid_seconds(row->time.step - uneven, step));
}
