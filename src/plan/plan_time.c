// Turns stage times into a step: durations for the simulator, the resources that messages share, and the work after the
// pipeline. For a long schedule, shorter ones are simulated and their times are extrapolated.
#include "plan_time.h"
#include "base/alloc.h"
#include "base/units.h"
#include "ranks/topology.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- stages

// The inputs of all costs.
typedef struct Costing {
    const Config *config;
    const Schedule *schedule;
    const Plan *plan;
    const TimeSource *source;
    int copy; // the replica whose pipeline is timed
    // The last chunk that was counted, and its times by slice: most chunks of a plan are alike.
    const StageShape *of;
    StageChunk chunk;
    ChunkTimes *times;
} Costing;

// The simulator's arrays of compute, [stages * chunks * slices] each.
typedef struct ComputeTimes {
    double *forward, *backward, *input, *weight;
} ComputeTimes;

static CountSource count_source_(const Costing *costing) {
    const TimeSource *source = costing->source;
    return (CountSource){.hardware = source->hardware,
                         .config = costing->config,
                         .model = source->model,
                         .memo = source->counted,
                         .split = costing->schedule->split,
                         .beside = config_replicas(costing->config) > 1};
}

// Seconds that wait for other ranks.
static double waits_(const Account *spent) { return spent->exposed + spent->exchange; }

static double compute_(const Account *spent) { return account_total(spent) - waits_(spent); }

// Returns the ratio of counted compute; 1 if nothing was counted.
static double ratio_(const Account *now, const Account *then) {
    return compute_(then) > 0 ? compute_(now) / compute_(then) : 1;
}

// Replaces counted compute by measured compute. A profile measures complete bundles, without recomputed outputs. So the
// measured time is scaled by the ratio of the counted times, of this bundle and of a complete one. Without measured
// split backwards, W takes the share of B that is counted for it, and I the rest.
static void take_measured_(StageTime *time, const ProfileTime *found, const ChunkTimes *now, const ChunkTimes *then) {
    double input = found->input, weight = found->weight;
    if (input == 0) {
        weight = found->backward * compute_(&then->weight) / compute_(&then->backward);
        input = found->backward - weight;
    }
    time->forward = waits_(&now->forward) + found->forward * ratio_(&now->forward, &then->forward);
    time->backward = waits_(&now->backward) + found->backward * ratio_(&now->backward, &then->backward);
    time->input = waits_(&now->input) + input * ratio_(&now->input, &then->input);
    time->weight = waits_(&now->weight) + weight * ratio_(&now->weight, &then->weight);
}

// Counts a chunk, unless it is like the last one.
static const ChunkTimes *chunk_times_(Costing *costing, const StageShape *stage, const StageChunk *chunk) {
    const StageShape *of = costing->of;
    const StageChunk *last = &costing->chunk;
    bool alike = of != NULL && memcmp(&of->shape, &stage->shape, sizeof of->shape) == 0 &&
                 last->layers == chunk->layers && last->recomputed == chunk->recomputed &&
                 last->dense == chunk->dense && last->first == chunk->first && last->last == chunk->last;
    const CountSource source = count_source_(costing);
    if (!alike) counted_chunk(&source, stage, chunk, costing->times);
    costing->of = stage, costing->chunk = *chunk;
    return costing->times;
}

// Fills in the times of a stage's chunk, slice by slice, for the simulator, and adds them to the stage's sums.
static int chunk_compute_(Costing *costing, int s, int c, const ComputeTimes *times, StageTime *sum, Error *err) {
    const StageShape *stage = &costing->plan->stage[s].at;
    const StageChunk *chunk = &stage->chunk[c];
    const Hardware *hardware = costing->source->hardware;
    int slices = costing->schedule->slices, at = (s * costing->schedule->chunks + c) * slices;
    ProfileTime found;
    bool measured = profile_chunk_time(costing->source->profile, stage, c, &found);
    if (!measured && hardware->cost.flops == 0)
        return error_set(err, EXIT_FAILED,
                         "no performance figures for this device; give hardware.peak_tflops or a profile");
    const ChunkTimes *now = chunk_times_(costing, stage, chunk);
    ChunkTimes *then = NULL;
    if (measured) {
        const CountSource source = count_source_(costing);
        StageShape whole = *stage;
        whole.shape.pointwise = false;
        then = xmalloc((size_t)slices * sizeof *then);
        counted_chunk(&source, &whole, chunk, then);
    }
    double overhead = measured ? 0 : hardware->action; // measured times include it
    for (int i = 0; i < slices; i++, at++) {
        StageTime time = {.forward = account_total(&now[i].forward),
                          .backward = account_total(&now[i].backward),
                          .input = account_total(&now[i].input),
                          .weight = account_total(&now[i].weight)};
        if (measured) take_measured_(&time, &found, &now[i], &then[i]);
        times->forward[at] = time.forward + overhead;
        times->backward[at] = time.backward + overhead;
        times->input[at] = time.input + overhead;
        times->weight[at] = time.weight + overhead;
        sum->forward += times->forward[at];
        sum->backward += costing->schedule->split ? times->input[at] + times->weight[at] : times->backward[at];
        sum->input += times->input[at];
        sum->weight += times->weight[at];
        sum->beside += account_total(&now[i].beside);
        sum->first -= account_total(&now[i].first);
        account_add(&sum->spent, &now[i].forward, 1);
        if (costing->schedule->split) account_add(&sum->spent, &now[i].input, 1);
        account_add(&sum->spent, costing->schedule->split ? &now[i].weight : &now[i].backward, 1);
    }
    free(then);
    return 0;
}

