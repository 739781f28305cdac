// Lower bounds of a step. The plan simulates a few rounds of a long schedule and extrapolates the rest, with an error
// of a few thousandths. So its steps may be shorter than the bound by the factor BOUND_SLACK, which search.c applies.
#include "bound.h"

#include "base/alloc.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool cut_never_fits(const Cut *cut, const SearchSpace *space, Config *config) {
    double limit = (double)space->planner->hardware.memory_bytes, reserve = config->hardware.reserve_gib;
    if (plan_lacks((double)cut->least_bytes, limit, reserve) <= 0) return false;
    if (space_fixes(space, LAYOUT_BIT(recompute))) return true;
    ScheduleConfig *all = &config->schedule; // recomputes all layers temporarily
    int64_t given = all->recompute_given;
    int16_t first = all->recompute_of_stage[0];
    all->recompute_given = 1, all->recompute_of_stage[0] = (int16_t)config->model.layers;
    Cut recomputed;
    cut_open(&recomputed, space, config);
    all->recompute_given = given, all->recompute_of_stage[0] = first;
    bool never = false; // a stage of one layer may take less if it recomputes nothing
    for (int s = 0; s < cut->plan.stages; s++) {
        int64_t bytes = memory_total(&recomputed.plan.stage[s].memory), kept = memory_total(&cut->plan.stage[s].memory);
        never |= plan_lacks((double)min_i64(bytes, kept), limit, reserve) > 0;
    }
    cut_free(&recomputed);
    return never;
}

void cut_open(Cut *cut, const SearchSpace *space, const Config *config) {
    *cut = (Cut){.lists = space_one_slot(config)};
    cut->plan = planner_plan(space->planner, config, &cut->lists);
    for (int s = 0; s < cut->plan.stages; s++) {
        const PlanStage *stage = &cut->plan.stage[s];
        int64_t bytes = memory_total(&stage->memory);
        // A stage that recomputes layers has room for all outputs of one layer, plus nearly empty bundles.
        int64_t layer = min_i64(stage->slot_bytes / max_i64(stage->at.layers, 1), stage->at.recomputed_bundle);
        int64_t one = bytes - stage->memory.bytes[MEMORY_OWN_SLOTS] + layer;
        cut->least_bytes = max_i64(cut->least_bytes, bytes);
        cut->recomputing_bytes = max_i64(cut->recomputing_bytes, min_i64(bytes, one));
    }
}

int cut_time(Cut *cut, const SearchSpace *space, const Config *config, Error *err) {
    TimeSource source = planner_source(space->planner);
    if (plan_costs_make(&cut->costs, config, &cut->lists, &cut->plan, &source, err) != 0) return -1;
    for (int s = 0; s < cut->lists.stages; s++) cut->after = max_double(cut->after, cut->costs.stage[s].optimizer);
    cut->after += cut->costs.tied;
    return 0;
}

void cut_free(Cut *cut) {
    plan_costs_free(&cut->costs);
    plan_free(&cut->plan);
    free(cut->lists.stage);
    memset(cut, 0, sizeof *cut);
}

// Returns how many W of stage s may come after its last I; one if each W directly follows its I.
static double late_weights_(const Cut *cut, const RunLayout *layout, int s) {
    const ScheduleKind *kind = &schedule_kinds[layout->name];
    if (!kind->splits || kind->grouped) return 1;
    if (kind->delayed) return 1 + (s < layout->delay ? s : layout->delay);
    // a schedule in a V may delay all W to the end
    return (double)cut->lists.microbatches * cut->lists.chunks * cut->lists.slices;
}

