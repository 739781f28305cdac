// Counts the seconds of operations and collectives (count.h). This file decides how much a collective in flight slows
// down concurrent work, because only here both are on the clock:
//   - memory-bound passes are not slower;
//   - a kernel that shares the device computes on the multiprocessors that the collective leaves;
//   - a persistent product keeps its multiprocessors to the end. It either leaves the collective's free, or starts when
//     the collective has ended, whichever ends first (cuda/matmul.cpp, matmul_sms_).
#include "count.h"

#include "backend/attention_scratch.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" // operands are counted, not read

// Returns the table entry for a price. If its `what` differs, the caller has to compute the price.
static Priced *priced_(Priced *table, int64_t what, int64_t size) {
    uint64_t hash = ((uint64_t)what * 31 + (uint64_t)size) * 0x9e3779b97f4a7c15u;
    return &table[hash >> 60];
}

// ---------------------------------------------------------------- compute

static Clocks *clocks_(const Backend *be) { return (Clocks *)be->self; }

// Returns the extra seconds of work without `kept` of `all` multiprocessors.
static double without_(double seconds, double kept, double all) { return seconds * kept / (all - kept); }

// Returns the factor by which a product of m x n results takes longer on `blocks` multiprocessors than on a device that
// it fills to the end. m 0: nothing is known of its tiles.
static double waves_(Clocks *clocks, int64_t m, int64_t n, int blocks) {
    int64_t what = n << 16 | blocks;
    if (blocks == 0) return 1; // a CPU
    if (m == 0) return (double)clocks->cost->multiprocessors / blocks;
    Priced *waves = priced_(clocks->waves, what, m);
    if (waves->what != what || waves->size != m) *waves = (Priced){what, m, cost_waves(clocks->cost, 1, m, n, blocks)};
    return waves->price;
}

// Returns the multiprocessors that the kernel of a product is chosen for, as a run chooses it (cuda/matmul.cpp,
// matmul_sms_).
static int chosen_(const Backend *be, double flops) {
    const Clocks *clocks = clocks_(be);
    int all = clocks->cost->multiprocessors, kept = clocks->flight > 0 ? COMPUTE_CTAS : BESIDE_CTAS;
    double flight = max_double(clocks->flight, be->gathering);
    bool loses_more = flops * kept > flight * (all - kept);
    if (!be->summing && (flight == 0 || loses_more)) kept = be->moving ? LINK_CTAS : 0;
    return all > kept ? all - kept : all;
}

// Advances the clock by attention or a product of `seconds` on an otherwise idle device, and of `slower` more seconds.
static void kernel_(Backend *be, double flops, double seconds, double slower, double *account) {
    Clocks *clocks = clocks_(be);
    *account += seconds;
    clocks->spent.exposed += slower;
    clocks->compute += seconds + slower;
    clocks->flight = max_double(0, clocks->flight - flops);
}

// Returns the extra seconds of a kernel whose blocks are short: it runs on the multiprocessors that others leave.
static double beside_(const Backend *be, double seconds) {
    const Clocks *clocks = clocks_(be);
    double all = clocks->cost->multiprocessors, window = max_double(0, clocks->busy - clocks->compute), slower = 0;
    if (all > COMPUTE_CTAS) slower = min_double(without_(seconds, COMPUTE_CTAS, all), window * COMPUTE_CTAS / all);
    if (all > BESIDE_CTAS && be->summing) slower = max_double(slower, without_(seconds, BESIDE_CTAS, all));
    return slower;
}

