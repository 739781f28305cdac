// Turns stage times into a step. For a long schedule, shorter ones are simulated and their times are extrapolated.
#include "plan_time.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int plan_enough_microbatches(int stages) { return 4 * stages + 8; }

// The pipeline phase, in seconds.
typedef struct Phase {
    double makespan, busy, exposed;
    double last; // end of the latest stage, with its sums over data ranks
} Phase;

// The gradient sums of one stage that are in flight.
typedef struct Summing {
    double left;        // bytes left to sum, for layers with complete gradients
    const double *next; // [to_come] times at which the last backwards complete the next layers, in order
    int to_come;        // layers with gradients that are not complete yet
    double moving;      // bytes/s at which the stage sums now
} Summing;

// Advances all sums to the next time at which a layer's sum begins or ends. Returns false if all are complete.
static bool summing_advance_(Summing *at, const PlanCosts *costs, int stages, double *now) {
    const StageTime *sums = costs->stage;
    double step = INFINITY;
    for (int s = 0; s < stages; s++)
        for (; at[s].to_come > 0 && *at[s].next <= *now; at[s].to_come--, at[s].next++)
            at[s].left += sums[s].bytes / sums[s].layers + (at[s].to_come == 1 ? sums[s].late : 0);
    for (int s = 0; s < stages; s++) at[s].moving = sums[s].rate;
    for (const bool *on = costs->on; on < costs->on + costs->kinds * stages; on += stages) {
        int users = 0;
        for (int s = 0; s < stages; s++) users += on[s] && at[s].left > 0;
        for (int s = 0; s < stages && users > 1; s++)
            if (on[s]) at[s].moving = fmin(at[s].moving, sums[s].rate / users);
    }
    for (int s = 0; s < stages; s++) {
        if (at[s].left > 0) step = fmin(step, at[s].left / at[s].moving);
        if (at[s].to_come > 0) step = fmin(step, *at[s].next - *now);
    }
    if (step == INFINITY) return false;
    *now += step;
    for (int s = 0; s < stages; s++) {
        bool ends = at[s].left <= at[s].moving * step * (1 + 1e-12);
        at[s].left = ends ? 0 : at[s].left - at[s].moving * step;
    }
    return true;
}

