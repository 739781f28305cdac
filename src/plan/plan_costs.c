// The inputs of a step's simulation: durations of actions and messages, the resources that messages share, and the work
// after the pipeline.
#include "plan_time.h"
#include "base/alloc.h"
#include "base/units.h"
#include "ranks/topology.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- stages

// The inputs from which costs are computed, and the last results for reuse.
typedef struct Costing {
    const Config *config;
    const Schedule *schedule;
    const Plan *plan;
    const TimeSource *source;
    StagePlace *places; // [stages]
    CountSource count;
    int copy; // the replica whose pipeline is timed
    // The last chunk that was counted, its stage, and its times by slice: most chunks of a plan are alike.
    int of; // -1: none
    StageChunk chunk;
    ChunkTimes *times;
    // The last stage whose end of a step was counted, and its times.
    int updated; // -1: none
    UpdateTimes update;
} Costing;

// Returns whether the groups of two stages are placed alike. last: -1: no stage
static bool placed_alike_(const Costing *costing, int last, int s) {
    return last >= 0 && memcmp(&costing->places[last], &costing->places[s], sizeof *costing->places) == 0;
}

// Returns the seconds spent waiting for other ranks.
static double waits_(const Account *spent) { return spent->exposed + spent->exchange; }

static double compute_(const Account *spent) { return account_total(spent) - waits_(spent); }

// Returns the share of a chunk's backwards that its list does not split: some lists mix both kinds.
static double unsplit_(const Schedule *schedule, int s, int c) {
    int64_t complete = 0, inputs = 0;
    for (int64_t i = 0; i < schedule->stage[s].count && schedule->split; i++) {
        const Action *action = &schedule->stage[s].actions[i];
        complete += action->chunk == c && action->kind == ACTION_BACKWARD;
        inputs += action->chunk == c && action->kind == ACTION_INPUT;
    }
    return inputs > 0 ? (double)complete / (double)(complete + inputs) : 1;
}

// Fills in the times of a stage's chunk, slice by slice, for the simulator, and adds them to the stage's sums.
// compute[kind]: the simulator's array.
static int chunk_compute_(Costing *costing, int s, int c, double *const compute[TIMED_ACTIONS], StageTime *sum,
                          Error *err) {
    const StageShape *stage = &costing->plan->stage[s].at;
    const StageChunk *chunk = &stage->chunk[c];
    const Hardware *hardware = costing->source->hardware;
    double unsplit = unsplit_(costing->schedule, s, c);
    int slices = costing->schedule->slices, at = (s * costing->schedule->chunks + c) * slices;
    double found[TIMED_ACTIONS];
    bool measured = profile_chunk_time(costing->source->profile, &stage->shape.attention, chunk, found);
    if (!measured && hardware->cost.flops == 0)
        return error_set(err, EXIT_FAILED,
                         "no performance figures for this device; give hardware.peak_tflops or a profile");
    const StageChunk *last = &costing->chunk;
    bool alike = placed_alike_(costing, costing->of, s) &&
                 memcmp(&costing->plan->stage[costing->of].at.shape, &stage->shape, sizeof stage->shape) == 0 &&
                 last->layers == chunk->layers && last->recomputed == chunk->recomputed &&
                 last->dense == chunk->dense && last->first == chunk->first && last->last == chunk->last;
    costing->count.place = &costing->places[s];
    if (!alike) counted_chunk(&costing->count, stage, chunk, costing->times);
    costing->of = s, costing->chunk = *chunk;
    ChunkTimes *then = NULL;
    if (measured) {
        StageShape whole = *stage;
        whole.shape.pointwise = false;
        whole.shape.keeps_experts = costing->source->profile->keeps_experts;
        then = xmalloc((size_t)slices * sizeof *then);
        counted_chunk(&costing->count, &whole, chunk, then);
    }
    for (int i = 0; i < slices; i++, at++) {
        const Account *counted = costing->times[i].of;
        for (int k = 0; k < TIMED_ACTIONS; k++)
            compute[k][at] = account_total(&counted[k]) + (measured ? 0 : hardware->action);
        // A profile measures complete bundles, without recomputed outputs, and includes the overhead of actions. So the
        // measured time is scaled by the ratio of the counted times, of this bundle and of a complete one. Without
        // measured split backwards, W takes the share of B that is counted for it, and I the rest.
        if (measured) {
            const Account *complete = then[i].of;
            double seconds[TIMED_ACTIONS];
            memcpy(seconds, found, sizeof seconds);
            if (found[TIMED_INPUT] == 0) {
                seconds[TIMED_WEIGHT] =
                    found[TIMED_BACKWARD] * compute_(&complete[TIMED_WEIGHT]) / compute_(&complete[TIMED_BACKWARD]);
                seconds[TIMED_INPUT] = found[TIMED_BACKWARD] - seconds[TIMED_WEIGHT];
            }
            for (int k = 0; k < TIMED_ACTIONS; k++) {
                double whole = compute_(&complete[k]), share = whole > 0 ? compute_(&counted[k]) / whole : 1;
                compute[k][at] = waits_(&counted[k]) + seconds[k] * share;
            }
        }
        double weight = compute[TIMED_WEIGHT][at];
        sum->forward += compute[TIMED_FORWARD][at];
        sum->backward += unsplit * compute[TIMED_BACKWARD][at] + (1 - unsplit) * (compute[TIMED_INPUT][at] + weight);
        sum->weight += weight;
        // The difference is negative if slower products shorten the waits for tensor ranks.
        sum->beside +=
            max_double(0, account_total(&counted[COUNT_BESIDE]) + account_total(&counted[COUNT_WEIGHT_BESIDE]));
        sum->between += unsplit * counted[TIMED_BACKWARD].between;
        sum->between += (1 - unsplit) * (counted[TIMED_INPUT].between + counted[TIMED_WEIGHT].between);
        sum->first -= account_total(&counted[COUNT_FIRST]);
        account_add(&sum->spent, &counted[TIMED_FORWARD], 1);
        account_add(&sum->spent, &counted[TIMED_BACKWARD], unsplit);
        account_add(&sum->spent, &counted[TIMED_INPUT], 1 - unsplit);
        account_add(&sum->spent, &counted[TIMED_WEIGHT], 1 - unsplit);
    }
    free(then);
    return 0;
}