// Returns the bytes/s of one rank in a collective among the ranks with the same part of the model, while the ranks of
// `parts` parts communicate at the same time. Within a node this is the rate of a collective of `bytes`. Otherwise the
// parts on a node share its network, the data of each part leave the node only once, and every node adds a latency.
static double data_rate_(const Costing *costing, int64_t parts, CostCollective kind, double bytes) {
    const Hardware *hardware = costing->source->hardware;
    int64_t node = hardware_domain(hardware, costing->config);
    const ParallelConfig *parallel = &costing->config->parallel;
    bool stages = parallel->placement == PLACEMENT_STAGES;
    int64_t together = stages ? config_replicas(costing->config) * parallel->tensor : config_world(costing->config);
    if (together <= node && (!stages || node % together == 0))
        return cost_collective_rate(&hardware->cost, kind, bytes, (int)config_replicas(costing->config));
    double rate = hardware_network(hardware, costing->config) / (double)(parts < node ? parts : node);
    int replicas = (int)config_replicas(costing->config),
        nodes = (int)hardware_nodes_of_data(hardware, costing->config);
    rate = fmin(rate, hardware->cost.tensor);
    if (bytes <= 0 || replicas == 1) return rate;
    double seconds = cost_collective_between(&hardware->cost, kind, bytes, replicas, nodes, rate);
    return bytes * (replicas - 1) / replicas / seconds;
}

enum { UNITS = 4 }; // large units of a layer: each is summed and gathered in a collective of its own

// Returns the number of pieces in which a stage sums its gradients: its layers, or 1 if it has no layer.
static int layers_of_(const Costing *costing, int s) {
    int64_t layers = costing->plan->stage[s].at.layers;
    return layers > 0 ? (int)layers : 1;
}

static double optimizer_seconds_(const Costing *costing, int s) {
    const PlanStage *stage = &costing->plan->stage[s];
    const Profile *profile = costing->source->profile;
    const Hardware *hardware = costing->source->hardware;
    const CountSource source = count_source_(costing);
    Account spent = counted_update(&source, &stage->at);
    double world = (double)config_world(costing->config), update = compute_(&spent);
    int64_t owned = stage->states.owned;
    bool adamw = costing->config->train.optimizer == OPTIMIZER_ADAMW; // a profile measures AdamW
    if (profile != NULL && adamw) update = (profile->norm_seconds + profile->optimizer_seconds) * (double)owned;
    // All ranks update at the same time, even if they share cores.
    if (hardware->cpu && world > hardware->cores_share) update *= world / hardware->cores_share;
    return waits_(&spent) + update;
}

// ---------------------------------------------------------------- messages

static int node_of_stage_(const Costing *costing, int stage) {
    Coordinates at = {costing->copy, stage, 0};
    int rank = topology_rank(&costing->config->parallel, at);
    return hardware_node(costing->source->hardware, costing->config, rank);
}

// Returns the replica with the most node boundaries between its stages; all other replicas wait for it. Replicas differ
// if a replica may begin in the middle of a node.
static int widest_copy_(Costing *costing) {
    int64_t node = hardware_domain(costing->source->hardware, costing->config);
    int64_t copies = config_replicas(costing->config);
    int widest = 0, most = 0;
    if (costing->source->hardware->cpu) return 0;
    for (costing->copy = 0; costing->copy < copies && costing->copy < node; costing->copy++) {
        int leave = 0;
        for (int s = 0; s + 1 < costing->plan->stages; s++)
            leave += node_of_stage_(costing, s) != node_of_stage_(costing, s + 1);
        if (leave > most) most = leave, widest = costing->copy;
    }
    return widest;
}

