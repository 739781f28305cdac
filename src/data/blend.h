// The training data of a run: one data set, or a blend of several, each with its share of the samples (data.train).
//
// Position k of training belongs to the source whose turn it is. A source gives its samples in the
// order it would have alone, one permutation after another, so a source smaller than its share repeats. All of this
// follows from (seed, k): as with one data set, a checkpoint holds one number, and no layout changes the order.
#pragma once

#include "config/config.h"
#include "dataset.h"

typedef struct Blend Blend;

// Opens every source. `need`: the samples that a single data set must have; each of several needs only one. NULL with
// err, as dataset_open.
Blend *blend_open(const char *key, const DataSource *sources, int64_t count, int64_t seq_len, int64_t vocab,
                  int64_t need, Error *err);
void blend_close(Blend *blend);

// Returns the host memory for the order of several sources; 0 for one.
int64_t blend_order_bytes(const DataConfig *data);

int blend_sources(const Blend *blend);
const Dataset *blend_source(const Blend *blend, int index);

// Computes a number that identifies the data: the shards of every source and its share. Never 0. -1 with err.
int blend_identify(const Blend *blend, uint64_t *identity, Error *err);

// Finds the sample at a position of training: its source, and its number there.
int blend_sample(const Blend *blend, int64_t seed, int64_t position, int64_t *sample);

// Fetches that sample's tokens, as dataset_fetch.
int blend_fetch(const Blend *blend, int64_t seed, int64_t position, int32_t *inputs, int32_t *targets, int64_t stride,
                Error *err);

// Logs a line for each of several sources: its share, and how often the first `samples` of training go through it.
void blend_tell(const Blend *blend, int64_t samples, const Log *log);

// --- the order in which several sources give samples, each at every moment as often as its weight says
//
// Weights become integer shares of a period of P turns. After any number k of turns, source i has had k * share_i / P
// of them, to within one turn; after every P turns exactly share_i. Tijdeman's theorem on the chairman assignment
// problem (Discrete Mathematics 32, 1980) says that such an order exists for any shares; giving each turn to the source
// with the earliest deadline, among those that may have it already, finds one. The period is computed once, so that
// turn k is looked up and nothing is remembered between turns.

// Shares are exact for decimal weights with a period of at most BLEND_ORDER_MOST; others are rounded to that many
// parts.
enum { BLEND_ORDER_MOST = 1000000, BLEND_ORDER_SOURCES = 64 };

typedef struct BlendOrder {
    int sources;
    int64_t period;
    int64_t share[BLEND_ORDER_SOURCES]; // turns in a period
    uint32_t *order;                    // (period) source, and how many turns it had before in the period
} BlendOrder;

// weights[i] > 0, each at least a millionth of their sum.
void blend_order_create(BlendOrder *blend, const double *weights, int sources);
// Returns the bytes that this allocates.
int64_t blend_order_size(const double *weights, int sources);
void blend_order_destroy(BlendOrder *blend);

// Returns the source of turn k (0, 1, ...); *before: how many turns it had before.
int blend_order_source(const BlendOrder *blend, int64_t k, int64_t *before);