// Returns the groups of a stage that sum gradients: its replicas, or without replicas, the ranks with the same experts.
static const GroupPlace *summing_place_(const Costing *costing, int s) {
    bool experts = config_replicas(costing->config) == 1 && costing->config->model.experts > 0;
    return &costing->places[s].of[experts ? GROUP_SAME_EXPERTS : GROUP_DATA];
}

// Returns the bytes/s of one rank in a collective among the ranks with the same part of a stage, while the ranks of
// `parts` parts communicate at the same time. Within a node this is the rate of a collective of `bytes`. Otherwise the
// parts on a node share its network, the data of each part leave the node only once, and every node adds a latency.
static double data_rate_(const Costing *costing, int s, int64_t parts, CostCollective kind, double bytes) {
    const Hardware *hardware = costing->source->hardware;
    int64_t node = hardware_domain(hardware, costing->config);
    int replicas = (int)config_replicas(costing->config), nodes = (int)summing_place_(costing, s)->nodes;
    if (nodes == 1) return cost_collective_rate(&hardware->cost, kind, bytes, replicas);
    double rate = hardware_network(hardware, costing->config) / (double)(parts < node ? parts : node);
    rate = min_double(rate, hardware->cost.tensor);
    if (bytes <= 0 || replicas == 1) return rate;
    double seconds = cost_collective_between(&hardware->cost, kind, bytes, replicas, nodes, rate);
    return bytes * (replicas - 1) / replicas / seconds;
}

// Returns whether a stage sums gradients: over replicas, or those of experts, which may have fewer ranks than tensors.
static bool sums_(const Config *config) {
    const ParallelConfig *parallel = &config->parallel;
    return config_replicas(config) > 1 || (config->model.experts > 0 && parallel->tensor > parallel->expert);
}

enum { UNITS = 4 }; // large units of a layer: each is summed and gathered in a collective of its own

