// Lower bounds of a step. The plan simulates a few rounds of a long schedule and extrapolates the rest, with an error
// of a few thousandths. So its steps may be shorter than the bound by the factor BOUND_SLACK, which search.c applies.
#include "bound.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns a schedule with one slot per stage and without lists. The caller frees `stage`.
static Schedule one_slot_(const Config *config) {
    const ScheduleKind *kind = config_schedule_kind(config);
    int p = (int)config->parallel.pipeline;
    StageSchedule *stages = xcalloc((size_t)p, sizeof *stages);
    for (int s = 0; s < p; s++) stages[s].own_slots = 1;
    return (Schedule){.stages = p,
                      .chunks = config_chunks(config),
                      .slices = config_slices(config),
                      .placement = kind->placement,
                      .microbatches = (int)config_microbatches(config),
                      .slots = 1,
                      .edge_buffers = SCHEDULE_EDGE_BUFFERS,
                      .split = kind->splits || config->schedule.split_backward == SPLIT_ON,
                      .stage = stages};
}

bool cut_never_fits(const Cut *cut, const SearchSpace *space, const Config *config) {
    const Planner *planner = space->planner;
    double limit = (double)planner->hardware.memory_bytes, reserve = config->hardware.reserve_gib;
    if (plan_lacks((double)cut->least_bytes, limit, reserve) <= 0) return false;
    if (space_fixes(space, LAYOUT_BIT(recompute))) return true;
    Config again = *config;
    again.schedule.recompute_given = 1;
    again.schedule.recompute_of_stage[0] = (int16_t)config->model.layers;
    Schedule lists = one_slot_(&again);
    Plan plan = planner_plan(planner, &again, &lists);
    bool never = plan_lacks((double)memory_total(&plan.stage[plan_fullest(&plan)].memory), limit, reserve) > 0;
    plan_free(&plan);
    free(lists.stage);
    return never;
}

int cut_make(Cut *cut, const SearchSpace *space, const Config *config, Error *err) {
    const Planner *planner = space->planner;
    int p = (int)config->parallel.pipeline;
    Schedule lists = one_slot_(config);
    Plan plan = planner_plan(planner, config, &lists);
    TimeSource source = planner_source(planner);
    memset(cut, 0, sizeof *cut);
    int status = plan_costs_make(&cut->costs, config, &lists, &plan, &source, err);
    cut->stages = p;
    cut->chunks = lists.chunks * lists.slices; // one cost per slice; slice 0 of chunk 0 has the first F and the last B
    cut->microbatches = config_microbatches(config);
    cut->split = lists.split;
    cut->least_bytes = memory_total(&plan.stage[plan_fullest(&plan)].memory);
    for (int s = 0; s < p && status == 0; s++)
        if (cut->costs.stage[s].optimizer > cut->after) cut->after = cut->costs.stage[s].optimizer;
    cut->after += cut->costs.tied;
    plan_free(&plan);
    free(lists.stage);
    return status;
}

void cut_free(Cut *cut) {
    plan_costs_free(&cut->costs);
    memset(cut, 0, sizeof *cut);
}

// Returns how many W of stage s may come after its last I; one if each follows its I at once.
static double late_weights_(const Cut *cut, const RunLayout *layout, int s) {
    const ScheduleKind *kind = &schedule_kinds[layout->name];
    if (!kind->splits || kind->grouped) return 1;
    if (kind->delayed) return 1 + (s < layout->delay ? s : layout->delay);
    return (double)(cut->microbatches * cut->chunks); // a schedule in a V may delay all W to the end
}

double cut_bound(const Cut *cut, const RunLayout *layout) {
    const SimulateCosts *costs = &cut->costs.costs;
    double m = (double)cut->microbatches, most = 0, before = 0, back = 0,
           first_weight = cut->split ? costs->weight[0] : 0;
    bool in_v = schedule_kinds[layout->name].placement == PLACEMENT_V;
    for (int s = 0; s < cut->stages; s++) {
        int own = s * cut->chunks; // chunk 0, which has the first forward of the stage and its last gradient
        double work = 0, weights = 0, slowed = 0; // slowed: seconds that gradient sums add to the last backwards
        for (int c = 0; c < cut->chunks; c++) {
            weights += cut->split ? costs->weight[own + c] : 0;
            double parts = cut->split ? costs->input[own + c] + costs->weight[own + c] : costs->backward[own + c];
            // Some schedules in a V run a few complete backwards. A complete backward gathers less than its I and W.
            if (in_v && costs->backward[own + c] < parts) parts = costs->backward[own + c];
            work += costs->forward[own + c] + parts;
            if (c % layout->slices == 0) slowed += (costs->last[s] - 1) * (cut->split ? costs->weight[own + c] : parts);
        }
        double late = cut->split ? late_weights_(cut, layout, s) : 0;
        double hidden = late == 1 ? costs->weight[own] : late * weights;
        if (hidden > m * weights) hidden = m * weights;
        double alone = before + m * work + slowed + cut->costs.stage[s].reduction;
        double whole = before + m * work - hidden + back + (s > 0 || cut->split ? first_weight : 0);
        if (s == 0) whole = m * work + slowed;
        if (alone > most) most = alone;
        if (whole > most) most = whole;
        if (s + 1 == cut->stages) break;
        before += costs->forward[own] + costs->edge[s];
        back += (cut->split ? costs->input[own] : costs->last[s] * costs->backward[own]) + costs->edge[s];
    }
    return most + cut->after;
}

double shape_bound(const SearchSpace *space, const RunLayout *shape) {
    enum { MOST_CHUNKS = 4 };
    if (space->planner->measured) return 0; // a profile has no times of single layers
    PartTimes times = space_times(space, shape);
    double layers = (double)space->keys.base->model.layers, p = (double)shape->pipeline;
    double all = layers * times.layer + times.embedding + times.head;
    double m = (double)(space->keys.base->train.global_batch / shape->data / shape->micro_batch);
    // Averaged over the ranks, the first forward has passed half of the stages, one chunk on each: of 4 stages it
    // passes 0, 1, 2 and 3 before it reaches ranks 0 to 3, which is (p - 1) / 2 on average. If layers are split by
    // time, a chunk may have one layer less than with an even split.
    double least = floor(layers / (p * MOST_CHUNKS)) - 1;
    double fill = least > 0 ? (p - 1) / 2 * least * times.first : 0;
    return m * all / p + fill;
}
