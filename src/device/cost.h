// What single pieces of work cost on given hardware, in seconds: a matrix product, flash attention, a pass over memory,
// a collective, a message. Two readers share these formulas and nothing else: the plan, which counts the pieces of a
// layer by formulas of its own, and the clock of the virtual GPU (test/virtual), which takes them from the calls that
// the program makes. Where the two disagree about a step, one of them has counted wrong.
//
// The assumptions, which the plan prints:
//   - a matrix product of m x n x k runs at flops * efficiency * h(m) * h(n) * h(k), h(x) = x / (x + half): narrow
//     products fill a device badly, wide ones reach `efficiency`; attention by stored scores is such products, too;
//   - flash attention computes the causal half of the scores at a fixed share of the peak, and 2.5 times as much in the
//     backward;
//   - everything else takes the time to read and write its operands at the rate of the device's memory;
//   - a collective takes the time of the bytes that one rank sends, and a latency for each of the others;
//   - a node's network has one rate for all that leaves the node at a time; other links are each rank's own.
#ifndef COST_H
#define COST_H

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rates are in bytes/s in one direction: of one rank, the network's of one node.
typedef struct Cost {
    double flops; // FLOP/s of one rank while no other needs its cores; 0: unknown
    double efficiency, half, flash_forward, flash_backward;
    double memory_rate;
    double pair, tensor, network, host;
    double latency; // seconds
} Cost;

// Replaces assumptions by those that the configuration gives: matmul_efficiency, matmul_half, flash_forward,
// flash_backward and stream_gb_s of `hardware`.
void cost_take_given(Cost *cost, const Config *config);

// Fills `cost` for a GPU of `peak` FLOP/s from the configuration's keys. peak: 0 if unknown.
void cost_of_gpu(Cost *cost, const Config *config, double peak);

// Returns the seconds of `count` products of m x n x k, one after another. flops must be known.
double cost_product(const Cost *cost, double count, int64_t m, int64_t n, int64_t k);

// Returns the seconds of causal attention of `heads` heads in all, over sequences of `seq` positions. flops must be
// known.
double cost_flash(const Cost *cost, double heads, int64_t seq, int64_t head_dim, bool backward);

// Returns the seconds to read or write `bytes` in the device's memory.
double cost_pass(const Cost *cost, double bytes);

// Returns the seconds of one all-gather or reduce-scatter among `ranks` ranks; an all-reduce is two. bytes: of the
// whole, all ranks' parts together. rate: what one rank sends with.
double cost_collective(const Cost *cost, double bytes, int ranks, double rate);

// Returns the seconds of one message of `bytes`, or of one bundle moved.
double cost_message(const Cost *cost, double bytes, double rate);

#ifdef __cplusplus
}
#endif

#endif