// Advances the clock by a product of m x n results that takes `seconds` if its last wave of tiles fills the device. A
// persistent product that has more blocks than a collective leaves multiprocessors ends later: the late blocks start
// when the collective or the others have ended.
static void tiles_(Backend *be, int64_t m, int64_t n, double flops, double seconds, double *account) {
    Clocks *clocks = clocks_(be);
    const Cost *cost = clocks->cost;
    int all = cost->multiprocessors, blocks = cost->persistent ? chosen_(be, flops) : all;
    clocks->spent.count++;
    double alone = seconds * waves_(clocks, m, n, all), window = max_double(0, clocks->busy - clocks->compute);
    if (!cost->persistent) return kernel_(be, flops, alone, beside_(be, alone), account);
    double fewer = seconds * waves_(clocks, m, n, blocks),
           late = blocks > all - COMPUTE_CTAS ? min_double(fewer, window) : 0;
    kernel_(be, flops, alone, fewer + late - alone, account);
}

static void pass_(Backend *be, double bytes) {
    Clocks *clocks = clocks_(be);
    double seconds = cost_kernel(clocks->cost, bytes);
    clocks->spent.passes += seconds;
    clocks->compute += seconds;
}

// A product of m x n x k with operands of a FactorKind; adds: accumulates into fp32 in memory.
static void product_(Backend *be, int kind, int64_t m, int64_t n, int64_t k, bool adds) {
    Clocks *clocks = clocks_(be);
    const Cost *cost = clocks->cost;
    bool narrow = kind != FACTOR_PLAIN && !clocks->own_sums;
    double flops = 2 * (double)m * (double)n * (double)k;
    assert(cost->flops > 0);
    double seconds = narrow ? cost_product_fp8(cost, m, n, k) : cost_product(cost, 1, m, n, k);
    if (adds) seconds += cost_adding(cost, (double)m * (double)n);
    clocks->spent.peak += flops / (cost->flops * (narrow ? 2 : 1));
    tiles_(be, m, n, flops, seconds, &clocks->spent.products);
}

// The products of `rows` rows with experts' weights (n, k), one expert after another; adds: computes gradients,
// accumulated into fp32 in memory.
static void experts_(Backend *be, int64_t rows, int64_t experts, int64_t n, int64_t k, bool adds) {
    Clocks *clocks = clocks_(be);
    const Cost *cost = clocks->cost;
    int64_t balanced = (int64_t)((double)rows / clocks->fullest), element = adds ? 8 : be->element;
    double flops = 2 * (double)balanced * (double)n * (double)k, loop = (double)experts;
    assert(cost->flops > 0 && clocks->fullest >= 1);
    clocks->spent.peak += flops / cost->flops;
    double seconds = cost_experts(cost, balanced, experts, n, k, element, adds);
    double more = max_double(0, cost_experts(cost, rows, experts, n, k, element, adds) - seconds);
    int64_t tall = experts > 1 ? 0 : adds ? k : balanced; // cost_experts knows how a loop fills the device
    for (int64_t e = 0; e < experts; e++) {
        tiles_(be, tall, n, flops / loop, seconds / loop, &clocks->spent.products);
        if (more > 0) tiles_(be, tall, n, 0, more / loop, &clocks->spent.uneven);
    }
}

// Fills counts (parts, experts) as if the counted rank, the first of the group, were the fullest, and all other ranks'
// experts were chosen equally often. The first experts of a kind take the remainder.
static void routed_(Clocks *clocks, int64_t *counts, int64_t parts, int64_t rows, const RouteShape *shape) {
    int64_t experts = shape->experts, held = experts / clocks->expert_ranks;
    clocks->copies = shape->chosen;
    for (int64_t part = 0; part < parts; part++) {
        int64_t copies = (rows * (part + 1) / parts - rows * part / parts) * shape->chosen,
                *to = counts + part * experts;
        int64_t here = min_i64(copies, (int64_t)((double)copies * clocks->fullest / clocks->expert_ranks));
        for (int64_t e = 0; e < experts; e++) {
            int64_t of = e < held ? held : experts - held, all = e < held ? here : copies - here;
            to[e] = all / of + ((e < held ? e : e - held) < all % of);
        }
    }
}

