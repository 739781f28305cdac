// --check: measures devices, links and files for some seconds on all ranks, with the groups that the run would have
// (run.h), and compares the results with the plan and with each other.
//
// A round of a probe is timed from a barrier to the end of the work on the device; a GPU's figure is the median of its
// rounds, a CPU's the fastest. Products run on all ranks at once, as in training, so that GPUs reach their power limit.
// Links of one kind are measured at the same time, unless they share a rank.
//
// GPUs are compared with the plan. The plan's figures for CPUs are guesses, and other programs may use their cores:
// there the reference is the median, and differences below NOISE do not count.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json_out.h"
#include "base/units.h"
#include "checkpoint/checkpoint_layout.h"
#include "plan/plan_time.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum Probe {
    PROBE_PRODUCT,
    PROBE_TENSOR,
    PROBE_CONTEXT,
    PROBE_EXPERTS,
    PROBE_DATA,
    PROBE_NEXT, // messages to the next stage; then to the previous one
    PROBE_PREVIOUS,
    PROBE_PAIR,
    PROBE_READ,
    PROBE_WRITE,
    PROBE_COUNT
} Probe;

static const char *const words_[PROBE_COUNT] = {"product",  "tensor",   "context", "experts", "data",
                                                "pipeline", "pipeline", "pair",    "read",    "write"};

static const double NOISE = 0.5, SLOWER = 0.05, FILES_SLOWER = 1.0; // fractions of the reference time

enum { ROUNDS = 5, WRITES = 16 << 20 }; // WRITES: bytes that a rank writes at a time

// A measurement of one rank. A link is a group of `size` ranks with the first rank `leader`, or a message from `leader`
// to `peer`. between: the ranks are on several nodes. The last four are set on rank 0, in the finding of the leader.
typedef struct Finding {
    Probe probe;
    double seconds, expected; // seconds per execution; 0: not measured here
    double amount;            // FLOPs, or bytes that a rank sends
    int leader, peer, size;
    bool between;
    double rate;      // TFLOP/s or GB/s
    double of_plan;   // seconds / expected; NAN: there is no plan
    double of_median; // seconds / median of its kind
    bool counts;      // it exceeds the median by more than noise
} Finding;

typedef struct Preflight {
    Run *run;
    Config known; // the configuration, with the device's peak
    Hardware hardware;
    Shape shape;
    int64_t bytes; // size of messages and of a collective's result
    char *in, *out;
    // the work of the current probe
    void *operand[3]; // operands of the product: input, weight, output
    int64_t width;
    Comm *comm;
    CostCollective kind;
    int peer, file;
    bool sends;
    char *incoming;
    int64_t read;
    int32_t *tokens;
    int64_t *blocks;
    Finding mine[PROBE_COUNT];
    // on rank 0 only, from here on
    Finding (*all)[PROBE_COUNT]; // [world]
    Finding **items;             // every product, file and link once, by probe
    int count;
    const Finding *slowest; // the item that exceeds its median most; NULL if no item counts
    double step, ratio;     // seconds of the planned step; expected / planned seconds; NAN: unknown
    double slowest_read;    // seconds
} Preflight;

typedef int Work(Preflight *p, Error *err);

// ---------------------------------------------------------------- work

static int multiply_(Preflight *p, Error *err) {
    Backend *be = p->run->be;
    (void)err;
    be->linear_forward(be, p->operand[2], NULL, factor_plain(p->operand[0]), factor_plain(p->operand[1]), NULL,
                       p->shape.rows, p->shape.hidden, p->width, EPILOGUE_NONE);
    return 0;
}

static int collect_(Preflight *p, Error *err) {
    Comm *comm = p->comm;
    CommRequest request = {0};
    int64_t bytes = p->bytes / comm->size;
    int started =
        p->kind == COST_EXCHANGE ? comm->exchange(comm, p->out, p->blocks, p->in, p->blocks, &request, err)
        : p->kind == COST_ALL_GATHER
            ? comm->collective(comm, COMM_ALL_GATHER, NO_ROOT, p->out, p->out + comm->rank * bytes, bytes, COMM_BYTE,
                               &request, err)
            : comm->collective(comm, COMM_REDUCE_SCATTER, NO_ROOT, p->out, p->in, bytes / 4, COMM_FLOAT, &request, err);
    return started == 0 ? comm_wait(comm, &request, err) : -1;
}