// Lists of 1F1B on n slices run F(i + p-s) of stage s after the backward of F(i), if slice i is the last one of its
// microbatch. That backward ends one trip through the stages above after F(i) starts, and the messages of the trip take
// time that nothing hides. So each run of p-s slices takes at least one trip, which may be longer than its work.
// between: seconds that a microbatch spends before stage s, and its gradient after it.
static double trips_bound_(const Cut *cut, int s, double between) {
    const SimulateCosts *costs = &cut->costs.costs;
    int n = cut->lists.slices, p = cut->lists.stages, own = s * n, ahead = p - s, hop = (ahead + n - 1) / n;
    int64_t m = cut->lists.microbatches, hops = (m - 1) / hop, left = (m - 1) % hop;
    const double *back = cut->lists.split ? costs->input : costs->backward;
    double trip = 0, work = 0, forward = INFINITY, backward = INFINITY;
    for (int at = s; at < p; at++) {
        trip += costs->forward[at * n + n - 1] + back[at * n + n - 1];
        if (at + 1 < p) trip += 2 * costs->edge[at];
    }
    for (int i = own; i < own + n; i++) {
        work += costs->forward[i] + back[i];
        forward = min_double(forward, costs->forward[i]), backward = min_double(backward, back[i]);
    }
    double first = work - costs->forward[own + n - 1] - back[own + n - 1]; // before the first trip, after the last
    double each = trip + (hop * n - ahead) * (forward + backward);
    return between + first + (double)hops * each + (hops > 0 ? (double)left * work : 0) + trip;
}

double cut_bound(const Cut *cut, const RunLayout *layout) {
    const SimulateCosts *costs = &cut->costs.costs;
    const ScheduleKind *kind = &schedule_kinds[layout->name];
    bool in_v = kind->placement == PLACEMENT_V, split = cut->lists.split;
    bool trips = cut->lists.chunks == 1 && !kind->keeps_all && !kind->splits;      // 1F1B and Seq1F1B
    int stages = cut->lists.stages, parts = cut->lists.chunks * cut->lists.slices; // slice 0: first F, last B
    double m = (double)cut->lists.microbatches, most = 0, before = 0, back = 0,
           first_weight = split ? costs->weight[0] : 0;
    for (int s = 0; s < stages; s++) {
        int own = s * parts; // chunk 0, which has the first forward of the stage and its last gradient
        double work = 0, weights = 0, slowed = 0; // slowed: seconds that gradient sums add to the last backwards
        for (int c = 0; c < parts; c++) {
            weights += split ? costs->weight[own + c] : 0;
            double backward = split ? costs->input[own + c] + costs->weight[own + c] : costs->backward[own + c];
            // V schedules mix split and unsplit backwards; take the cheaper, so that this stays a lower bound.
            if (in_v && costs->backward[own + c] < backward) backward = costs->backward[own + c];
            work += costs->forward[own + c] + backward;
            if (c % layout->slices == 0) slowed += (costs->last[s] - 1) * (split ? costs->weight[own + c] : backward);
        }
        double late = split ? late_weights_(cut, layout, s) : 0;
        double hidden = late == 1 ? costs->weight[own] : late * weights;
        if (hidden > m * weights) hidden = m * weights;
        double alone = before + m * work + slowed + cut->costs.stage[s].reduction;
        double whole = before + m * work - hidden + back + (s > 0 || split ? first_weight : 0);
        if (s == 0) whole = m * work + slowed;
        if (trips) whole = max_double(whole, trips_bound_(cut, s, before + back));
        if (alone > most) most = alone;
        if (whole > most) most = whole;
        if (s + 1 == stages) break;
        before += costs->forward[own] + costs->edge[s];
        back += (split ? costs->input[own] : costs->last[s] * costs->backward[own]) + costs->edge[s];
    }
    return most + cut->after;
}

// Recomputing one layer takes at least SHARE of an average layer's time in recomputing all. In a chunk with dense
// layers, the dense layers are recomputed first and take less, so the bound adds nothing.
double cut_recomputing_bound(const Cut *cut, const Cut *all, const Config *config) {
    static const double SHARE = 0.9;
    int parts = cut->lists.chunks * cut->lists.slices;
    double m = (double)cut->lists.microbatches, most = 0, before = 0;
    for (int s = 0; s < cut->lists.stages; s++) {
        const StageShape *at = &cut->plan.stage[s].at;
        double work = plan_least_work(&cut->costs, &cut->lists, s);
        double more = plan_least_work(&all->costs, &all->lists, s) - work;
        double recomputed = (double)min_i64(config_recompute(config, s), at->layers);
        double share = (recomputed - (double)at->recomputed) / max_double(1, (double)(at->layers - at->recomputed));
        double added = more * share;
        if (added > 0) added *= at->chunk[0].dense > 0 ? 0 : SHARE;
        work += added;
        most = max_double(most, before + m * work);
        before += cut->costs.costs.forward[s * parts] + cut->costs.costs.edge[s];
    }
    return most + cut->after;
}

