// The training data of a run: one data set, or a blend of several, each with its share of the samples (data.train).
//
// Every position k of training is assigned to one source. Each source yields its samples in its own order, one
// permutation after another, so a source smaller than its share repeats. The order depends only on (seed, k): a
// checkpoint stores one number, as with a single data set, and the order is the same for every layout.
#pragma once

#include "config/config.h"
#include "dataset.h"

// --- the order of several sources, in which every source stays close to its share at all times
//
// Weights become integer shares of a period of P turns. After any number k of turns, source i has had k * share_i / P
// turns, to within one turn; after every P turns, exactly share_i. Tijdeman's theorem on the chairman assignment
// problem (Discrete Mathematics 32, 1980) says that such an order exists for any shares; giving each turn to the source
// with the earliest deadline, among the eligible sources, finds such an order. The period is computed once, so finding
// the source of turn k is a table lookup without state.

// Shares are exact for decimal weights with a period of at most BLEND_ORDER_MOST. Other weights are rounded to
// multiples of 1 / BLEND_ORDER_MOST.
enum { BLEND_ORDER_MOST = 1000000 };

typedef struct BlendOrder {
    int sources;
    int64_t period;
    int64_t share[CONFIG_MAX_SOURCES]; // sequences of a source in a period
    uint32_t *order;                   // [period]: source, and how many of its sequences come earlier in the period
} BlendOrder;

// Computes shares, period and order. Each weight must be positive and at least a millionth of the sum of all weights.
void blend_order_create(BlendOrder *blend, const DataSource *sources, int count);
void blend_order_destroy(BlendOrder *blend);

// Returns the source of turn k (0, 1, ...); *before: the number of its earlier turns.
int blend_order_source(const BlendOrder *blend, int64_t k, int64_t *before);

// --- the sources of a run

typedef struct Blend {
    int count;
    Dataset *source[CONFIG_MAX_SOURCES];
    const DataSource *config; // [count], owned by the caller of blend_open
    BlendOrder order;
} Blend;

// Opens every source. A single source must have at least `need` samples. If there are several sources, each must have
// at least one sample. On failure, returns NULL with err, as dataset_open does.
Blend *blend_open(const char *key, const DataSource *sources, int64_t count, int64_t seq_len, int64_t vocab,
                  int64_t need, Error *err);
void blend_close(Blend *blend);

// Returns the bytes of host memory for the order of several sources; 0 for a single source.
int64_t blend_order_bytes(const DataConfig *data);

// Sets *identity to a number that identifies the data: the shards of every source and, with several sources, each
// source's share. The number is never 0. Returns -1 with err if a shard cannot be read.
int blend_identify(const Blend *blend, uint64_t *identity, Error *err);

// Returns the source of the sample at a position of training; *sample: its number in that source.
int blend_sample(const Blend *blend, int64_t seed, int64_t position, int64_t *sample);

// Fetches the tokens of the sample at a position of training, as dataset_fetch does.
int blend_fetch(const Blend *blend, int64_t seed, int64_t position, int32_t *inputs, int32_t *targets, int64_t stride,
                Error *err);

// Prefetches the sample at a position of training, as dataset_expect does.
void blend_expect(const Blend *blend, int64_t seed, int64_t position);

// With several sources, logs each source's share and its number of passes in the first `samples` of training.
void blend_tell(const Blend *blend, int64_t samples, const Log *log);