// A pass that also sums over rows. On a GPU each block writes fp32 sums of its rows, all blocks of a multiprocessor
// `room` sums, or `cols` if that is more, and a second kernel adds them (kernels/norm.cu).
static void summed_(Backend *be, double bytes, int64_t rows, int64_t cols, int64_t room) {
    double sums = (double)clocks_(be)->cost->multiprocessors * (double)max_i64(cols, room);
    sums = 4 * min_double(sums, (double)(rows * cols));
    if (clocks_(be)->cost->multiprocessors == 0) sums = 0;
    pass_(be, bytes + sums);
    pass_(be, sums);
}

// The backward of a norm, which moves `moved` numbers per element. A multiprocessor has 1,024 of its threads, and each
// sums 8 columns, or 16 of long rows.
static void norm_summed_(Backend *be, int moved, int64_t rows, int64_t cols, int arrays) {
    int64_t room = cols <= 2048 ? 8192 : 16384;
    summed_(be, (double)(moved * rows * cols * be->element), rows, arrays * cols, arrays * room);
}

// Returns whether a matrix has a single scale that is not known yet.
static bool unscaled_(const Factor *to, const Factor *from) {
    return factor_block_rows(to->kind) == 0 && !(from->kind == FACTOR_PLAIN && from->scales != NULL);
}

// Quantizes `numbers` numbers. A single scale is cleared and computed first.
static void quantize_(Backend *be, const Factor *to, const Factor *from, double numbers) {
    double reads = from->kind == FACTOR_PLAIN ? (double)be->element : 1;
    if (unscaled_(to, from)) pass_(be, 8), pass_(be, reads * numbers);
    pass_(be, (reads + 1) * numbers);
}

// Returns the bytes that a norm or an activation moves per number of its result. A GPU's kernel writes eight bits
// instead of sixteen; the CPU writes sixteen and quantizes them in a pass of its own.
static double writing_(const Backend *be, const Factor *out) {
    const Factor plain = {0};
    if (out->kind == FACTOR_PLAIN) return (double)be->element;
    if (!clocks_(be)->own_sums) return 1;
    return (double)be->element * (unscaled_(out, &plain) ? 3 : 2) + 1;
}

// Returns the bytes per number of an epilogue: a fused GELU writes or reads aux. After an 8-bit product on a GPU, bias
// and GELU take separate passes, with `alone` reads and writes in all (cuda/matmul.cpp).
static int64_t gelu_(const Backend *be, Epilogue epilogue, const Factor *operand, int alone) {
    if (epilogue == EPILOGUE_NONE) return 0;
    return (operand->kind == FACTOR_PLAIN || clocks_(be)->own_sums ? 1 : alone) * be->element;
}

// Returns the bytes that softmax moves per score. Fused: it reads the scores that a query sees, in the backward also
// their probabilities, and writes all. Unfused, in fp32 over all scores: cast, scale, mask, softmax and cast back, and
// in the backward the reverse (kernels/softmax.cu). The CPU's softmax is always fused.
static double softmax_bytes_(const Backend *be, const AttentionShape *a, bool backward) {
    double element = (double)be->element, keys = (double)attention_keys(a);
    double seen = a->full ? 1 : ((double)a->first + keys) / (2 * keys);
    if (clocks_(be)->own_sums || attention_softmax_fuses(a, be->element))
        return element * (seen * (backward ? 2 : 1) + 1);
    return 2 * (element + 4) + 3 * 8 + (backward ? element : 0);
}

// Flash: the triangle up to the last key minus the triangle before the first query; a GPU divides some backwards into
// calls with fewer heads. Then a range adds the gradients of all keys that it sees to fp32. The documents of a step are
// unknown, so one that nearly fills the sequence is counted, and a second call for the rest. A call is a kernel that
// writes lengths, cuDNN's forward, or about four of its backward. Further calls are not counted: more documents save
// scores.
static double flash_(const Backend *be, const AttentionShape *a, bool backward) {
    const Cost *cost = clocks_(be)->cost;
    AttentionShape part = *a;
    if (backward && !clocks_(be)->own_sums) part = attention_flash_part(a, be->capability);
    bool documents = a->documents && !clocks_(be)->own_sums;
    if (documents) part.batch = 1;
    double heads = (double)(part.batch * part.heads) * (a->full ? 2 : 1); // cost_flash: causal attention
    double calls = (double)(a->batch * a->heads) / (double)(part.batch * part.heads);
    int64_t dim = a->head_dim, value = clocks_(be)->own_sums ? dim : attention_value_dim(a);
    double seconds = cost_flash(cost, heads, attention_keys(a), dim, value, backward);
    if (a->first > 0) seconds -= cost_flash(cost, heads, a->first, dim, value, backward);
    if (documents) seconds += (1 + (backward ? 5 : 2)) * cost_kernel(cost, 1);
    return calls * seconds;
}

