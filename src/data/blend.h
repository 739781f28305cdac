// What a run trains on: one data set, or a blend of several, each with its share of the samples (data.train).
//
// Position k of training belongs to the source whose turn it is (blend_order.h). A source gives its samples in the
// order it would have alone, one permutation after another, so a source smaller than its share repeats. All of this
// follows from (seed, k): as with one data set, a checkpoint holds one number, and no layout changes the order.
#ifndef BLEND_H
#define BLEND_H

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

// Finds the sample at a position of training: its source, and its number there.
int blend_sample(const Blend *blend, int64_t seed, int64_t position, int64_t *sample);

// Fetches that sample's tokens, as dataset_fetch.
int blend_fetch(const Blend *blend, int64_t seed, int64_t position, int32_t *inputs, int32_t *targets, int64_t stride,
                Error *err);

// Logs a line for each of several sources: its share, and how often the first `samples` of training go through it.
void blend_tell(const Blend *blend, int64_t samples, const Log *log);

#endif