// Sends or receives two halves concurrently, as between stages.
static int message_(Preflight *p, Error *err) {
    CommRequest request[2] = {0};
    int64_t half = p->bytes / 2;
    for (int i = 0; i < 2; i++)
        if (p->comm->message(p->comm, p->sends, p->peer, (p->sends ? p->out : p->incoming) + i * half, half,
                             &request[i], err) != 0)
            return -1;
    for (int i = 0; i < 2; i++)
        if (comm_wait(p->comm, &request[i], err) != 0) return -1;
    return 0;
}

// Reads this replica's samples of a step, starting with the last steps of training, which are not in the page cache.
static int read_(Preflight *p, Error *err) {
    const Config *config = p->run->config;
    int64_t share = config->train.global_batch / config->parallel.data;
    int64_t all = config_samples(config, 0, config->train.steps);
    p->read += config->train.global_batch;
    int64_t from = max_i64(0, all - p->read) + p->run->at.replica / config->parallel.context * share;
    for (int64_t i = 0; i < share; i++)
        if (blend_fetch(p->run->sets.train, config->train.seed, (from + i) % all, p->tokens,
                        p->tokens + config->model.seq_len, 1, err) != 0)
            return -1;
    return 0;
}

static int write_(Preflight *p, Error *err) {
    int64_t most = p->run->config->model.seq_len * 2 * (int64_t)sizeof *p->tokens, left = WRITES;
    bool wrote = lseek(p->file, 0, SEEK_SET) == 0;
    for (; wrote && left > 0; left -= most) wrote = file_write_all(p->file, p->tokens, min_i64(most, left)) == 0;
    if (wrote && fsync(p->file) == 0) return 0;
    return error_set(err, EXIT_FAILED, "checkpoint.dir %s: cannot write: %m", p->run->config->checkpoint.dir);
}

// ---------------------------------------------------------------- probes

// Collective. Times the work of all participating ranks at once, for a fraction of a second, products on GPUs for two.
static int measure_(Preflight *p, Probe probe, Work *work, bool part, Error *err) {
    Run *run = p->run;
    bool product = probe == PROBE_PRODUCT;
    double budget = product ? 2.0 : 0.5; // seconds
    if (run->be->own_sums) budget = product ? 0.4 : 0.15;
    double rounds[ROUNDS];
    double state[2] = {0}; // seconds of one execution; 1 if a stop was requested
    char action[48];
    snprintf(action, sizeof action, "check of %s", words_[probe]);
    status_page_set_action(run->status_page, action);
    int64_t each = 1;
    for (int i = -2; i < ROUNDS; i++) { // the first two connect, load kernels, and find how long one takes
        if (world_barrier(run->world, err) != 0) return -1;
        double began = clock_seconds();
        for (int64_t k = 0; part && k < each; k++)
            if (work(p, err) != 0) return -1;
        if (part && run->be->synchronize(run->be, err) != 0) return -1;
        rounds[i < 0 ? 0 : i] = state[0] = (clock_seconds() - began) / (double)each;
        if (i != -1) continue;
        state[1] = run_stop_requested();
        if (world_max(run->world, state, 2, err) != 0) return -1;
        if (state[1] > 0) return error_on_all(err, EXIT_FAILED, "stopped on request before the check was complete");
        each = max_i64(1, min_i64(1000, (int64_t)(budget / ROUNDS / state[0])));
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare_doubles);
    if (part) p->mine[probe].seconds = rounds[run->be->own_sums ? 0 : ROUNDS / 2];
    return 0;
}

static int probe_product_(Preflight *p, Error *err) {
    Backend *be = p->run->be;
    const Cost *cost = &p->hardware.cost;
    int64_t rows = p->shape.rows, in = p->shape.hidden, out = p->width;
    int64_t count[] = {rows * in, out * in, rows * out};
    for (int i = 0; i < 3; i++) {
        p->operand[i] = be->allocate(be, MEMORY_WORKSPACE, count[i] * be->element, "operands of a product", err);
        if (p->operand[i] == NULL || (i < 2 && engine_draw(be, p->operand[i], count[i], (uint64_t)i, err) != 0))
            return -1;
    }
    double one = 2.0 * (double)rows * (double)in * (double)out;
    p->mine[PROBE_PRODUCT] = (Finding){.amount = one, .leader = world_rank(p->run->world), .size = 1};
    if (cost->flops > 0) // rate of a CPU while all ranks compute
        p->mine[PROBE_PRODUCT].expected = cost_product(cost, 1, rows, out, in) * cost->flops / p->hardware.peak *
                                          cost_waves(cost, 1, rows, out, cost->multiprocessors);
    int status = measure_(p, PROBE_PRODUCT, multiply_, true, err);
    for (int i = 0; i < 3; i++) be->release(be, MEMORY_WORKSPACE, p->operand[i], count[i] * be->element);
    return status;
}

