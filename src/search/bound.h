// A lower bound of a step, known before its schedule is made or simulated. It orders the search and ends it.
//
// On stage s all m microbatches take m (F+B+W); the first starts only after the first one's forward has passed the
// stages before it, and after its last gradient has left, those stages still have work to do. For equal stages this is
// m (F+B+W) + (p-1)(F+B+W)/v with complete backwards, and with split ones (p-1)(F+I)/v less the part that W hides. Sums
// over data ranks and the optimizer are added as in the plan. For p = 4 and the last stage:
//
//     stage 0  F F F F                      ...            B
//     stage 1    F F F F                    ...          B
//     stage 2      F F F F                  ...        B
//     stage 3        [F B F B ... all m microbatches ]
//              before        m (F+B+W)           back
#pragma once

#include "space.h"

// Times and bytes of one way to cut the model: a shape with chunks, placement, layers, complete or split backwards, and
// recomputed layers. Schedules of the same cut differ only in their lists.
typedef struct Cut {
    PlanCosts costs;
    int stages, chunks;
    int64_t microbatches;
    bool split;
    double after;        // seconds of a step after the pipeline that nothing hides
    int64_t least_bytes; // the fullest rank with one slot on every stage
} Cut;

// Computes the times and bytes of a candidate's cut. config: of a candidate of the space. -1 with err; call cut_free in
// either case.
int cut_make(Cut *cut, const SearchSpace *space, const Config *config, Error *err);
void cut_free(Cut *cut);

// Returns whether a candidate of this cut cannot fit, whatever it evicts and recomputes. config: as above.
bool cut_never_fits(const Cut *cut, const SearchSpace *space, const Config *config);

// Returns seconds that every list of this layout takes at least. Its chunks and split are those of the cut.
double cut_bound(const Cut *cut, const RunLayout *layout);

// Returns a lower bound of the step for any schedule of a shape, from the times of its parts: every rank has at least
// its part of the work.
double shape_bound(const SearchSpace *space, const RunLayout *shape);