static double optimizer_seconds_(Costing *costing, int s, double *gather) {
    const PlanStage *stage = &costing->plan->stage[s];
    int last = costing->updated;
    const StageShape *at = &stage->at, *of = last < 0 ? NULL : &costing->plan->stage[last].at;
    bool alike = placed_alike_(costing, last, s) && of->layers == at->layers && of->first == at->first &&
                 of->last == at->last && of->chunk[0].dense == at->chunk[0].dense;
    const Profile *profile = costing->source->profile;
    const Hardware *hardware = costing->source->hardware;
    costing->count.place = &costing->places[s];
    if (!alike) costing->update = counted_update(&costing->count, at);
    costing->updated = s;
    const Account spent = costing->update.update;
    double world = (double)config_world(costing->config), update = compute_(&spent);
    int64_t owned = stage->states.owned;
    bool adamw = costing->config->train.optimizer == OPTIMIZER_ADAMW; // a profile measures AdamW
    if (profile != NULL && adamw) update = (profile->norm_seconds + profile->optimizer_seconds) * (double)owned;
    // All ranks update at the same time, even if they share cores.
    if (hardware->cpu && world > hardware->cores_share) update *= world / hardware->cores_share;
    *gather = costing->update.gather;
    return waits_(&spent) + update;
}

// ---------------------------------------------------------------- messages

// Returns the node of a stage's first rank in the pipeline that is timed, or that of its last tensor and context rank.
static int node_of_stage_(const Costing *costing, int stage, bool last) {
    const ParallelConfig *parallel = &costing->config->parallel;
    int contexts = (int)parallel->context;
    Coordinates at = {costing->copy, stage, 0};
    if (last) at.replica += contexts - 1 - at.replica % contexts, at.tensor = (int)parallel->tensor - 1;
    return hardware_node(costing->source->hardware, costing->config, topology_rank(parallel, at));
}

// Returns whether all ranks of a stage reach their counterparts of another stage inside their nodes.
static bool near_(const Costing *costing, int stage, int other) {
    return node_of_stage_(costing, stage, false) == node_of_stage_(costing, other, false) &&
           node_of_stage_(costing, stage, true) == node_of_stage_(costing, other, true);
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
        for (int s = 0; s + 1 < costing->plan->stages; s++) leave += !near_(costing, s, s + 1);
        if (leave > most) most = leave, widest = costing->copy;
    }
    return widest;
}

// Returns the seconds of a message that each tensor and context rank of `from` sends to its counterpart on `to`,
// without other traffic.
static double costing_message_(const Costing *costing, int from, int to, int64_t bytes) {
    const Hardware *hardware = costing->source->hardware;
    const ParallelConfig *parallel = &costing->config->parallel;
    // The ranks of a stage on one node send at the same time.
    int64_t ranks = parallel->tensor * parallel->context;
    if (parallel->placement == PLACEMENT_STAGES) ranks *= parallel->data;
    int64_t senders = min_i64(ranks, hardware_domain(hardware, costing->config));
    double rate =
        near_(costing, from, to) ? hardware->cost.pair : hardware_network(hardware, costing->config) / (double)senders;
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
    int node = node_of_stage_(costing, from, false), lowest = 0;
    if (near_(costing, from, to)) return -1;
    while (node_of_stage_(costing, lowest, false) != node) lowest++;
    return lowest;
}

// ---------------------------------------------------------------- all of it

// Returns the speed of a stage's compute beside a message between nodes of `message` seconds. A persistent product that
// starts while the message is in flight takes twice as long: its last blocks start when its other blocks, or the
// message, have ended.
static double beside_message_(const Account *spent, double message) {
    if (spent->count == 0 || message <= 0) return 1;
    double each = spent->products / spent->count, pairs = floor(message / (2 * each));
    double lost = pairs * each + min_double(each, message - 2 * pairs * each);
    if (lost >= message) return 0;
    return 1 / (1 + spent->products / account_total(spent) * lost / (message - lost));
}

static const double MATTERS = 0.02; // share of a stage's compute: delays below it are left out