// Measures a collective of this rank's group. sharing: groups of this kind that use a node's network at once.
static int probe_group_(Preflight *p, Probe probe, Comm *comm, CostCollective kind, int64_t sharing, Error *err) {
    const Config *config = p->run->config;
    const Cost *cost = &p->hardware.cost;
    Finding *finding = &p->mine[probe];
    p->comm = comm, p->kind = kind;
    if (comm == NULL) return measure_(p, probe, collect_, false, err);
    // The sums give the group's first rank, and whether the group spans nodes.
    int node = hardware_node(&p->hardware, config, world_rank(p->run->world));
    double sums[3] = {comm->rank == 0 ? world_rank(p->run->world) : 0, node, (double)node * node};
    if (comm_collect_now(comm, COMM_ALL_REDUCE, sums, sums, 3, COMM_DOUBLE, err) != 0) return -1;
    finding->leader = (int)sums[0], finding->size = comm->size;
    finding->between = sums[2] * comm->size > sums[1] * sums[1] + 0.5; // the nodes' numbers have a variance
    CommMemory memory = {p->out,   2 * p->bytes + COMM_FLAGS * 4, p->out, p->in,
                         p->bytes, (uint32_t *)(p->in + p->bytes)};
    int mapped = probe == PROBE_TENSOR && comm->use_memory != NULL ? comm->use_memory(comm, &memory, err) : 0;
    if (mapped < 0) return -1;
    int ranks = comm->size, domain = (int)hardware_domain(&p->hardware, config);
    double bytes = (double)(p->bytes / ranks * ranks), network = hardware_network(&p->hardware, config);
    double rate = fmin(network / (double)min_i64(sharing, domain), cost->tensor);
    int nodes = finding->between ? max_int(2, (int)min_i64(ranks, config_world(config) / domain)) : 1;
    finding->amount = bytes * (ranks - 1) / ranks;
    finding->expected = nodes > 1 && kind == COST_EXCHANGE ? cost_exchange(cost, 0, 1, finding->amount, rate)
                        : nodes > 1 ? cost_collective_between(cost, kind, bytes, ranks, nodes, rate)
                        : mapped > 0 && p->run->tensor->why[0] == '\0' && !p->run->be->own_sums && config_copies(config)
                            ? cost_copies(cost, bytes, ranks, false) + cost_flag(cost)
                            : cost_collective(cost, kind, bytes, ranks);
    for (int i = 0; i < ranks; i++) p->blocks[i] = p->bytes / ranks;
    int status = measure_(p, probe, collect_, true, err);
    if (mapped > 0 && comm->use_memory(comm, NULL, err) != 0) return -1;
    return status;
}

// Returns this rank's role in messages to the next or previous stage or to the partner: 1 sends, 0 receives, -1 none.
// Neighbours take turns, the boundaries after even stages first (turn 0).
static int part_in_(const Preflight *p, Probe probe, int turn, int rank, int *other) {
    const ParallelConfig *parallel = &p->run->config->parallel;
    Coordinates at = topology_coordinates(parallel, rank), there = at;
    int stages = (int)parallel->pipeline, stage = at.stage, low = stage % 2 == turn ? stage : stage - 1;
    bool upper = stage != low, sends = probe == PROBE_NEXT ? !upper : upper;
    there.stage = upper ? low : low + 1;
    if (probe == PROBE_PAIR) there.stage = bpipe_partner(stages, stage), sends = stage < there.stage;
    if (there.stage < 0 || there.stage >= stages || there.stage == stage) return -1;
    *other = topology_rank(parallel, there);
    return sends;
}