// Returns the seconds of a message that each tensor and context rank of `from` sends to its counterpart on `to`,
// without other traffic.
static double costing_message_(const Costing *costing, int from, int to, int64_t bytes) {
    const Hardware *hardware = costing->source->hardware;
    bool near = node_of_stage_(costing, from) == node_of_stage_(costing, to);
    const ParallelConfig *parallel = &costing->config->parallel;
    // The ranks of a stage on one node send at the same time.
    int64_t ranks = parallel->tensor * parallel->context;
    if (parallel->placement == PLACEMENT_STAGES) ranks *= parallel->data;
    int64_t senders = min_i64(ranks, hardware_domain(hardware, costing->config));
    double rate = near ? hardware->cost.pair : hardware_network(hardware, costing->config) / (double)senders;
    return cost_message(&hardware->cost, (double)bytes, rate);
}

static double transfer_(const Costing *costing, int stage) {
    const Hardware *hardware = costing->source->hardware;
    int64_t bytes = costing->plan->stage[stage].slot_bytes;
    int partner = bpipe_partner(costing->plan->stages, stage);
    if (costing->config->schedule.evict_to == EVICT_TO_HOST || partner == SCHEDULE_NO_PEER)
        return cost_message(&hardware->cost, (double)bytes, hardware->cost.host);
    return costing_message_(costing, stage, partner, bytes);
}

// Returns the resource of a message: the network card of the sender's node, numbered by the node's lowest stage; -1 if
// the message stays in the node.
static int card_(const Costing *costing, int from, int to) {
    int node = node_of_stage_(costing, from), lowest = 0;
    if (node == node_of_stage_(costing, to)) return -1;
    while (node_of_stage_(costing, lowest) != node) lowest++;
    return lowest;
}

// ---------------------------------------------------------------- all of it

static void costing_share_(PlanCosts *costs, const Costing *costing) {
    int p = costing->plan->stages, *r = costs->resources_;
    const Hardware *hardware = costing->source->hardware;
    double *capacity = costs->times_ + 2 * (size_t)p;
    int *compute = r, *down = r + p, *up = r + 2 * p, *evict = r + 3 * p, *load = r + 4 * p;
    for (int i = 0; i <= p; i++) capacity[i] = 1;
    if (hardware->cpu) capacity[0] = hardware->cores_share / (double)(config_world(costing->config) / p);
    for (int s = 0; s < p; s++) {
        int partner = bpipe_partner(p, s), last = s + 1 == p;
        bool peers = partner != SCHEDULE_NO_PEER && costing->config->schedule.evict_to == EVICT_TO_PEER;
        compute[s] = hardware->cpu ? 0 : -1;
        down[s] = card_(costing, s, last ? 0 : s + 1);
        up[s] = card_(costing, last ? 0 : s + 1, s);
        evict[s] = peers ? card_(costing, s, partner) : -1;
        load[s] = peers ? card_(costing, partner, s) : -1;
    }
    costs->shares = (SimulateShares){p, capacity, compute, down, up, evict, load};
}