// Fills in resource p + s, the network of the node with lowest stage s, for collectives between nodes: a stage needs it
// for a part of its compute, at other times than other stages of the node. Messages through the node's card are its
// rival. Returns whether stages meet there.
static bool costing_meet_(PlanCosts *costs, const Costing *costing, const double *edge, double *part, int *rival) {
    int p = costing->plan->stages, *compute = costs->resources_, *down = compute + p, *up = down + p,
        *lowest = rival + 2 * p;
    bool between_nodes = false, meet = false;
    for (int s = 0; s < p; s++) between_nodes |= costs->stage[s].spent.between > 0;
    for (int s = 0; s < p && between_nodes; s++) { // the lowest stage that has a node in common with stage s
        int first = node_of_stage_(costing, s, false), last = node_of_stage_(costing, s, true), *low = &lowest[s];
        while (node_of_stage_(costing, *low, true) < first || node_of_stage_(costing, *low, false) > last) ++*low;
    }
    for (int low = 0; low < p && between_nodes; low++) {
        double work = 0, between = 0, sent = 0; // sent: seconds for which the stages' messages are in flight
        int users = 0, card = -1;
        for (int s = low; s < p; s++) {
            int below = (s + p - 1) % p;
            if (lowest[s] != low || costs->stage[s].spent.between == 0) continue;
            users++, work += costs->stage[s].forward + costs->stage[s].backward;
            between += costs->stage[s].spent.between;
            sent += (down[s] >= 0 ? edge[s] : 0) + (up[below] >= 0 ? edge[below] : 0);
            card = max_int(card, max_int(down[s], up[below]));
        }
        if (between == 0) continue;
        double share = min_double(between / work, 0.999); // a profile may measure less than was counted
        bool sends = share * sent * costing->schedule->chunks * costing->schedule->slices > MATTERS * work / users;
        if (sends) rival[p + low] = card, rival[card] = p + low;
        if (!sends && share * (users - 1) < MATTERS) continue;
        meet |= users > 1;
        part[p + low] = share;
        for (int s = low; s < p; s++)
            if (lowest[s] == low && costs->stage[s].spent.between > 0) compute[s] = p + low;
    }
    return meet;
}

// Fills in the resources: at most one network card per stage; on a CPU, resource 0 is the cores of the host; nodes'
// networks for collectives between nodes; or each stage's multiprocessors, if products leave none to messages between
// nodes and these can delay a stage by 2 %.
static void costing_share_(PlanCosts *costs, const Costing *costing, const double *edge, double *capacity,
                           double *beside, double *part) {
    const Config *config = costing->config;
    const Schedule *schedule = costing->schedule;
    const Hardware *hardware = costing->source->hardware;
    int p = costing->plan->stages, *r = costs->resources_;
    int *compute = r, *down = r + p, *up = r + 2 * p, *evict = r + 3 * p, *load = r + 4 * p, *rival = r + 5 * p;
    for (int i = 0; i < 2 * p; i++) capacity[i] = part[i] = 1, rival[i] = -1;
    if (hardware->cpu) capacity[0] = hardware->cores_share / (double)(config_world(config) / p);
    for (int s = 0; s < p; s++) {
        int partner = bpipe_partner(p, s), next = (s + 1) % p;
        bool peers = partner != SCHEDULE_NO_PEER && config->schedule.evict_to == EVICT_TO_PEER;
        down[s] = card_(costing, s, next);
        up[s] = card_(costing, next, s);
        evict[s] = peers ? card_(costing, s, partner) : -1;
        load[s] = peers ? card_(costing, partner, s) : -1;
        compute[s] = hardware->cpu ? 0 : -1;
    }
    bool meet = !hardware->cpu && costing_meet_(costs, costing, edge, part, rival);
    double delayed = 0; // the largest share of a stage's compute that its messages can delay
    for (int s = 0; s < p; s++) {
        int below = (s + p - 1) % p, links = (down[s] >= 0) + (down[below] >= 0);
        const StageTime *time = &costs->stage[s];
        double message = max_double(edge[s], edge[below]), messages = 2.0 * links * schedule->chunks * schedule->slices;
        beside[s] = beside_message_(&time->spent, message);
        delayed = max_double(delayed, messages * message * (1 - beside[s]) / (time->forward + time->backward));
    }
    bool theirs = config->hardware.trainer != TRAINER_THIS;
    bool slows = !hardware->cpu && hardware->cost.persistent && !theirs && !meet && delayed > MATTERS &&
                 !counted_moves(hardware->gpu, config, &costing->plan->stage[0].at);
    for (int s = 0; s < p && slows; s++) compute[s] = p + s;
    costs->shares = (SimulateShares){.count = 2 * p,
                                     .capacity = capacity,
                                     .part = part,
                                     .rival = rival,
                                     .compute = compute,
                                     .down = down,
                                     .up = up,
                                     .beside = slows ? beside : NULL,
                                     .evict = evict,
                                     .load = load};
}