// Measures messages from one stage to another. `lent` receives them.
static int probe_message_(Preflight *p, Probe probe, int turn, Comm *comm, char *lent, Error *err) {
    const Config *config = p->run->config;
    const Cost *cost = &p->hardware.cost;
    int rank = world_rank(p->run->world), other = -1, sharing = 0;
    int part = comm == NULL ? -1 : part_in_(p, probe, turn, rank, &other);
    if (part < 0) return measure_(p, probe, message_, false, err);
    int node = hardware_node(&p->hardware, config, rank);
    bool between = node != hardware_node(&p->hardware, config, other);
    for (int r = 0, to; r < world_size(p->run->world); r++) // messages that leave this node at the same time
        sharing += hardware_node(&p->hardware, config, r) == node && part_in_(p, probe, turn, r, &to) == 1 &&
                   hardware_node(&p->hardware, config, to) != node;
    p->comm = comm, p->sends = part == 1, p->incoming = lent;
    p->peer = probe == PROBE_PAIR ? 1 - comm->rank : topology_coordinates(&config->parallel, other).stage;
    if (comm->connect != NULL && comm->connect(comm, p->peer, p->sends, p->sends ? NULL : lent, p->bytes, err) != 0)
        return -1;
    double rate = between ? fmin(cost->pair, hardware_network(&p->hardware, config) / max_int(sharing, 1)) : cost->pair;
    if (part == 1)
        p->mine[probe] = (Finding){.expected = cost_message(cost, (double)p->bytes, rate),
                                   .amount = (double)p->bytes,
                                   .leader = rank,
                                   .peer = other,
                                   .size = 2,
                                   .between = between};
    double kept = p->mine[probe].seconds;
    int status = measure_(p, probe, message_, true, err);
    if (part == 0) p->mine[probe].seconds = kept; // the sender's figure counts
    return status;
}

// Measures how long this rank's samples of a step take to read, and how fast this rank writes.
static int probe_files_(Preflight *p, Error *err) {
    Run *run = p->run;
    const Config *config = run->config;
    char path[CONFIG_TEXT + 32];
    bool reads = run->at.stage == 0 || run->at.stage == config->parallel.pipeline - 1 || config_uses_documents(config);
    p->mine[PROBE_READ] = p->mine[PROBE_WRITE] = (Finding){.leader = world_rank(run->world), .size = 1};
    p->mine[PROBE_READ].amount =
        4.0 * (double)(config->train.global_batch / config->parallel.data * config->model.seq_len);
    if (measure_(p, PROBE_READ, read_, reads, err) != 0) return -1;
    if (config->checkpoint.dir[0] == '\0') return 0;
    // The run creates the folder; this check leaves nothing, so it writes into the nearest existing parent folder.
    snprintf(path, sizeof path, "%s", config->checkpoint.dir);
    while (access(path, F_OK) != 0 && strrchr(path, '/') != NULL && strrchr(path, '/') != path)
        *strrchr(path, '/') = '\0';
    if (access(path, F_OK) != 0) snprintf(path, sizeof path, ".");
    text_add(path, sizeof path, "/.check_XXXXXX");
    p->file = mkstemp(path);
    if (p->file < 0) return error_set(err, EXIT_FAILED, "checkpoint.dir: cannot write to %s: %m", path);
    unlink(path);
    p->mine[PROBE_WRITE].amount = WRITES;
    int status = measure_(p, PROBE_WRITE, write_, true, err);
    close(p->file);
    return status;
}

static int probe_all_(Preflight *p, Error *err) {
    Run *run = p->run;
    Backend *be = run->be;
    const ParallelConfig *c = &run->config->parallel;
    char *lent[3];
    for (int i = 0; i < 3; i++) {
        MemoryCategory category = i == 2 ? MEMORY_LENT_SLOTS : MEMORY_MESSAGES;
        if ((lent[i] = be->allocate(be, category, p->bytes, "messages", err)) == NULL) return -1;
    }
    if (probe_product_(p, err) != 0) return -1;
    struct {
        Probe probe;
        Comm *comm;
        CostCollective kind;
        int64_t ranks, sharing;
    } groups[] = {{PROBE_TENSOR, run->tensor, COST_ALL_GATHER, c->tensor, 1},
                  {PROBE_CONTEXT, run->context[0], COST_ALL_GATHER, c->context, c->tensor},
                  {PROBE_EXPERTS, run->experts, COST_EXCHANGE, c->expert, INT32_MAX},
                  {PROBE_DATA, run->data, COST_REDUCE_SCATTER, config_replicas(run->config), c->pipeline * c->tensor}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i].ranks > 1 &&
            probe_group_(p, groups[i].probe, groups[i].comm, groups[i].kind, groups[i].sharing, err) != 0)
            return -1;
    for (int way = 0; way < 2 && run->lanes > 0; way++)
        for (int turn = 0; turn < (c->pipeline > 2 ? 2 : 1); turn++)
            if (probe_message_(p, way == 0 ? PROBE_NEXT : PROBE_PREVIOUS, turn, run->lane[0], lent[way], err) != 0)
                return -1;
    double pairs = run->pair != NULL;
    if (world_max(run->world, &pairs, 1, err) != 0) return -1;
    if (pairs > 0 && probe_message_(p, PROBE_PAIR, 0, run->pair, lent[2], err) != 0) return -1;
    if (probe_files_(p, err) != 0) return -1;
    for (int i = 0; i < 3; i++) be->release(be, i == 2 ? MEMORY_LENT_SLOTS : MEMORY_MESSAGES, lent[i], p->bytes);
    return 0;
}