// Fills in the sums of gradients over data ranks. The times of the stages must be known.
static void costing_sums_(PlanCosts *costs, const Costing *costing) {
    int p = costing->plan->stages, *layers = costs->resources_ + 5 * p, *node = layers + p;
    const ParallelConfig *parallel = &costing->config->parallel;
    double *bytes = costs->times_ + 3 * p + 1, *hides = bytes + p, *last = hides + p, *late = last + p;
    double d = (double)config_replicas(costing->config), same = d * (double)parallel->tensor / (double)parallel->expert;
    double element = costing->config->train.precision == PRECISION_BF16 ? 2 : 4;
    double piece = (double)costing->plan->stage[0].states.gradients / layers_of_(costing, 0) / UNITS;
    double rate = data_rate_(costing, parallel->tensor, COST_REDUCE_SCATTER, piece);
    // Replicas of every expert rank's part share a node's network.
    double slower = rate / data_rate_(costing, max_i64(parallel->tensor, parallel->expert), COST_REDUCE_SCATTER, piece);
    costs->sums =
        (DataSums){bytes, late, hides, layers, node, rate, fmax(rate, costing->source->hardware->cost.tensor)};
    if (config_world(costing->config) <= hardware_domain(costing->source->hardware, costing->config))
        costs->sums.most = rate;
    for (int s = 0; s < p; s++) {
        const PlanStage *stage = &costing->plan->stage[s];
        double of_layers = (double)stage->layer_gradients;
        double of_ends = (double)stage->states.gradients - of_layers;
        // Sharded gradients are summed from buffers of two layers, so their memory is less than the bytes sent.
        if (config_shards_gradients(costing->config))
            of_layers = fmax(0, 4.0 / element * (double)stage->states.weights - of_ends);
        double of_experts = (double)stage->states.expert_gradients;
        bytes[s] = (of_layers - of_experts) * (d - 1) / d + of_experts * (same - 1) / same * slower;
        late[s] = of_ends * (d - 1) / d;
        hides[s] = costing->schedule->split ? costs->stage[s].weight : costs->stage[s].backward;
        hides[s] /= costing->schedule->slices;
        layers[s] = layers_of_(costing, s);
        // Until the first layer of the last backward ends, there is nothing to sum. Persistent products are chosen for
        // fewer multiprocessors until that backward ends, other kernels are slower only while a sum is in flight.
        double whole = bytes[s] / rate, share = (double)(layers[s] - 1) / layers[s];
        if (!costing->source->hardware->cost.persistent) share = fmin(share, whole / hides[s]);
        double ends = costing->schedule->split ? costs->stage[s].weight : costs->stage[s].backward;
        last[s] = bytes[s] == 0 || ends == 0 ? 1 : 1 + costs->stage[s].beside / ends * share;
        hides[s] *= last[s];
        node[s] = node_of_stage_(costing, s);
        // The sum of the layer that ends the last backward is never hidden.
        double hidden = hides[s] * (double)(layers[s] - 1) / layers[s];
        costs->stage[s].reduction = fmax(whole - hidden, whole / layers[s]) + late[s] / rate;
    }
}

static double tied_seconds_(const Costing *costing) {
    const Plan *plan = costing->plan;
    int first = 0, last = 0;
    if (costing->config->model.tie_embeddings != TIE_TRUE) return 0;
    for (int s = 0; s < plan->stages; s++) {
        if (plan->stage[s].at.first) first = s;
        if (plan->stage[s].at.last) last = s;
    }
    if (first == last) return 0; // V placement: one rank has both gradients
    const Config *c = costing->config;
    int64_t elements = config_padded_vocab(c) / c->parallel.tensor * c->model.hidden / config_replicas(c);
    return costing_message_(costing, first, last, 4 * elements);
}

int plan_costs_make(PlanCosts *costs, const Config *config, const Schedule *schedule, const Plan *plan,
                    const TimeSource *source, Error *err) {
    Costing costing = {.config = config, .schedule = schedule, .plan = plan, .source = source};
    int p = plan->stages, all = p * schedule->chunks * schedule->slices, status = 0;
    costing.copy = widest_copy_(&costing);
    costing.times = xmalloc((size_t)schedule->slices * sizeof *costing.times);
    // Resources: at most one network card per stage; on a CPU, only resource 0, the cores of the host.
    *costs = (PlanCosts){.stage = xcalloc((size_t)p, sizeof *costs->stage),
                         .times_ = xcalloc((size_t)(7 * p + 1 + 4 * all), sizeof *costs->times_),
                         .resources_ = xcalloc(7 * (size_t)p, sizeof *costs->resources_)};
    double *transfer = costs->times_, *edge = transfer + p, *compute = edge + 6 * p + 1;
    ComputeTimes times = {compute, compute + all, compute + 2 * all, compute + 3 * all};
    for (int s = 0; s < p && status == 0; s++) {
        StageTime *time = &costs->stage[s];
        for (int c = 0; c < schedule->chunks && status == 0; c++)
            status = chunk_compute_(&costing, s, c, &times, time, err);
        time->optimizer = optimizer_seconds_(&costing, s) - time->first;
        if (source->free_messages) continue;
        transfer[s] = transfer_(&costing, s);
        edge[s] = costing_message_(&costing, s, (s + 1) % p, plan->stage[s].at.message_bytes);
    }
    free(costing.times);
    if (status != 0) return plan_costs_free(costs), -1;
    costing_share_(costs, &costing);
    costing_sums_(costs, &costing);
    costs->tied = tied_seconds_(&costing);
    costs->costs = (SimulateCosts){.forward = times.forward,
                                   .backward = times.backward,
                                   .input = times.input,
                                   .weight = times.weight,
                                   .last = edge + 4 * p + 1,
                                   .transfer = transfer,
                                   .edge = edge,
                                   .shares = &costs->shares};
    return 0;
}