static int compare_seconds_(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

// Returns the time at which all stages have summed their gradients over data ranks, after a pipeline. Each chunk's last
// backward completes one layer after another. Stages of a node share its network while they sum, so stages that end
// first get more of it.
static double summed_(const PlanCosts *costs, const Schedule *schedule, const Timeline *timeline) {
    const StageTime *sums = costs->stage;
    const double *backward = schedule->split ? costs->costs.weight : costs->costs.backward;
    int stages = schedule->stages, chunks = schedule->chunks, layers = 0;
    double now = INFINITY, latest = 0, bytes = 0;
    for (int s = 0; s < stages; s++) {
        latest = fmax(latest, timeline->stage[s].last);
        bytes += sums[s].bytes + sums[s].late; // 0 on a stage without experts if nothing else has replicas
        layers += sums[s].layers;
    }
    if (bytes == 0) return latest;
    Summing *at = xcalloc((size_t)stages, sizeof *at);
    double *times = xmalloc((size_t)layers * sizeof *times), *next = times;
    for (int s = 0; s < stages; s++) {
        at[s] = (Summing){.next = next, .to_come = sums[s].layers};
        if (costs->plan->stage[s].at.layers == 0) *next++ = timeline->stage[s].last;
        for (int c = s * chunks; c < (s + 1) * chunks; c++) {
            int64_t own = costs->plan->stage[s].at.chunk[c - s * chunks].layers;
            double layer = backward[c * schedule->slices] * costs->costs.last[s] / (double)max_i64(own, 1);
            while (own > 0) *next++ = timeline->ended[c] - layer * (double)--own;
        }
        qsort((double *)at[s].next, (size_t)sums[s].layers, sizeof *next, compare_seconds_);
        now = fmin(now, *at[s].next);
    }
    assert(next == times + layers);
    while (summing_advance_(at, costs, stages, &now)) latest = fmax(latest, now);
    free_all(at, times);
    return latest;
}

// most: see SimulateCosts; the makespan is INFINITY if the phase takes longer.
static int phase_(Phase *phase, const Schedule *schedule, const PlanCosts *costs, double most, Error *err) {
    SimulateCosts totals = costs->costs;
    totals.totals_only = true;
    totals.most = most;
    Timeline *timeline = simulate_run(schedule, &totals, err);
    if (timeline == NULL) return -1;
    *phase = (Phase){timeline->makespan, 0, timeline->exposed, 0};
    for (int s = 0; s < schedule->stages; s++) phase->busy += timeline->stage[s].busy;
    if (isfinite(phase->makespan)) phase->last = summed_(costs, schedule, timeline);
    timeline_free(timeline);
    return 0;
}

double plan_least_work(const PlanCosts *costs, const Schedule *schedule, int s) {
    const SimulateCosts *at = &costs->costs;
    double work = 0;
    for (int parts = schedule->chunks * schedule->slices, i = s * parts; i < (s + 1) * parts; i++) {
        double backward = schedule->split ? fmin(at->backward[i], at->input[i] + at->weight[i]) : at->backward[i];
        work += at->forward[i] + backward;
    }
    return work;
}

// Extrapolates a figure by `more` microbatches, from two simulations that are `between` microbatches apart.
static double onward_(double fewer, double enough, double more, double between) {
    return enough + (enough - fewer) * more / between;
}

// Inputs of a simulation that is repeated with several numbers of microbatches.
typedef struct Simulated {
    const Config *config;
    const PlanCosts *costs;
    ScheduleCache *lists; // may be NULL
    double worth;         // longest phase of all microbatches that still matters, in seconds
    double each;          // least seconds that each further microbatch adds: the work of the busiest stage on it
} Simulated;

// Returns the longest phase of `microbatches` microbatches that still matters, in seconds; 0: no limit.
static double most_(const Simulated *of, int64_t microbatches) {
    double more = (double)(config_microbatches(of->config) - microbatches);
    return isinf(of->worth) ? 0 : fmax(of->worth - more * of->each, 1e-9);
}

// Simulates the pipeline phase with the first `microbatches` microbatches of the schedule.
static int phase_of_(Phase *phase, const Simulated *of, int64_t microbatches, double most, Error *err) {
    ScheduleLoan loan = schedule_cache_borrow(of->lists, of->config, microbatches, err);
    int status = loan.schedule == NULL ? -1 : phase_(phase, loan.schedule, of->costs, most, err);
    schedule_cache_return(&loan);
    return status;
}

// Two simulations of the same schedule with different microbatch counts, and the times they predict for larger counts.
//
//     seconds                                    . all microbatches: predicted
//        |                                . '
//        |                         _ -*   now: `enough` microbatches
//        |                  _ -*   before: `fewer`
//        |          fill '
//        +--------------------|----|--------------|-- microbatches
//
// After the pipeline is full, every microbatch adds the same time: the slope between the two simulations. The line does
// not begin at 0, because filling and draining take their time once. For p = 8, simulations with 24 and 40 microbatches
// of 100 ms that take 3.1 s and 4.7 s predict 4.7 + 60 * (4.7 - 3.1) / 16 = 10.7 s for 100 microbatches.
typedef struct Growth {
    Phase before, now;
    int64_t fewer, enough; // microbatches of `before` and `now`
} Growth;

static double growth_expects_(const Growth *growth, int64_t microbatches) {
    return onward_(growth->before.makespan, growth->now.makespan, (double)(microbatches - growth->enough),
                   (double)(growth->enough - growth->fewer));
}

// Simulates more microbatches. settled: the simulated time is the predicted time, to within a thousandth, or the phase
// cannot matter (an infinite makespan).
static int growth_to_(Growth *growth, const Simulated *of, int64_t microbatches, bool *settled, Error *err) {
    double expected = growth_expects_(growth, microbatches);
    growth->before = growth->now;
    growth->fewer = growth->enough;
    growth->enough = microbatches;
    if (phase_of_(&growth->now, of, microbatches, most_(of, microbatches), err) != 0) return -1;
    *settled = isinf(growth->now.makespan) || fabs(growth->now.makespan - expected) <= 1e-3 * expected;
    return 0;
}

enum { LONG = 1 << 14, MOST = 1 << 16, MOST_WAITING = 1 << 19 }; // forwards; WAITING: for transfers

// Doubles the simulated microbatches until their time settles. Starts with a long list, since the rounds of a short
// list may agree by chance, and ends with the complete list or a very long part of it.
static int grow_until_settled_(Growth *growth, const Simulated *of, Error *err) {
    int64_t p = of->config->parallel.pipeline, lengthy = LONG / p;
    int64_t most = min_i64(config_microbatches(of->config), (growth->now.exposed > 0 ? MOST_WAITING : MOST) / p);
    bool settled = false;
    while (growth->enough < most && !(settled && growth->enough > lengthy)) {
        int64_t next = growth->enough < lengthy ? lengthy : 2 * growth->enough;
        if (growth_to_(growth, of, min_i64(next, most), &settled, err) != 0) return -1;
        if (isinf(growth->now.makespan)) return 0;
    }
    return 0;
}

// Finds the phase of all microbatches in up to four simulations, of m - 2p, m - p, m and 2m microbatches, where m is
// the number of microbatches of `schedule`. The first three show whether the rhythm is steady. In a steady
// schedule, each further microbatch adds the same time as each of the last 2p. A rhythm may still end: if messages are
// slow, stages first use up the messages that were sent ahead. So the fourth simulation must take the time that the
// shorter ones predict.
// Without a steady rhythm, because stages evict in rounds of different lengths, the schedule is doubled until its time
// settles. If its first rounds predict clearly more than `worth` seconds, it is given up instead: the makespan is
// INFINITY.
static int whole_phase_(Phase *phase, const Simulated *of, const Schedule *schedule, Error *err) {
    static const double CLEARLY = 1.1; // more than the factor between the times of any two rounds
    int64_t all = config_microbatches(of->config), p = schedule->stages;
    Growth growth = {.enough = schedule->microbatches, .fewer = schedule->microbatches - 2 * p};
    Phase between;
    bool whole = all <= growth.enough;
    // The fourth simulation would have all microbatches, and only its times would be used.
    if (!whole && all <= 2 * growth.enough && all <= MOST / p) return phase_of_(phase, of, all, most_(of, all), err);
    if (phase_(phase, schedule, of->costs, most_(of, growth.enough), err) != 0) return -1;
    if (whole || isinf(phase->makespan)) return 0;
    growth.now = *phase;
    if (phase_of_(&growth.before, of, growth.fewer, 0, err) != 0) return -1;
    // Steady: p microbatches take as long as the previous p, to half a percent, and compute never waits for a transfer.
    // If it does wait, the rhythm is not trusted: stages may evict in rounds of different lengths.
    bool steady = phase->exposed == 0;
    if (steady) {
        if (phase_of_(&between, of, growth.fewer + p, 0, err) != 0) return -1;
        double one = between.makespan - growth.before.makespan, next = phase->makespan - between.makespan;
        steady = fabs(next - one) <= 5e-3 * next;
    }
    bool hopeless = growth_expects_(&growth, all) > CLEARLY * of->worth;
    if (steady && !hopeless && growth_to_(&growth, of, min_i64(all, 2 * growth.enough), &steady, err) != 0) return -1;
    if (!steady && !hopeless && grow_until_settled_(&growth, of, err) != 0) return -1;
    phase->makespan = INFINITY;
    if ((!steady && hopeless) || isinf(growth.now.makespan)) return 0;
    double more = (double)(all - growth.enough), apart = (double)(growth.enough - growth.fewer);
    phase->makespan = growth_expects_(&growth, all);
    phase->busy = onward_(growth.before.busy, growth.now.busy, more, apart);
    phase->exposed = onward_(growth.before.exposed, growth.now.exposed, more, apart);
    phase->last = onward_(growth.before.last, growth.now.last, more, apart);
    return 0;
}

// Stage MFU is relative to a rank that has its cores to itself. If ranks share cores, the paper's formula does not
// apply.
static void costing_utilization_(PlanTime *time, const Config *config, const Hardware *hardware) {
    if (hardware->peak == 0) return;
    const ParallelConfig *parallel = &config->parallel;
    double token = model_flops_per_token(config, true), s = (double)config->model.seq_len,
           b = (double)config->schedule.micro_batch;
    double tokens = (double)config->train.global_batch * s, world = (double)config_world(config);
    time->mfu = token * tokens / (time->step * world * hardware->peak);
    time->stage_mfu = token * b * s / (time->slowest * world / (double)parallel->data * hardware->cost.flops);
    if (hardware->cpu && world > hardware->cores_share) return;
    time->estimate =
        estimate_mfu(time->stage_mfu * hardware->cost.flops / hardware->peak,
                     config->train.global_batch / parallel->data, config->schedule.micro_batch, parallel->pipeline);
}

int plan_time(PlanTime *time, const Config *config, const Schedule *schedule, const Plan *plan,
              const TimeSource *source, double worth, Error *err) {
    PlanCosts costs;
    Phase phase;
    memset(time, 0, sizeof *time);
    if (plan_costs_make(&costs, config, schedule, plan, source, err) != 0) return -1;
    double optimizer = 0;
    for (int s = 0; s < plan->stages; s++) optimizer = fmax(optimizer, costs.stage[s].optimizer);
    optimizer += costs.gathered;
    double after = costs.tied + optimizer + source->hardware->step;
    Simulated simulated = {config, &costs, source->lists, .worth = worth - after};
    for (int s = 0; s < plan->stages; s++) simulated.each = fmax(simulated.each, plan_least_work(&costs, schedule, s));
    int status = whole_phase_(&phase, &simulated, schedule, err);
    if (status == 0 && isfinite(phase.makespan)) {
        for (int s = 0; s < plan->stages; s++) {
            const StageTime *stage = &costs.stage[s];
            double both = stage->forward + stage->backward, tensor = stage->spent.exposed + stage->spent.exchange;
            if (both > time->slowest) time->slowest = both, time->tensor = tensor * (double)config_microbatches(config);
        }
        time->optimizer = optimizer;
        time->known = true;
        time->pipeline = phase.makespan;
        time->idle = phase.makespan - phase.busy / plan->stages;
        // While the first stage waits for its weights, it is in its first forward, and the others wait for it.
        double busy = phase.busy + costs.gathered, whole = phase.makespan + costs.gathered;
        time->bubble = 1 - busy / (whole * plan->stages);
        time->exposed = phase.exposed;
        time->reduction = phase.last - phase.makespan + costs.tied;
        time->step = phase.last + after;
        costing_utilization_(time, config, source->hardware);
    }
    plan_costs_free(&costs);
    return status;
}

PlanSpeed plan_speed(const Hardware *hardware, const Config *config, const PlanTime *time) {
    double causal = model_flops_per_token(config, false) / model_flops_per_token(config, true);
    if (!time->known) return (PlanSpeed){0};
    return (PlanSpeed){.tokens = (double)config_step_tokens(config) / (time->step * (double)config_world(config)),
                       .tflops = time->mfu * hardware->peak * 1e-12,
                       .mfu_causal = time->mfu * causal};
}
