// The seconds of a stage: its own code, run on a device that counts (device/count.h). Only model/ and engine/ define
// which operations and collectives run, and in which order.
#pragma once

#include "base/memo.h"
#include "device/count.h"
#include "engine/stage.h"
#include "hardware_model.h"

// Creates the memo of counted seconds for one description of the hardware.
Memo *counted_memo(void);

typedef struct CountSource {
    const Hardware *hardware;
    const Config *config;
    const Model *model;
    const StagePlace *place; // of the counted stage; NULL: for each group, that of the stage with the fastest links
    Memo *memo;              // NULL: count again each time
    bool split, beside;      // count I and W too; count B or W during sums over data ranks
    bool free_groups;        // collectives take no time: a lower bound
} CountSource;

// Returns the standard deviation of the tokens per expert over their mean: hardware.expert_spread, or a guess, smaller
// for fewer experts, each of which replaces several smaller ones.
double counted_spread(const Config *config);

// Returns whether products leave LINK_CTAS multiprocessors to messages (Backend.moving): bundles leave the node, or the
// messages of a stage do on both sides and take longer than that costs. If not, a message waits for the persistent
// product in its way, and a product for the message in its way. gpu: NULL: unknown. The layout decides, so the kernels
// are the same in every run.
bool counted_moves(const Gpu *gpu, const Config *config, const StageShape *stage);

// The actions that are timed: complete backwards, and the two parts of split ones.
typedef enum TimedAction { TIMED_FORWARD, TIMED_BACKWARD, TIMED_INPUT, TIMED_WEIGHT, TIMED_ACTIONS } TimedAction;

// The actions on one slice of a chunk: F, B, or I and W. COUNT_BESIDE: seconds that concurrent sums of gradients over
// data ranks add to B, or to I if backwards are split; COUNT_WEIGHT_BESIDE: to W. COUNT_FIRST: extra seconds of a
// step's first B (negative), whose products write gradients; later products add to them. Actions that CountSource does
// not ask for are 0.
enum { COUNT_BESIDE = TIMED_ACTIONS, COUNT_WEIGHT_BESIDE, COUNT_FIRST, COUNTS };
typedef struct ChunkTimes {
    Account of[COUNTS];
} ChunkTimes;

// Counts the actions of one microbatch on a chunk with the shape of `stage`, slice by slice. If the peak is unknown, a
// nominal peak gives correct ratios, and collectives that may overlap products take no time.
void counted_chunk(const CountSource *source, const StageShape *stage, const StageChunk *chunk, ChunkTimes *times);

// Does the same by running every layer; tests compare both.
void counted_chunk_whole(const CountSource *source, const StageShape *stage, const StageChunk *chunk,
                         ChunkTimes *times);

// The work after the pipeline: gradient norm, update, and quantizing weights for the next step. gather: seconds of the
// gathers of weights over data ranks, which start then.
typedef struct UpdateTimes {
    Account update;
    double gather;
} UpdateTimes;

// Counts the work on a rank with these layers, and with the embedding and the head if `stage` has them. The source's
// place must be given.
UpdateTimes counted_update(const CountSource *source, const StageShape *stage);

// Seconds of a microbatch, all slices together, on one layer in the middle of the model, and the seconds that the
// embedding and the head add to their stages. forward: part of `layer`. first: the forward of a layer's first slice.
typedef struct PartTimes {
    double layer, forward, embedding, head, first;
} PartTimes;
// ends: counts embedding and head too, not only the layer.
PartTimes counted_parts(const CountSource *source, const StageShape *stage, bool ends);
