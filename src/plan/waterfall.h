// The parts of a planned step's time: lines that sum to the step, nine for a dense model, and sentences of advice.
#pragma once

#include "base/json_out.h"
#include "plan_report.h"

#define WATERFALL_ADVICE 224 // bytes of a sentence
#define WATERFALL_MOST   4   // sentences

typedef enum WaterfallLine {
    WATERFALL_PEAK,      // matrix products at the device's peak, recomputed ones too
    WATERFALL_LOSS,      // further time of products: below-peak rate, shape, launches, shared cores
    WATERFALL_ATTENTION, // core attention
    WATERFALL_PASSES,    // pointwise passes over memory
    WATERFALL_TENSOR,    // exposed collectives of tensor ranks
    WATERFALL_EXCHANGE,  // exchanges of rows with experts
    WATERFALL_UNEVEN,    // extra time of the fullest expert rank over a balanced routing
    WATERFALL_IDLE,      // ramp and imbalance
    WATERFALL_MESSAGES,  // exposed messages: the pipeline would be this much shorter without them
    WATERFALL_DATA,      // exposed sums over data ranks
    WATERFALL_OPTIMIZER, // norm, AdamW, gathered weights, overhead of a step
    WATERFALL_LINES
} WaterfallLine;

typedef struct Waterfall {
    bool known;                      // false: no step, or no peak, is known
    bool experts;                    // the model has experts
    double seconds[WATERFALL_LINES]; // means over the stages; their sum is the step
    double ramp, imbalance;          // parts of WATERFALL_IDLE: filling and draining, and waiting for the slowest stage
    char advice[WATERFALL_MOST][WATERFALL_ADVICE]; // "" after the last one
} Waterfall;

// Makes the waterfall. lines: false if only the advice is needed, which saves a second simulation. -1 with err.
int waterfall_make(Waterfall *waterfall, const PlanAnswer *answer, bool lines, Error *err);

// Write the lines as a table, and as `"waterfall":[{"what","ms","share"}],"advice":["..."]`; null if unknown.
void waterfall_print(const Waterfall *waterfall, FILE *file);
void waterfall_write_json(const Waterfall *waterfall, JsonOut *out);