// Every mode except flash computes all pairs of queries and keys: for each sequence and each query head of a key head,
// a product with the matrices of all key heads. A range adds the gradients of keys and values to fp32.
static double stored_(const Backend *be, const AttentionShape *a, bool backward) {
    const Cost *cost = clocks_(be)->cost;
    int64_t s = a->seq, keys = attention_keys(a), dim = a->head_dim;
    double calls = (double)(a->batch * (a->heads / a->kv_heads)), each = (double)a->kv_heads;
    double scores = (double)(a->batch * a->heads) * (double)s * (double)keys;
    double probabilities =
        calls * cost_product(cost, each, s, keys, dim) + cost_pass(cost, scores * softmax_bytes_(be, a, false));
    if (!backward) return probabilities + calls * cost_product(cost, each, s, dim, keys);
    double products = 2 * cost_product(cost, each, keys, dim, s) + cost_product(cost, each, s, keys, dim) +
                      cost_product(cost, each, s, dim, keys);
    if (attention_is_range(a)) products += 2 * cost_adding(cost, each * (double)(keys * dim));
    double seconds = calls * products + cost_pass(cost, scores * softmax_bytes_(be, a, true));
    return seconds + (a->mode == ATTENTION_RECOMPUTE ? probabilities : 0);
}

static void attention_(Backend *be, const AttentionShape *a, bool backward) {
    Clocks *clocks = clocks_(be);
    assert(clocks->cost->flops > 0);
    bool flash = a->mode == ATTENTION_FLASH;
    double seconds = flash ? flash_(be, a, backward) : stored_(be, a, backward);
    // The FLOPs that cuda/attention.cpp sets against collectives in flight: those of products of its own, and those of
    // the backward of flash attention, unless they depend on the data.
    double rows = (double)(a->batch * a->heads * a->seq), keys = (double)attention_keys(a), flops = 0;
    if (!flash) flops = rows * keys * (double)((backward ? 8 : 4) * a->head_dim);
    if (flash && backward && !a->documents)
        flops = rows * (a->full ? 2 * keys : (double)a->first + keys) *
                (double)(3 * a->head_dim + 2 * attention_value_dim(a));
    kernel_(be, flops, seconds, beside_(be, seconds), &clocks->spent.attention);
    if (flash && backward && attention_is_range(a))
        pass_(be, (double)(be->element + 8) * (double)attention_range_count(a));
}

// A pass over the states of all tensors: `bytes` per element, and `moments` more for a tensor with two moments.
static void optimize_(Backend *be, const AdamwTensor *tensors, int64_t count, double bytes, double moments) {
    bool zeroes = moments > 0; // the update writes zeros to gradients, four bytes each
    double all = 0;
    for (int64_t i = 0; i < count; i++)
        all += (double)tensors[i].count *
               (bytes + (tensors[i].v == NULL ? 0 : moments) - (zeroes && tensors[i].written ? 4 : 0));
    pass_(be, all);
}