// Finds the kinds of nodes, by the stages with ranks there, whose sums share the node's network. Copies of the pipeline
// differ if one may begin in the middle of a node.
static void costing_kinds_(PlanCosts *costs, const Costing *costing) {
    const ParallelConfig *parallel = &costing->config->parallel;
    int p = costing->plan->stages, world = (int)config_world(costing->config), copy = world;
    int node = (int)hardware_domain(costing->source->hardware, costing->config);
    bool far = false;
    for (int s = 0; s < p; s++) far |= summing_place_(costing, s)->nodes > 1;
    if (!far) return;
    if (parallel->placement != PLACEMENT_STAGES) copy = p * (int)(parallel->tensor * parallel->context);
    for (int first = 0; first < world && (first == 0 || first % copy != 0); first += node) {
        costs->on = xrealloc(costs->on, (size_t)((costs->kinds + 1) * p));
        bool *here = costs->on + costs->kinds * p;
        int known = 0;
        memset(here, 0, (size_t)p);
        int last = min_i64(first + node, world) - 1, step = (int)parallel->tensor; // ranks in a row are of one stage
        for (int rank = first; rank <= last; rank += step) here[topology_coordinates(parallel, rank).stage] = true;
        here[topology_coordinates(parallel, last).stage] = true;
        for (int s = 0; s < p; s++) here[s] &= summing_place_(costing, s)->nodes > 1;
        while (memcmp(costs->on + known * p, here, (size_t)p) != 0) known++;
        costs->kinds += known == costs->kinds;
    }
}

// Fills in the sums of gradients over data ranks. The times of the stages must be known. last: SimulateCosts.last
static void costing_sums_(PlanCosts *costs, const Costing *costing, double *last) {
    const ParallelConfig *parallel = &costing->config->parallel;
    double d = (double)config_replicas(costing->config), same = d * (double)parallel->tensor / (double)parallel->expert;
    double element = costing->config->train.precision == PRECISION_BF16 ? 2 : 4;
    double piece = (double)costing->plan->stage[0].states.gradients / UNITS;
    piece /= (double)max_i64(1, costing->plan->stage[0].at.layers);
    double rate = 0, slower = 1;
    for (int s = 0; s < costing->plan->stages; s++) {
        const PlanStage *stage = &costing->plan->stage[s];
        StageTime *time = &costs->stage[s];
        const GroupPlace *place = summing_place_(costing, s);
        bool near = place->nodes == 1;
        if (!placed_alike_(costing, s - 1, s)) {
            // Replicas of every expert rank's part share a node's network.
            int64_t same = max_i64(1, costing->places[s].of[GROUP_SAME_EXPERTS].leaving);
            rate = data_rate_(costing, s, parallel->tensor, COST_REDUCE_SCATTER, piece);
            slower = rate / data_rate_(costing, s, same, COST_REDUCE_SCATTER, piece);
        }
        time->rate = rate;
        time->crowd = (double)place->crowd / (double)max_i64(1, place->leaving);
        double of_layers = (double)stage->layer_gradients;
        double of_ends = (double)stage->states.gradients - of_layers;
        // Sharded gradients are summed from buffers of two layers, so their memory is less than the bytes sent.
        if (config_shards_gradients(costing->config))
            of_layers = max_double(0, 4.0 / element * (double)stage->states.weights - of_ends);
        double of_experts = (double)stage->states.expert_gradients;
        double ends = costing->schedule->split ? time->weight : time->backward;
        time->bytes = (of_layers - of_experts) * (d - 1) / d + of_experts * (same - 1) / same * slower;
        time->late = of_ends * (d - 1) / d;
        time->hides = ends / costing->schedule->slices;
        time->layers = (int)max_i64(1, stage->at.layers);
        // Nothing can be summed until the last backward has completed its first layer. Persistent products are chosen
        // for fewer multiprocessors until that backward ends, other kernels are slower only while a sum is in flight.
        double whole = time->bytes / rate, share = (double)(time->layers - 1) / time->layers;
        if (!costing->source->hardware->cost.persistent) share = min_double(share, whole / time->hides);
        // Between nodes, that backward's own collectives and the sums get half of the network each.
        double meet = near || time->hides == 0 ? 0 : time->between * share * min_double(1, whole / time->hides);
        time->bytes += meet * rate, whole += meet;
        bool unslowed = time->bytes == 0 || time->backward == 0;
        last[s] = unslowed ? 1 : 1 + (time->beside * share + meet) / time->backward;
        time->hides *= last[s];
        // The sum of the layer that ends the last backward is never hidden. Other chunks' may be hidden completely.
        double hidden = costing->schedule->chunks > 1 ? whole : time->hides * (double)(time->layers - 1) / time->layers;
        time->reduction = max_double(whole - hidden, whole / time->layers) + time->late / rate;
    }
}