void plan_costs_free(PlanCosts *costs) {
    free_all(costs->stage, costs->times_, costs->resources_);
    memset(costs, 0, sizeof *costs);
}

// ---------------------------------------------------------------- one step

int plan_enough_microbatches(int stages) { return 4 * stages + 8; }

// The pipeline phase, in seconds.
typedef struct Phase {
    double makespan, busy, exposed;
    double last; // end of the latest stage, with its sums over data ranks
} Phase;

// The gradient sums of one stage that are in flight.
typedef struct Summing {
    double left;   // bytes left to sum, for layers with complete gradients
    double next;   // time at which the last backward completes the next layer
    int to_come;   // layers with gradients that are not complete yet
    double moving; // bytes/s at which the stage sums now
} Summing;

// Advances all sums to the next time at which a layer's sum begins or ends. Returns false if all are complete.
static bool summing_advance_(Summing *at, const DataSums *sums, int stages, double *now) {
    double step = INFINITY;
    for (int s = 0; s < stages; s++)
        for (; at[s].to_come > 0 && at[s].next <= *now; at[s].to_come--) {
            at[s].left += sums->bytes[s] / sums->layers[s] + (at[s].to_come == 1 ? sums->late[s] : 0);
            at[s].next += sums->hides[s] / sums->layers[s];
        }
    for (int s = 0; s < stages; s++) {
        int users = 0;
        for (int other = 0; other < stages; other++)
            users += sums->node[other] == sums->node[s] && (at[other].left > 0 || other == s);
        at[s].moving = sums->network == sums->most ? sums->most : fmin(sums->network / users, sums->most);
        if (at[s].left > 0) step = fmin(step, at[s].left / at[s].moving);
        if (at[s].to_come > 0) step = fmin(step, at[s].next - *now);
    }
    if (step == INFINITY) return false;
    *now += step;
    for (int s = 0; s < stages; s++) {
        bool ends = at[s].left <= at[s].moving * step * (1 + 1e-12);
        at[s].left = ends ? 0 : at[s].left - at[s].moving * step;
    }
    return true;
}

// Returns the time at which all stages have summed their gradients over data ranks, if stage s ends at ends[s]. Stages
// of a node share its network while they sum, so stages that end first get more of it.
static double summed_(const DataSums *sums, const double *ends, int stages) {
    double now = INFINITY, latest = 0;
    Summing *at = xcalloc((size_t)stages, sizeof *at);
    for (int s = 0; s < stages; s++) {
        double layers = sums->layers[s];
        latest = fmax(latest, ends[s]);
        at[s] = (Summing){0, ends[s] - sums->hides[s] * (layers - 1) / layers, sums->layers[s], 0};
        now = fmin(now, at[s].next);
    }
    while (sums->bytes[0] + sums->late[0] > 0 && summing_advance_(at, sums, stages, &now)) latest = fmax(latest, now);
    free(at);
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
    double *ends = xcalloc((size_t)schedule->stages, sizeof *ends);
    for (int s = 0; s < schedule->stages; s++) {
        ends[s] = timeline->stage[s].last;
        phase->busy += timeline->stage[s].busy;
    }
    if (isfinite(phase->makespan)) phase->last = summed_(&costs->sums, ends, schedule->stages);
    free(ends);
    timeline_free(timeline);
    return 0;
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
} Simulated;