// ---------------------------------------------------------------- judging

static bool alike_(const Finding *a, const Finding *b) {
    return strcmp(words_[a->probe], words_[b->probe]) == 0 && a->between == b->between;
}

// Lists every product, file and link: the slowest rank of a group gives its time. Compares each item with the median of
// its kind, relative to the plan if there is one.
static void list_items_(Preflight *p) {
    int world = world_size(p->run->world);
    double *ratios = xmalloc((size_t)world * sizeof *ratios * PROBE_COUNT);
    p->items = xcalloc((size_t)world * PROBE_COUNT, sizeof *p->items);
    for (Probe probe = 0; probe < PROBE_COUNT; probe++)
        for (int r = 0; r < world; r++) {
            Finding *item = &p->all[r][probe];
            if (item->seconds == 0 || item->leader != r) continue;
            item->probe = probe;
            for (int q = 0; q < world; q++)
                if (p->all[q][probe].leader == r) item->seconds = fmax(item->seconds, p->all[q][probe].seconds);
            item->rate = (probe == PROBE_PRODUCT ? 1e-12 : 1e-9) * item->amount / item->seconds;
            item->of_plan = item->expected > 0 ? item->seconds / item->expected : NAN;
            if (probe == PROBE_READ) p->slowest_read = fmax(p->slowest_read, item->seconds);
            p->items[p->count++] = item;
        }
    for (int i = 0; i < p->count; i++) {
        Finding *item = p->items[i];
        double most = item->probe >= PROBE_READ ? FILES_SLOWER : p->hardware.cpu ? NOISE : SLOWER, own = 0;
        int alike = 0;
        for (int k = 0; k < p->count; k++) {
            const Finding *other = p->items[k];
            if (!alike_(item, other)) continue;
            ratios[alike++] = isfinite(other->of_plan) ? other->of_plan : other->seconds;
            if (k == i) own = ratios[alike - 1];
        }
        qsort(ratios, (size_t)alike, sizeof *ratios, compare_doubles);
        item->of_median = own / ratios[(alike - 1) / 2];
        item->counts = item->of_median > 1 + most;
        bool worse = p->slowest == NULL || item->of_median > p->slowest->of_median;
        if (item->counts && worse) p->slowest = item;
    }
    free(ratios);
}

// Returns the ratio of the slowest item of one kind of work to its reference. first, last: its probes.
static double longer_(const Preflight *p, Probe first, Probe last, int between) {
    double most = 0;
    for (int i = 0; i < p->count; i++) {
        const Finding *item = p->items[i];
        if (item->probe < first || item->probe > last || (between >= 0 && item->between != between)) continue;
        bool planned = !p->hardware.cpu && isfinite(item->of_plan);
        most = fmax(most, planned ? item->of_plan : item->counts ? item->of_median : 1);
    }
    return most == 0 ? 1 : most;
}