// The operations: their prototypes and costs are in backend/operations.h.
#define PASS(bytes)                            pass_(be, (double)(bytes))
#define SUMMED(bytes, rows, cols, room)        summed_(be, (double)(bytes), rows, cols, room)
#define NORM_SUMMED(moved, rows, cols, arrays) norm_summed_(be, moved, rows, cols, arrays)
#define PRODUCT(operand, m, n, k)              product_(be, (operand).kind, m, n, k, false)
#define PRODUCT_ADDED(operand, m, n, k, adds)  product_(be, (operand).kind, m, n, k, adds)
#define EXPERTS(k, n)                          experts_(be, first[experts], experts, n, k, false)
#define EXPERTS_ADDED(k, n)                    experts_(be, first[experts], experts, n, k, true)
#define ROUTED(counts, parts)                  routed_(clocks_(be), counts, parts, rows, shape)
#define ATTENTION(backward)                    attention_(be, shape, backward)
#define WRITING(out)                           writing_(be, &(out))
#define GELU(epilogue, operand, alone)         gelu_(be, epilogue, &(operand), alone)
#define QUANTIZE(to, from, numbers)            quantize_(be, &(to), &(from), (double)(numbers))
#define OPTIMIZE(bytes, moments)               optimize_(be, tensors, tensor_count, bytes, moments)
#define OPERATION(result, name, ...)           static result count_##name(Backend *be, __VA_ARGS__)
#define COST(...)                                                                                                      \
    { __VA_ARGS__; }
#include "backend/operations.h"

static void linear_forward_blocks_(Backend *be, void *y, void *aux, const void *x, const void *w, const void *bias,
                                   const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue) {
    Factor operand = factor_plain(x);
    int64_t rows = blocks->count * blocks->rows;
    product_(be, operand.kind, rows, out, in, false);
    pass_(be, (double)(gelu_(be, epilogue, &operand, 2) * rows * out));
}

// ---------------------------------------------------------------- memory

// Addresses descend: the mapped memory of collectives lies between the allocations before it (the workspace, above) and
// after it (the head's, below, with the statistics at its end). So inside_ distinguishes them even if addresses have 32
// bits (explorer page) and wrap around within larger allocations.
static void *allocate_(Backend *be, MemoryCategory category, int64_t bytes, const char *what, Error *err) {
    Clocks *clocks = clocks_(be);
    clocks->next -= (uintptr_t)memory_round(bytes) + MEMORY_ALIGN;
    return (void *)clocks->next;
}

static void release_(Backend *be, MemoryCategory category, void *memory, int64_t bytes) {}

static void copy_(Backend *be, Stream stream, void *to, const void *from, int64_t bytes) {
    if (stream == STREAM_COMPUTE) pass_(be, 2 * (double)bytes);
}

static void upload_(Backend *be, void *to, const void *from, int64_t bytes) {}

static void zero_(Backend *be, void *memory, int64_t bytes) { pass_(be, (double)bytes); }

static void use_workspace_(Backend *be, void *memory, int64_t rows, int64_t hidden, const AttentionShape *shape) {}

static int synchronize_(Backend *be, Error *err) { return 0; }

static void destroy_(Backend *be) { free(be); }

Backend *count_backend_create(Clocks *clocks, int precision, int capability) {
    Backend *be = xcalloc(1, sizeof *be);
    be->self = clocks;
    be->precision = precision;
    be->element = precision == PRECISION_BF16 ? 2 : 4;
    be->own_sums = clocks->own_sums;
    be->counts = true;
    be->capability = capability;
    be->destroy = destroy_;
    be->allocate = allocate_;
    be->release = release_;
    be->copy = copy_;
    be->upload = be->download = upload_;
    be->zero = zero_;
    be->use_workspace = use_workspace_;
    be->synchronize = synchronize_;
    be->linear_forward_blocks = linear_forward_blocks_;
#define OPERATION(result, name, ...) be->name = count_##name
#include "backend/operations.h"
    if (clocks->next == 0) clocks->next = UINTPTR_MAX / 2 / MEMORY_ALIGN * MEMORY_ALIGN;
    return be;
}

// ---------------------------------------------------------------- collectives