// A profile has no times for single layers. With a list by stage, `times` are those of the first stage's layers.
double shape_bound(const SearchSpace *space, const RunLayout *shape, const PartTimes *times) {
    bool listed = shape->attention == ATTENTION_LISTED || shape->pointwise == POINTWISE_LISTED;
    if (space->planner->measured || listed) return 0;
    const ModelConfig *model = &space->keys.base->model;
    double layers = (double)model->layers, p = (double)shape->pipeline;
    // In a model with experts, the bound ignores layers without experts, whose times differ.
    int64_t alike = model->layers - model->dense_layers;
    double all = (double)alike * times->layer + times->embedding + times->head, slowest = INFINITY;
    double m = (double)(space->keys.base->train.global_batch / shape->data / shape->micro_batch);
    // Averaged over the ranks, the first forward has passed half of the stages, one chunk on each: of 4 stages it
    // passes 0, 1, 2 and 3 before it reaches ranks 0 to 3, which is (p - 1) / 2 on average. If layers are split by
    // time, a chunk may have one layer less than with an even split, but at least one.
    double least = max_double(space_fixes(space, LAYOUT_BIT(layers)) ? 0 : 1,
                              floor(layers / (p * layout_most_chunks(&space->keys))) - 1);
    double average = m * all / p + (model->dense_layers > 0 ? 0 : (p - 1) / 2 * least * times->first);
    // Layers are not cut: the slowest stage is the head's, with `with` layers, or the one with the most other layers.
    for (int64_t with = 0; with <= alike && shape->pipeline > 1; with++) {
        double others = ceil((double)(alike - with) / (p - 1)) * times->layer;
        slowest = min_double(slowest, max_double((double)with * times->layer + times->head, others));
    }
    return isinf(slowest) ? average : max_double(average, m * slowest);
}

// A chunk takes as long as its layers, or longer at its ends. I and W together take at least as long as a complete
// backward; the other terms of cut_bound are omitted if backwards are split or the last slice is shorter.
double cut_rough_bound(const SearchSpace *space, const Config *config, const PartTimes *times) {
    const ParallelConfig *parallel = &config->parallel;
    int p = (int)parallel->pipeline, chunks = config_chunks(config), parts = p * chunks;
    Schedule placed = {.stages = p, .chunks = chunks, .placement = config_schedule_kind(config)->placement};
    bool split = config_schedule_kind(config)->splits || config->schedule.split_backward == SPLIT_ON;
    double m = (double)config_microbatches(config), most = 0, before = 0, back = 0;
    int64_t dense = config->model.dense_layers, alike[CONFIG_MAX_STAGES];
    bool listed = config->attention.modes_given > 1 || config->schedule.pointwise_given > 1; // as in shape_bound
    if (space->planner->measured || listed) return 0;
    for (int g = 0; g < parts; g++) {
        int64_t layers = config_layers(config, parts, g), without = min_i64(layers, dense);
        alike[g] = layers - without, dense -= without;
    }
    for (int s = 0; s < p; s++) {
        double work = 0;
        for (int c = 0; c < chunks; c++) {
            int g = schedule_virtual(&placed, s, c);
            work += m * (double)alike[g] * times->layer;
            if (g == 0) work += m * times->embedding;
            if (g + 1 == parts) work += m * times->head;
        }
        most = max_double(most, before + work + back);
        before += (double)alike[s] * times->first; // chunk 0's first forward
        if (!split && config_slices(config) == 1) back += (double)alike[s] * (times->layer - times->forward);
    }
    return most;
}