// Returns when gathers of a stage have done what takes them `seconds` while all stages of its nodes gather. They get
// equal parts of the network between nodes, and more of it when the first stages have all their weights.
static double gathering_(const PlanCosts *costs, int s, double seconds) {
    int stages = costs->plan->stages;
    double most = 0;
    for (const bool *on = costs->on; on < costs->on + costs->kinds * stages; on += stages) {
        double all = 0;
        for (int other = 0; other < stages && on[s]; other++)
            all += on[other] ? min_double(costs->stage[other].gather, seconds) : 0;
        most = max_double(most, all);
    }
    return most > 0 ? most / costs->stage[s].crowd : seconds;
}

// Returns the seconds by which gathers of weights over data ranks delay the first microbatch's way to the loss. They
// start on all stages after the update, in the order of the tensors' first use. Each part of a stage waits for its
// weights, and is slower while later ones arrive: products leave multiprocessors to the gathers (cuda/matmul.cpp) on
// the first stage; on others they are chosen for all, and some of their blocks may wait for a gather. A stage waits for
// its first input anyway, so only the first stages are delayed.
static double gathered_(const PlanCosts *costs, const Costing *costing) {
    const Plan *plan = costing->plan;
    const Schedule *schedule = costing->schedule;
    const Cost *cost = &costing->source->hardware->cost;
    double element = costing->config->train.precision == PRECISION_BF16 ? 2 : 4, now = 0, undelayed = 0;
    double all = cost->multiprocessors, slower = all > BESIDE_CTAS ? BESIDE_CTAS / (all - BESIDE_CTAS) : 0;
    for (int g = 0, s, c, from = -1; g < plan->stages * schedule->chunks; g++, from = s) {
        schedule_home(schedule, g, &s, &c);
        const PlanStage *stage = &plan->stage[s];
        const StageChunk *chunk = &stage->at.chunk[c];
        int64_t parts = chunk->layers > 0 ? chunk->layers : 1;
        double gather = costs->stage[s].gather, weights = (double)stage->states.weights;
        double forward = costs->costs.forward[(s * schedule->chunks + c) * schedule->slices];
        double each = forward / (double)parts, of_layer = 0;
        double ends = ((double)stage->states.gradients - (double)stage->layer_gradients) * element / 4;
        double embedding = !stage->at.first || weights <= 0 ? 0 : ends / weights / (stage->at.last ? 2 : 1);
        double gathered = gathering_(costs, s, gather);
        int link = s == from + 1 || (s == 0 && from != 1) ? from : s; // including last stage to first
        double message = from >= 0 && from != s ? costs->costs.edge[link] : 0;
        if (weights > 0 && stage->at.layers > 0) of_layer = (1 - ends / weights) / (double)stage->at.layers;
        now += message, undelayed += message + forward;
        for (int64_t i = 0; i < parts; i++) {
            bool whole = chunk->layers == 0 || (chunk->last && i + 1 == parts);
            double share = whole ? 1 : embedding + of_layer * (double)(chunk->before + i + 1);
            now = max_double(now, gathering_(costs, s, gather * share));
            double left = max_double(0, gathered - now), longer = cost->persistent && g > 0 ? each : each * slower;
            now += each + min_double(longer, cost->persistent ? left : left * BESIDE_CTAS / max_double(1, all));
        }
    }
    return now - undelayed;
}

static double tied_seconds_(const Costing *costing) {
    const Config *c = costing->config;
    int p = costing->plan->stages, first, last, chunk;
    schedule_home(costing->schedule, 0, &first, &chunk);
    schedule_home(costing->schedule, p * costing->schedule->chunks - 1, &last, &chunk);
    // If one rank has both gradients, as in a V, nothing is sent.
    if (c->model.tie_embeddings != TIE_TRUE || first == last) return 0;
    int64_t elements = config_padded_vocab(c) / c->parallel.tensor * c->model.hidden / config_replicas(c);
    return costing_message_(costing, first, last, 4 * elements);
}