typedef struct CountComm {
    Comm base;
    Clocks *clocks;
    CountLinks links;
    CommMemory memory; // mapped memory, in which collectives are copies
    double queue;      // time at which the group's last collective ends
    bool rests;        // collectives take no time
    Priced priced[PRICED];
} CountComm;

// Indices into CommRequest.detail: bits of the end time; bytes of a sum that a kernel completes; 1: an exchange; bits
// of the seconds that the exchange would take in a balanced routing.
enum { END, SUMS, EXCHANGE, EVEN };

static bool inside_(const void *data, int64_t bytes, const void *memory, int64_t size) {
    uint64_t from = (uintptr_t)data - (uintptr_t)memory; // wraps around below `memory`
    return bytes <= size && from <= (uint64_t)(size - bytes);
}

// Starts a collective of `seconds`, in which this rank sends `sent` bytes, when the group's earlier ones have ended and
// compute has reached it. The gathers of weights of both groups, of all tensors and of experts, share the network.
static void start_(CountComm *self, double seconds, double sent, bool copies, CommRequest *request) {
    Clocks *clocks = self->clocks;
    bool shares = self->links.beside && self->links.rate > 0;
    double free = shares ? max_double(self->queue, clocks->gathered) : self->queue;
    self->queue = max_double(free, clocks->compute) + seconds;
    if (shares) clocks->gathered = self->queue;
    if (!copies && !self->rests) {
        clocks->busy = max_double(clocks->busy, self->queue);
        if (!self->links.beside) clocks->flight += sent * clocks->flops_per_sent_byte;
    }
    double end = self->queue + (copies && !self->rests ? cost_flag(clocks->cost) : 0);
    *request = (CommRequest){.active = true};
    memcpy(&request->detail[END], &end, sizeof end);
}

static int collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                       CommType type, CommRequest *request, Error *err) {
    // A reduce and a broadcast of a buffer send as much as the two halves of its all-reduce.
    static const CostCollective kinds[] = {COST_ALL_REDUCE, COST_ALL_GATHER, COST_REDUCE_SCATTER, COST_REDUCE_SCATTER,
                                           COST_ALL_GATHER};
    CountComm *self = comm->self;
    const Cost *cost = self->clocks->cost;
    bool divided = operation == COMM_ALL_GATHER || operation == COMM_REDUCE_SCATTER;
    int64_t part = count * comm_type_bytes(type), all = part * (divided ? comm->size : 1);
    const CommMemory *memory = &self->memory;
    bool copies = false; // the same decision as in comm_copy.cpp
    if (memory->memory != NULL && operation == COMM_ALL_GATHER)
        copies = inside_(out, all, memory->memory, memory->bytes);
    if (memory->memory != NULL && operation == COMM_REDUCE_SCATTER)
        copies = inside_(in, all, memory->partial, memory->part);
    int64_t what = 1 + 4 * (int64_t)operation + 2 * copies + (copies && request->follows);
    Priced *priced = priced_(self->priced, what, all);
    if (priced->what != what || priced->size != all) {
        int nodes = self->links.near > 0 ? (comm->size + self->links.near - 1) / self->links.near : 1;
        *priced = (Priced){what, all, 0};
        if (copies) priced->price = cost_copies(cost, (double)all, comm->size, request->follows);
        else if (self->links.rate > 0)
            priced->price =
                cost_collective_between(cost, kinds[operation], (double)all, comm->size, nodes, self->links.rate);
        else priced->price = cost_collective(cost, kinds[operation], (double)all, comm->size);
    }
    double seconds = self->rests ? 0 : priced->price;
    if (copies && operation == COMM_ALL_GATHER && (const char *)out + comm->rank * part != (const char *)in)
        seconds += cost_pass(cost, 2 * (double)part); // copies its own rows on the same stream
    // Doubles are in host memory and are read, so every rank gets this rank's values.
    for (int r = 0; type == COMM_DOUBLE && operation == COMM_ALL_GATHER && r < comm->size; r++)
        memmove((char *)out + r * part, in, (size_t)part);
    double sent = (operation == COMM_ALL_REDUCE ? 2 : 1) * (double)all * (comm->size - 1) / comm->size;
    start_(self, seconds, type == COMM_DOUBLE ? 0 : sent, copies, request);
    if (copies && operation == COMM_REDUCE_SCATTER) request->detail[SUMS] = all + part;
    return 0;
}

