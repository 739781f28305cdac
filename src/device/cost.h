// The cost of single operations on given hardware, in seconds: a matrix product, flash attention, a pass over memory, a
// collective, a message. The plan and the clock of the virtual GPU (test/virtual) share only these formulas. The plan
// counts the operations that the program's stages call (count.h); the virtual GPU counts the CUDA calls and the bytes
// that kernels touch. If they disagree about a step, an operation's COST or the simulation of the pipeline is wrong.
//
// The assumptions, which the plan prints:
//   - a matrix product of m x n x k takes flops (1 + k0 / k) / (peak share), and the time of a launch; rows of operands
//     that are not a multiple of 16 bytes are slower;
//   - a product that adds to fp32 in memory takes longer by a part of the time to read and write that memory;
//   - flash attention computes the causal half of the scores at a share of the peak that grows with the sequence and
//     with the heads that fill the device (config/gpus.h); the backward has 2.5 times the FLOPs;
//   - everything else takes the time to read and write its operands at the rate of the device's memory, and a kernel at
//     least the time of a launch;
//   - a collective inside a node has the bus bandwidth measured for its kind, ranks and size; if it was not measured,
//     it has the links' rate and one latency (two for an all-reduce);
//   - all traffic that leaves a node at the same time shares the rate of the node's network; other links are per rank.
// The constants of a GPU are in gpu_kernels.c. A GPU without a row there is planned "by the data sheet".
#pragma once

#include "config/config.h"
#include "config/gpus.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// Rates are in bytes/s in one direction, per rank; `network` is per node.
typedef struct Cost {
    double flops;                    // FLOP/s of one rank while no other rank uses its cores; 0: unknown
    double efficiency, half, launch; // matrix products: share of the peak, k0, seconds
    FlashRate flash_forward, flash_backward;
    double memory_rate;
    double added; // extra time to accumulate in fp32, as a fraction of the time to read and write the sums (GpuKernels)
    double fp8;   // speed of large products with train.fp8, relative to bf16
    double pair, tensor, network, host;
    double latency;      // seconds
    int multiprocessors; // 0: a CPU
    bool persistent;     // product kernels are persistent: they keep their multiprocessors until they end
    bool data_sheet;     // no kernel of this GPU was measured
    // Collectives' measured bus bandwidths in a node (gpu_kernels.c); all 0: unknown. By value: processes share a Cost.
    uint16_t collectives[GPU_COLLECTIVES][GPU_SIZES];
} Cost;

typedef enum CostCollective { COST_ALL_GATHER, COST_REDUCE_SCATTER, COST_ALL_REDUCE, COST_EXCHANGE } CostCollective;

// Replaces assumptions by the values that `hardware` sets: matmul_efficiency, matmul_half, flash_forward,
// flash_backward and stream_gb_s.
void cost_take_given(Cost *cost, const Config *config);

// Fills `cost` for a GPU of `peak` FLOP/s from the configuration's keys. peak: 0 if unknown.
void cost_of_gpu(Cost *cost, const Config *config, double peak);

// Returns how many of `world` consecutive ranks are connected by NVLink: a node's ranks, or the ranks of several nodes
// with hardware.gpus_per_domain. A larger world is divided into equal domains of complete nodes, as schedulers do: 128
// ranks in racks of 72 GPUs have domains of 64.
int64_t cost_domain(const Config *config, int64_t world);

// Returns the seconds of `count` products of m x n x k, one after another. flops must be known.
double cost_product(const Cost *cost, double count, int64_t m, int64_t n, int64_t k);

// Returns the seconds of one 8-bit product, without the passes that quantize its operands. A product with a dimension
// below 2,048 is as fast as in bf16 (tables of ai-dynamo/aiconfigurator).
double cost_product_fp8(const Cost *cost, int64_t m, int64_t n, int64_t k);

// Returns the extra seconds that the gradient product of `weights` weights takes to accumulate into fp32 memory.
double cost_adding(const Cost *cost, double weights);

// Returns the seconds to multiply `rows` rows in all by `experts` weight matrices (n, k). element: bytes moved per
// weight. gradient: the products are gradients of the weights, so their sums run over an expert's rows.
double cost_experts(const Cost *cost, int64_t rows, int64_t experts, int64_t n, int64_t k, int64_t element,
                    bool gradient);

// Returns the factor by which products take longer than cost_product says if they run on `multiprocessors`
// multiprocessors. The GPU may have more, and the last wave of tiles may leave most of the multiprocessors idle.
double cost_waves(const Cost *cost, double count, int64_t m, int64_t n, int multiprocessors);

// Returns the seconds of causal attention with `heads` heads in all, over sequences of `seq` positions. Queries and
// keys have head_dim dimensions, values value_dim. flops must be known.
double cost_flash(const Cost *cost, double heads, int64_t seq, int64_t head_dim, int64_t value_dim, bool backward);

// Returns the seconds to read or write `bytes` in the device's memory.
static inline double cost_pass(const Cost *cost, double bytes) { return bytes / cost->memory_rate; }

// Returns the seconds of a kernel that reads or writes `bytes` and is launched by itself: on a GPU at least the time
// from one launch to the next.
double cost_kernel(const Cost *cost, double bytes);

// Returns the seconds of a collective among `ranks` ranks of one node. bytes: all ranks' parts together; for an
// exchange, one rank's blocks, its own included.
double cost_collective(const Cost *cost, CostCollective kind, double bytes, int ranks);

// Returns the seconds in which a copy engine makes one copy to another GPU of the node.
double cost_copy(const Cost *cost, double bytes);

// Returns the seconds of a gather or a reduce-scatter made of copies to every other rank of the node, for the stream
// that makes them; after cost_flag more the last rows have arrived. follows: the peers know already that they may write
// (CommRequest). For a reduce-scatter, the kernel that adds up the received blocks is not included.
double cost_copies(const Cost *cost, double bytes, int ranks, bool follows);

// Returns the seconds until a stream of one GPU sees a word that another GPU wrote.
static inline double cost_flag(const Cost *cost) { return cost->latency / 2; }

// Returns the bytes/s that one rank sends in a collective.
double cost_collective_rate(const Cost *cost, CostCollective kind, double bytes, int ranks);

// Returns the FLOPs that products compute while a rank sends one byte of a tensor-parallel collective inside a node.
double cost_flops_per_sent_byte(const Cost *cost, const Config *config);

// Returns the seconds of a collective of `ranks` ranks on `nodes` nodes, from the time when all ranks are ready. Its
// rings leave each node once, at `rate` bytes/s, and take half a latency at each node; for an all-reduce of few bytes
// NCCL has trees. So the rate grows with the size and falls with the nodes, as in test/plan/kernels/between.csv.
double cost_collective_between(const Cost *cost, CostCollective kind, double bytes, int ranks, int nodes, double rate);

// Returns the seconds of an exchange of blocks between all ranks of a group with `near` ranks on each node. A rank
// sends or receives (whichever is more) `inside` bytes within its node, and `between` bytes to or from other nodes at
// `rate` bytes/s.
double cost_exchange(const Cost *cost, double inside, int near, double between, double rate);

// Returns the bytes of other traffic that take as much of a network as `bytes` of an exchange.
double cost_exchange_flow(double bytes);

// Returns the seconds to send a message, or to move a bundle, of `bytes` bytes at `rate` bytes/s.
double cost_message(const Cost *cost, double bytes, double rate);

__END_DECLS
