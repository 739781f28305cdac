// --check: what a run needs is measured for some seconds on all ranks, with the groups that the run would have (run.h).
// A round of a probe is timed from a barrier to the end of the work on the device; a GPU's figure is the median of its
// rounds, a CPU's the fastest. Products run on all ranks at once, as in training, so that GPUs reach their power limit.
// Links of one kind are measured at the same time, unless they share a rank.
#include "preflight.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5 };

typedef struct Preflight {
    Run *run;
    Hardware hardware;
    Shape shape;
    int64_t bytes; // of messages and of a collective's result
    char *in, *out;
    // the work of the current probe
    void *x, *w, *y;
    int64_t width;
    Comm *comm;
    int peer, file;
    bool sends;
    char *incoming;
    int64_t read;
    int32_t *tokens;
    int64_t *blocks;
    Finding mine[PROBE_COUNT];
} Preflight;

typedef int Work(Preflight *p, Error *err);

// ---------------------------------------------------------------- work

static int multiply_(Preflight *p, Error *err) {
    Backend *be = p->run->be;
    (void)err;
    be->linear_forward(be, p->y, NULL, factor_plain(p->x), factor_plain(p->w), NULL, p->shape.rows, p->shape.hidden,
                       p->width, EPILOGUE_NONE);
    return 0;
}

static int gather_(Preflight *p, Error *err) {
    CommRequest request = {0};
    int64_t count = p->bytes / p->comm->size;
    if (p->comm->collective(p->comm, COMM_ALL_GATHER, p->out, p->out + p->comm->rank * count, count, COMM_BYTE,
                            &request, err) != 0)
        return -1;
    return comm_wait(p->comm, &request, err);
}

static int reduce_(Preflight *p, Error *err) {
    CommRequest request = {0};
    int64_t count = p->bytes / 4 / p->comm->size;
    if (p->comm->collective(p->comm, COMM_REDUCE_SCATTER, p->out, p->in, count, COMM_FLOAT, &request, err) != 0)
        return -1;
    return comm_wait(p->comm, &request, err);
}

static int exchange_(Preflight *p, Error *err) {
    CommRequest request = {0};
    if (p->comm->exchange(p->comm, p->out, p->blocks, p->in, p->blocks, &request, err) != 0) return -1;
    return comm_wait(p->comm, &request, err);
}

// Two halves are in flight, as between stages.
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

// Reads this replica's samples of a step, beginning with the last steps of training, which no cache holds.
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
    int64_t piece = p->run->config->model.seq_len * 2 * (int64_t)sizeof *p->tokens, done = 0;
    while (done < WRITES && pwrite(p->file, p->tokens, (size_t)piece, done) == piece) done += piece;
    if (done >= WRITES && fsync(p->file) == 0) return 0;
    return error_set(err, EXIT_FAILED, "checkpoint.dir %s: cannot write: %m", p->run->config->checkpoint.dir);
}

// ---------------------------------------------------------------- probes