// Traffic inside the node and between nodes is concurrent. The ranks of a node are consecutive. Copies that are
// distributed on the receiving node count as inside.
static int exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                     CommRequest *request, Error *err) {
    CountComm *self = comm->self;
    const Cost *cost = self->clocks->cost;
    int near = self->links.rate > 0 ? self->links.near : comm->size, first = comm->rank / near * near;
    double stays[2] = {0}, leaves[2] = {0};
    for (int q = 0; q < comm->size; q++) {
        double *way = q >= first && q < first + near ? stays : leaves;
        if (q != comm->rank) way[0] += (double)sent[q], way[1] += (double)received[q];
    }
    double inside = max_double(stays[0], stays[1]), between = max_double(leaves[0], leaves[1]),
           full = self->clocks->fullest;
    if (self->clocks->once && near < comm->size) {
        // the expected number of nodes that a token's copies reach, per copy, if all nodes have equally many experts
        double nodes = (double)comm->size / near, copies = (double)self->clocks->copies;
        inside += between * (near - 1) / near;
        between *= nodes * (1 - pow(1 - 1 / nodes, copies)) / copies;
    }
    double seconds = cost_exchange(cost, inside, near, between, self->links.rate);
    double even = cost_exchange(cost, inside / full, near, between / full, self->links.rate);
    start_(self, self->rests ? 0 : seconds, stays[0] + leaves[0], false, request);
    request->detail[EXCHANGE] = 1;
    memcpy(&request->detail[EVEN], &even, sizeof even);
    return 0;
}

static int test_(Comm *comm, CommRequest *request, Error *err) {
    Clocks *clocks = ((CountComm *)comm->self)->clocks;
    double end;
    if (!request->active) return 1;
    memcpy(&end, &request->detail[END], sizeof end);
    if (end == ((CountComm *)comm->self)->queue) clocks->flight = 0; // the group's last one
    double waits = max_double(0, end - clocks->compute), sum = cost_pass(clocks->cost, (double)request->detail[SUMS]);
    clocks->compute += waits + sum;
    if (((CountComm *)comm->self)->links.rate > 0) clocks->spent.between += waits;
    if (request->detail[EXCHANGE] != 0) {
        double even;
        memcpy(&even, &request->detail[EVEN], sizeof even);
        clocks->spent.exchange += min_double(waits, even);
        clocks->spent.uneven += max_double(0, waits - even);
    } else {
        clocks->spent.exposed += waits + sum;
    }
    *request = (CommRequest){0};
    return 1;
}

static int message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request, Error *err) {
    assert(!"a counted group carries no messages");
    return -1;
}

static int use_memory_(Comm *comm, const CommMemory *memory, Error *err) {
    CountComm *self = comm->self;
    self->memory = memory == NULL || !self->links.copies || memory->received == NULL ? (CommMemory){0} : *memory;
    return self->memory.memory != NULL;
}

static void comm_destroy_(Comm *comm) { free(comm->self); }

Comm *count_comm_create(const char *name, int rank, int size, Clocks *clocks, const CountLinks *links) {
    CountComm *self = xcalloc(1, sizeof *self);
    *self = (CountComm){.base = {.rank = rank,
                                 .size = size,
                                 .self = self,
                                 .message = message_,
                                 .collective = collective_,
                                 .exchange = exchange_,
                                 .use_memory = use_memory_,
                                 .test = test_,
                                 .destroy = comm_destroy_},
                        .clocks = clocks,
                        .links = *links};
    snprintf(self->base.name, sizeof self->base.name, "%s", name);
    return &self->base;
}

void count_comm_rest(Comm *comm, bool on) { ((CountComm *)comm->self)->rests = on; }