// Plans the step again with the rates of the slowest product and links. All ranks wait for the slowest.
static int judge_step_(Preflight *p, Error *err) {
    const Run *run = p->run;
    Hardware slower = p->hardware;
    PlanTime time[2];
    double product = longer_(p, PROBE_PRODUCT, PROBE_PRODUCT, -1), collective = longer_(p, PROBE_TENSOR, PROBE_DATA, 0),
           message = longer_(p, PROBE_NEXT, PROBE_PAIR, 0), network = longer_(p, PROBE_TENSOR, PROBE_PAIR, 1);
    Cost *cost = &slower.cost;
    cost->efficiency /= product, cost->flash_forward.share /= product, cost->flash_backward.share /= product;
    cost->tensor /= collective, cost->pair /= message, cost->network /= network;
    for (int i = 0; i < GPU_COLLECTIVES * GPU_SIZES; i++) {
        uint16_t *rate = &cost->collectives[i / GPU_SIZES][i % GPU_SIZES];
        *rate = (uint16_t)fmin(*rate / collective, UINT16_MAX);
    }
    for (int i = 0; i < 2; i++) {
        TimeSource source = {.hardware = i == 0 ? &p->hardware : &slower, .model = run->model};
        if (plan_time(&time[i], &p->known, run->schedule, &run->plan, &source, INFINITY, err) != 0) return -1;
    }
    p->step = p->ratio = NAN;
    if (!time[0].known || !time[1].known) return 0;
    p->step = time[0].step;
    p->ratio = (time[1].step + fmax(0, p->slowest_read - time[1].step)) / time[0].step; // it is read a step ahead
    return 0;
}

// Writes "rank 17 (host n3): product 11 % below the median".
static void tell_item_(const Preflight *p, const Finding *item, char *text, size_t size) {
    char first[32] = "", other[48] = "";
    if (item->size > 1 && item->probe < PROBE_NEXT) {
        snprintf(first, sizeof first, "%d ranks from ", item->size);
        strcpy(other, " on");
    } else if (item->size > 1) snprintf(other, sizeof other, " to rank %d", item->peer);
    snprintf(text, size, "%srank %d (host %s)%s: %s %.0f %% below the median", first, item->leader,
             p->run->roster.ranks[item->leader].host, other, words_[item->probe], 100 * (1 - 1 / item->of_median));
}

static double checkpoint_gb_(const Run *run) {
    CheckpointLayout layout;
    TensorTable table = model_table(run->model, &run->config->model);
    double bytes = 0;
    layout_create(&layout, &table, &run->config->train);
    for (int f = 0; f < layout.files; f++) bytes += (double)layout.file[f].bytes;
    layout_free(&layout);
    table_free(&table);
    return 1e-9 * bytes;
}

// Prints a line for each kind (how many there are, the lowest and the highest rate, and the median next to the plan),
// then the slow items, the files, and the step.
static void print_text_(const Preflight *p) {
    enum { MOST = 8 };
    double writing = 0;
    char text[256];
    int said = 0;
    for (int i = 0, k; i < p->count; i++) {
        const Finding *item = p->items[i], *middle = item;
        double low = INFINITY, high = 0;
        int alike = 0;
        for (k = 0; k < p->count; k++) {
            const Finding *other = p->items[k];
            if (!alike_(item, other)) continue;
            if (k < i) break; // this kind is already printed
            low = fmin(low, other->rate), high = fmax(high, other->rate), alike++;
            if (fabs(other->of_median - 1) < fabs(middle->of_median - 1)) middle = other;
        }
        if (k < p->count) continue;
        printf("%-9s %d %s%s: %.3g to %.3g %s", words_[item->probe], alike, item->size == 1 ? "rank" : "link",
               alike == 1 ? "" : "s", low, high, item->probe == PROBE_PRODUCT ? "TFLOP/s" : "GB/s");
        if (item->between) printf(" between nodes");
        if (isfinite(middle->of_plan)) printf("; the plan has %.3g", middle->rate * middle->of_plan);
        printf("\n");
    }
    for (int i = 0; i < p->count; i++) {
        const Finding *item = p->items[i];
        if (item->probe == PROBE_WRITE) writing += item->rate * 1e9;
        if (!item->counts || said++ >= MOST) continue;
        tell_item_(p, item, text, sizeof text);
        printf("%s\n", text);
    }
    if (said > MOST) printf("and %d more\n", said - MOST);
    double saved = checkpoint_gb_(p->run);
    if (writing > 0) printf("files     a checkpoint of %.3g GB takes about %.3g s\n", saved, 1e9 * saved / writing);
    printf("files     a step's samples are read in %.3g ms\n", 1e3 * p->slowest_read);
    if (isfinite(p->ratio)) printf("step      %.3g times the planned %.4g ms\n", p->ratio, 1e3 * p->step);
}