int plan_costs_make(PlanCosts *costs, const Config *config, const Schedule *schedule, const Plan *plan,
                    const TimeSource *source, Error *err) {
    Costing costing = {.config = config, .schedule = schedule, .plan = plan, .source = source, .of = -1, .updated = -1};
    int p = plan->stages, all = p * schedule->chunks * schedule->slices, status = 0;
    costing.count = (CountSource){.hardware = source->hardware,
                                  .config = config,
                                  .model = source->model,
                                  .memo = source->counted,
                                  .split = schedule->split,
                                  .beside = sums_(config)};
    costing.copy = widest_copy_(&costing);
    costing.places = hardware_places(source->hardware, config);
    costing.times = xmalloc((size_t)schedule->slices * sizeof *costing.times);
    *costs = (PlanCosts){.plan = plan,
                         .stage = xcalloc((size_t)p, sizeof *costs->stage),
                         .times_ = xcalloc((size_t)(8 * p + 5 * all), sizeof *costs->times_),
                         .resources_ = xcalloc(8 * (size_t)p, sizeof *costs->resources_)};
    double *transfer = costs->times_, *edge = transfer + p, *last = edge + p, *beside = last + p,
           *capacity = beside + p, *part = capacity + 2 * p;
    double *queued = part + 2 * p, *compute[TIMED_ACTIONS];
    for (int k = 0; k < TIMED_ACTIONS; k++) compute[k] = queued + (k + 1) * all;
    for (int s = 0; s < p && status == 0; s++) {
        StageTime *time = &costs->stage[s];
        for (int c = 0; c < schedule->chunks && status == 0; c++)
            status = chunk_compute_(&costing, s, c, compute, time, err);
        for (int c = 0; c < schedule->chunks; c++) // a host is at most one action ahead, or LAYERS_AHEAD layers
            queued[s * schedule->chunks + c] =
                max_double(0, 1 - (double)LAYERS_AHEAD / (double)max_i64(1, plan->stage[s].at.chunk[c].layers));
        time->optimizer = optimizer_seconds_(&costing, s, &time->gather) - time->first;
        if (source->free_messages) continue;
        transfer[s] = transfer_(&costing, s);
        edge[s] = costing_message_(&costing, s, (s + 1) % p, plan->stage[s].at.message_bytes);
    }
    free(costing.times);
    if (status != 0) return free(costing.places), plan_costs_free(costs), -1;
    costing_share_(costs, &costing, edge, capacity, beside, part);
    costing_sums_(costs, &costing, last);
    costing_kinds_(costs, &costing);
    free(costing.places);
    costs->tied = tied_seconds_(&costing);
    costs->costs = (SimulateCosts){.forward = compute[TIMED_FORWARD],
                                   .backward = compute[TIMED_BACKWARD],
                                   .input = compute[TIMED_INPUT],
                                   .weight = compute[TIMED_WEIGHT],
                                   .last = last,
                                   .queued = source->hardware->cpu ? NULL : queued,
                                   .transfer = transfer,
                                   .edge = edge,
                                   .shares = &costs->shares};
    costs->gathered = gathered_(costs, &costing);
    return 0;
}

void plan_costs_free(PlanCosts *costs) {
    free_all(costs->stage, costs->on, costs->times_, costs->resources_);
    memset(costs, 0, sizeof *costs);
}

// Transfers of a stage go through its queue one after another.
double plan_transfer_seconds(const Config *config, const Schedule *schedule, const Plan *plan,
                             const TimeSource *source) {
    static const double LEAST_PART = 0.75; // least share of the transfers per microbatch that a longer schedule keeps
    Costing costing = {.config = config, .schedule = schedule, .plan = plan, .source = source};
    double most = 0, rounds = (double)config_microbatches(config) / schedule->microbatches;
    costing.copy = widest_copy_(&costing);
    for (int s = 0; s < schedule->stages; s++) {
        int partner = bpipe_partner(schedule->stages, s);
        int64_t own = schedule->stage[s].moves, others = 0;
        if (schedule->stage[s].lent_slots > 0) others = schedule->stage[partner].moves;
        double seconds = own > 0 ? (double)own * transfer_(&costing, s) : 0;
        if (others > 0) seconds += (double)others * transfer_(&costing, partner);
        if (seconds > most) most = seconds;
    }
    return max_double(1, LEAST_PART * rounds) * most;
}