// Collective. Times the work of the ranks that take part, all at once, for about `budget` seconds.
static int measure_(Preflight *p, Probe probe, Work *work, double budget, bool part, Error *err) {
    Run *run = p->run;
    double state[2] = {0}, rounds[ROUNDS];
    char action[48];
    snprintf(action, sizeof action, "check of %s", preflight_words[probe]);
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

static double budget_(const Preflight *p) { return p->run->be->own_sums ? 0.15 : 0.5; }

static int probe_product_(Preflight *p, Error *err) {
    Backend *be = p->run->be;
    const Cost *cost = &p->hardware.cost;
    int64_t rows = p->shape.rows, in = p->shape.hidden, out = p->width, most = max_i64(rows, out) * in;
    float *drawn = be->allocate(be, MEMORY_WORKSPACE, most * 4, "random numbers", err);
    void **to[] = {&p->x, &p->w, &p->y};
    int64_t count[] = {rows * in, out * in, rows * out};
    for (int i = 0; i < 3 && drawn != NULL; i++) {
        *to[i] = be->allocate(be, MEMORY_WORKSPACE, count[i] * be->element, "operands of a product", err);
        if (*to[i] == NULL) return -1;
        NormalRows normals = {1.0f, 1, (uint64_t)i, 0, (uint64_t)count[i]}; // zeros would draw less power
        if (i < 2) be->draw_normal(be, drawn, 1, count[i], &normals), be->from_float(be, *to[i], drawn, count[i]);
    }
    if (drawn == NULL || be->synchronize(be, err) != 0) return -1;
    double one = 2.0 * (double)rows * (double)in * (double)out;
    p->mine[PROBE_PRODUCT] = (Finding){.amount = one, .leader = world_rank(p->run->world), .size = 1};
    if (cost->flops > 0) // of a CPU, while all ranks compute
        p->mine[PROBE_PRODUCT].expected = cost_product(cost, 1, rows, out, in) * cost->flops / p->hardware.peak *
                                          cost_waves(cost, 1, rows, out, cost->multiprocessors);
    int status = measure_(p, PROBE_PRODUCT, multiply_, be->own_sums ? 0.4 : 2.0, true, err);
    for (int i = 0; i < 3; i++) be->release(be, MEMORY_WORKSPACE, *to[i], count[i] * be->element);
    be->release(be, MEMORY_WORKSPACE, drawn, most * 4);
    return status;
}

// Finds the first rank of a group, and whether it is on several nodes.
static int describe_(Preflight *p, Comm *comm, Finding *finding, Error *err) {
    CommRequest request = {0};
    int node = hardware_node(&p->hardware, p->run->config, world_rank(p->run->world));
    double sums[3] = {comm->rank == 0 ? world_rank(p->run->world) : 0, node, (double)node * node};
    if (comm->collective(comm, COMM_ALL_REDUCE, sums, sums, 3, COMM_DOUBLE, &request, err) != 0 ||
        comm_wait(comm, &request, err) != 0)
        return -1;
    finding->leader = (int)sums[0], finding->size = comm->size;
    finding->between = sums[2] * comm->size > sums[1] * sums[1] + 0.5; // the nodes' numbers have a variance
    return 0;
}

// Measures a collective of this rank's group. sharing: groups of its kind that a node's network carries at once.
static int probe_group_(Preflight *p, Probe probe, Comm *comm, Work *work, CostCollective kind, int64_t sharing,
                        Error *err) {
    const Config *config = p->run->config;
    const Cost *cost = &p->hardware.cost;
    Finding *finding = &p->mine[probe];
    p->comm = comm;
    if (comm == NULL) return measure_(p, probe, work, budget_(p), false, err);
    if (describe_(p, comm, finding, err) != 0) return -1;
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
                            ? cost_copies(cost, bytes, ranks)
                            : cost_collective(cost, kind, bytes, ranks);
    for (int i = 0; i < ranks; i++) p->blocks[i] = p->bytes / ranks;
    int status = measure_(p, probe, work, budget_(p), true, err);
    if (mapped > 0 && comm->use_memory(comm, NULL, err) != 0) return -1;
    return status;
}

// Returns the part of a rank in messages to the next or previous stage or to the partner: 1 sends, 0 receives, -1 none.
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
    if (part < 0) return measure_(p, probe, message_, budget_(p), false, err);
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
    int status = measure_(p, probe, message_, budget_(p), true, err);
    if (part == 0) p->mine[probe].seconds = kept; // the sender tells
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
    if (measure_(p, PROBE_READ, read_, budget_(p), reads, err) != 0) return -1;
    if (config->checkpoint.dir[0] == '\0') return 0;
    // The run creates the folder; this check leaves nothing, so it writes into the nearest folder that exists.
    snprintf(path, sizeof path, "%s", config->checkpoint.dir);
    while (access(path, F_OK) != 0 && strrchr(path, '/') != NULL && strrchr(path, '/') != path)
        *strrchr(path, '/') = '\0';
    if (access(path, F_OK) != 0) snprintf(path, sizeof path, ".");
    snprintf(path + strlen(path), sizeof path - strlen(path), "/.check_XXXXXX");
    p->file = mkstemp(path);
    if (p->file < 0) return error_set(err, EXIT_FAILED, "checkpoint.dir: cannot write to %s: %m", path);
    unlink(path);
    p->mine[PROBE_WRITE].amount = WRITES;
    int status = measure_(p, PROBE_WRITE, write_, budget_(p), true, err);
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
        Work *work;
        CostCollective kind;
        int64_t ranks, sharing;
    } groups[] = {
        {PROBE_TENSOR, run->tensor, gather_, COST_ALL_GATHER, c->tensor, 1},
        {PROBE_CONTEXT, run->context[0], gather_, COST_ALL_GATHER, c->context, c->tensor},
        {PROBE_EXPERTS, run->experts, exchange_, COST_EXCHANGE, c->expert, INT32_MAX},
        {PROBE_DATA, run->data, reduce_, COST_REDUCE_SCATTER, config_replicas(run->config), c->pipeline * c->tensor}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i].ranks > 1 && probe_group_(p, groups[i].probe, groups[i].comm, groups[i].work, groups[i].kind,
                                                groups[i].sharing, err) != 0)
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

int run_preflight(Run *run, bool json, Error *err) {
    const Config *config = run->config;
    Backend *be = run->be;
    Config known = *config;
    Preflight p = {.run = run, .bytes = be->own_sums ? 4 << 20 : 64 << 20};
    int64_t arena = 2 * p.bytes + COMM_FLAGS * 4, world = world_size(run->world);
    Diagnosis answer = "";
    run_listen(run);
    if (known.hardware.peak_tflops == 0.0) known.hardware.peak_tflops = be->peak_tflops;
    hardware_describe(&p.hardware, &known, be->device);
    shape_from_config(&p.shape, config, be, run->at.stage, run->at.tensor);
    p.width = max_i64(p.shape.mlp_cols, p.shape.qkv_cols);
    p.out = be->allocate(be, MEMORY_MESSAGES, arena, "collectives", err);
    if (p.out == NULL) return -1;
    p.in = p.out + p.bytes;
    p.tokens = xcalloc((size_t)config->model.seq_len * 2, sizeof *p.tokens);
    p.blocks = xcalloc((size_t)world, sizeof *p.blocks);
    Finding(*all)[PROBE_COUNT] = xcalloc((size_t)world, sizeof *all);
    int status = probe_all_(&p, err);
    if (status == 0) status = world_gather(run->world, all, p.mine, sizeof p.mine, err);
    Error trouble = {0};
    if (status == 0 && world_rank(run->world) == 0)
        preflight_judge(run, &known, &p.hardware, (const Finding(*)[PROBE_COUNT])all, json, answer, &trouble);
    if (status == 0) status = world_agree(run->world, &trouble, err);
    if (status == 0) status = world_broadcast(run->world, answer, sizeof answer, err);
    be->release(be, MEMORY_MESSAGES, p.out, arena);
    free_all(p.tokens, p.blocks, all);
    return status != 0 || answer[0] == '\0' ? status : error_on_all(err, EXIT_FAILED, "%s", answer);
}