static void print_json_(const Preflight *p) {
    JsonOut out = {.file = stdout};
    char text[256] = "";
    json_begin(&out, NULL, '{');
    json_begin(&out, "ranks", '[');
    for (int i = 0; i < p->count && p->items[i]->probe == PROBE_PRODUCT; i++) {
        const Finding *item = p->items[i];
        double read = p->all[item->leader][PROBE_READ].seconds, write = p->all[item->leader][PROBE_WRITE].seconds;
        json_line(&out);
        json_object(&out, NULL, "rank %d host %s tflops %.4g of_median %.4g of_plan %.4g read_ms %.4g write_gb_s %.4g",
                    item->leader, p->run->roster.ranks[item->leader].host, item->rate, 1 / item->of_median,
                    1 / item->of_plan, read > 0 ? 1e3 * read : NAN, write > 0 ? 1e-9 * WRITES / write : NAN);
    }
    json_end(&out, ']');
    json_begin(&out, "links", '[');
    for (int i = 0; i < p->count; i++) {
        const Finding *item = p->items[i];
        if (item->size == 1) continue;
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_put_text(&out, "kind", words_[item->probe]);
        json_begin(&out, "ranks", '[');
        for (int r = 0; r < world_size(p->run->world); r++) {
            const Finding *of = &p->all[r][item->probe];
            bool member = of->size > 0 && of->leader == item->leader;
            if (item->probe < PROBE_NEXT ? member : r == item->leader) json_put_integer(&out, NULL, r);
        }
        if (item->probe >= PROBE_NEXT) json_put_integer(&out, NULL, item->peer);
        json_end(&out, ']');
        json_members(&out, "gb_s %.4g of_median %.4g of_plan %.4g", item->rate, 1 / item->of_median, 1 / item->of_plan);
        json_end(&out, '}');
    }
    json_end(&out, ']');
    if (p->slowest == NULL) json_put_null(&out, "slowest");
    else {
        tell_item_(p, p->slowest, text, sizeof text);
        json_object(&out, "slowest", "kind %s rank %d of_median %.4g text %s", words_[p->slowest->probe],
                    p->slowest->leader, 1 / p->slowest->of_median, text);
    }
    json_members(&out, "step_ms %.6g step_ratio %.4g", 1e3 * p->step, p->ratio);
    json_end(&out, '}');
    printf("\n");
}

int run_preflight(Run *run, bool json, Error *err) {
    const Config *config = run->config;
    Backend *be = run->be;
    Preflight p = {.run = run, .known = *config, .bytes = be->own_sums ? 4 << 20 : 64 << 20};
    int64_t arena = 2 * p.bytes + COMM_FLAGS * 4, world = world_size(run->world);
    run_listen(run);
    if (p.known.hardware.peak_tflops == 0.0) p.known.hardware.peak_tflops = be->peak_tflops;
    hardware_describe(&p.hardware, &p.known, be->device);
    shape_from_config(&p.shape, config, be, run->at.stage, run->at.tensor);
    p.width = max_i64(p.shape.mlp_cols, p.shape.qkv_cols);
    p.out = be->allocate(be, MEMORY_MESSAGES, arena, "collectives", err);
    if (p.out == NULL) return -1;
    p.in = p.out + p.bytes;
    p.tokens = xcalloc((size_t)config->model.seq_len * 2, sizeof *p.tokens);
    p.blocks = xcalloc((size_t)world, sizeof *p.blocks);
    p.all = xcalloc((size_t)world, sizeof *p.all);
    int status = probe_all_(&p, err);
    if (status == 0) status = world_gather(run->world, p.all, p.mine, sizeof p.mine, err);
    Error wrong = {0};
    if (status == 0 && world_rank(run->world) == 0) {
        char text[256] = "no rank or link is slower than the others";
        list_items_(&p);
        if (judge_step_(&p, &wrong) == 0) {
            json ? print_json_(&p) : print_text_(&p);
            if (fflush(stdout) != 0)
                error_set(&wrong, EXIT_FAILED, "cannot write the result of the check to standard output");
            if (p.slowest != NULL) tell_item_(&p, p.slowest, text, sizeof text);
            if (p.ratio > 1 + SLOWER) // a step would take too long
                error_set(&wrong, EXIT_FAILED, "%s; a step would take %.3g times the planned %.4g ms", text, p.ratio,
                          1e3 * p.step);
        }
    }
    if (status == 0) status = world_agree(run->world, &wrong, err);
    be->release(be, MEMORY_MESSAGES, p.out, arena);
    free_all(p.tokens, p.blocks, p.all, p.items);
    return status;
}