// Simulates the pipeline phase with the first `microbatches` microbatches of the schedule.
static int phase_of_(Phase *phase, const Simulated *of, int64_t microbatches, Error *err) {
    ScheduleLoan loan = schedule_cache_borrow(of->lists, of->config, microbatches, err);
    int status = loan.schedule == NULL ? -1 : phase_(phase, loan.schedule, of->costs, 0, err);
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

// Simulates more microbatches. settled: the simulated time is within a thousandth of the predicted time.
static int growth_to_(Growth *growth, const Simulated *of, int64_t microbatches, bool *settled, Error *err) {
    double expected = growth_expects_(growth, microbatches);
    growth->before = growth->now;
    growth->fewer = growth->enough;
    growth->enough = microbatches;
    if (phase_of_(&growth->now, of, microbatches, err) != 0) return -1;
    *settled = fabs(growth->now.makespan - expected) <= 1e-3 * expected;
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
static int whole_phase_(Phase *phase, const Simulated *of, const Schedule *schedule, double worth, Error *err) {
    static const double CLEARLY = 1.1; // more than the factor between the times of any two rounds
    int64_t all = config_microbatches(of->config), p = schedule->stages;
    Growth growth = {.enough = schedule->microbatches, .fewer = schedule->microbatches - 2 * p};
    Phase between;
    bool whole = all <= growth.enough;
    // The fourth simulation would have all microbatches, and only its times would be used.
    if (!whole && isinf(worth) && all <= 2 * growth.enough && all <= MOST / p) return phase_of_(phase, of, all, err);
    if (phase_(phase, schedule, of->costs, whole && isfinite(worth) ? fmax(worth, 1e-9) : 0, err) != 0) return -1;
    if (whole) return 0;
    growth.now = *phase;
    if (phase_of_(&growth.before, of, growth.fewer, err) != 0) return -1;
    // Steady: p microbatches take as long as the previous p, to half a percent, and compute never waits for a transfer.
    // If it does wait, the rhythm is not trusted: stages may evict in rounds of different lengths.
    bool steady = phase->exposed == 0;
    if (steady) {
        if (phase_of_(&between, of, growth.fewer + p, err) != 0) return -1;
        double one = between.makespan - growth.before.makespan, next = phase->makespan - between.makespan;
        steady = fabs(next - one) <= 5e-3 * next;
    }
    bool hopeless = growth_expects_(&growth, all) > CLEARLY * worth;
    if (steady && !hopeless && growth_to_(&growth, of, min_i64(all, 2 * growth.enough), &steady, err) != 0) return -1;
    if (!steady && hopeless) {
        phase->makespan = INFINITY;
        return 0;
    }
    if (!steady && grow_until_settled_(&growth, of, err) != 0) return -1;
    double more = (double)(all - growth.enough), apart = (double)(growth.enough - growth.fewer);
    phase->makespan = growth_expects_(&growth, all);
    phase->busy = onward_(growth.before.busy, growth.now.busy, more, apart);
    phase->exposed = onward_(growth.before.exposed, growth.now.exposed, more, apart);
    phase->last = onward_(growth.before.last, growth.now.last, more, apart);
    return 0;
}

// Transfers of a stage go through its queue one after another.
double plan_transfer_seconds(const Config *config, const Schedule *schedule, const Plan *plan,
                             const TimeSource *source) {
    static const double LEAST_PART = 0.75; // least share of the transfers per microbatch that a longer schedule keeps
    Costing costing = {.config = config, .schedule = schedule, .plan = plan, .source = source};
    double most = 0, rounds = (double)config_microbatches(config) / schedule->microbatches;
    costing.copy = widest_copy_(&costing);
    for (int s = 0; s < schedule->stages; s++) {
        const StageSchedule *stage = &schedule->stage[s];
        int64_t own = 0, others = 0; // bundles moved as evictor, and as acceptor
        for (int64_t i = 0; i < stage->count; i++) {
            ActionKind kind = stage->actions[i].kind;
            own += kind == ACTION_EVICT || kind == ACTION_LOAD;
            others += kind == ACTION_ACCEPT || kind == ACTION_RETURN;
        }
        double seconds = own > 0 ? (double)own * transfer_(&costing, s) : 0;
        if (others > 0) seconds += (double)others * transfer_(&costing, bpipe_partner(schedule->stages, s));
        if (seconds > most) most = seconds;
    }
    return LEAST_PART * rounds > 1 ? LEAST_PART * rounds * most : most;
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
    double after = costs.tied + optimizer + source->hardware->step;
    const Simulated simulated = {config, &costs, source->lists};
    int status = whole_phase_(&phase, &simulated, schedule, worth - after, err);
    if (status == 0 && isfinite(phase.makespan)) {
        for (int s = 0; s < plan->stages; s++) {
            const StageTime *stage = &costs.stage[s];
            double both = stage->forward + stage->backward, tensor = waits_(&stage->spent);
            if (both > time->slowest) time->slowest = both, time->tensor = tensor * (double)config_microbatches(config);
        }
        time->optimizer = optimizer;
        time->known = true;
        time->pipeline = phase.makespan;
        time->bubble = 1 - phase.busy / (phase.makespan * plan->stages);
        time->exposed = phase.exposed;
        time->reduction = phase.last - phase.makespan + costs.tied;
        time->step = phase.last + after;
        costing_utilization_(time, config, source->hardware);
    }
    plan_costs_free(&costs);
    return status;
}
