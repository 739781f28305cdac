// The seconds of a stage: its own code, run on a device that counts (device/count.h). What a layer, the embedding, the
// head and the update call, when their collectives start and what waits for them is written only in model/ and engine/.
#pragma once

#include "device/count.h"
#include "engine/stage.h"
#include "hardware_model.h"

// Remembers what was counted on one description of the hardware. Several threads may share it.
typedef struct CountedCache CountedCache;

CountedCache *counted_cache_create(void);
void counted_cache_free(CountedCache *cache);

typedef struct CountSource {
    const Hardware *hardware;
    const Config *config;
    const Model *model;
    CountedCache *cache; // NULL: count anew each time
    bool split, beside;  // count I and W too; count B or W beside sums over data ranks
} CountSource;

// The actions on one slice of a chunk: F, B, or I and W. beside: seconds that concurrent sums of gradients over data
// ranks add to B, or to W if backwards are split. Actions that CountSource does not ask for are 0.
typedef struct ChunkTimes {
    Account forward, backward, input, weight;
    double beside;
} ChunkTimes;

// Counts the actions of one microbatch on a chunk with the shape of `stage`, slice by slice. A peak that is not known
// is replaced by a nominal one, for ratios; collectives that may overlap products then take no time.
void counted_chunk(const CountSource *source, const StageShape *stage, const StageChunk *chunk, ChunkTimes *times);

// Does the same by running every layer, to test that a chunk may be counted with a few.
void counted_chunk_whole(const CountSource *source, const StageShape *stage, const StageChunk *chunk,
                         ChunkTimes *times);

// Counts the work after the pipeline on a rank with these layers, and with the embedding and the head if `stage` has
// them: 8-bit weights, gradient norm, update, gather of weights over data ranks.
Account counted_update(const CountSource *source, const StageShape *stage);

// Seconds of a microbatch, all slices together, on one layer in the middle of the model, and what the embedding and the
// head add to their stages. first: the forward of the first slice of a layer.
typedef struct PartTimes {
    double layer, embedding, head, first;
} PartTimes;
PartTimes counted_parts(const CountSource *source, const StageShape *stage);
