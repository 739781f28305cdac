// A lower bound of a step, known before its schedule is made or simulated. It orders the search and ends it.
//
// On stage s all m microbatches take m (F+B). Stage s starts only after the first forward has passed the stages before
// it, and after its last gradient has left, these stages still have work to do. For p equal stages with v chunks,
// complete backwards add (p-1)(F+B)/v to this, and split backwards (p-1)(F+I)/v less the part that W hides. Sums over
// data ranks and the optimizer are added as in the plan. For p = 4 and the last stage:
//
//     stage 0  F F F F                      ...            B
//     stage 1    F F F F                    ...          B
//     stage 2      F F F F                  ...        B
//     stage 3        [F B F B ... all m microbatches ]
//              before        m (F+B)             back
#pragma once

#include "space.h"

// Times and bytes of one way to cut the model: a shape with chunks, placement, layers, complete or split backwards, and
// recomputed layers. Schedules of the same cut differ only in their lists.
typedef struct Cut {
    PlanCosts costs;
    int stages, chunks; // chunks: chunks of a stage, times slices
    int64_t microbatches;
    bool split;
    double after;        // seconds of a step that follow the pipeline and overlap with nothing
    int64_t least_bytes; // bytes of the fullest rank with one slot on every stage
} Cut;

// Computes the times and bytes of a candidate's cut. config: the candidate's configuration. -1 with err; call cut_free
// in either case.
int cut_make(Cut *cut, const SearchSpace *space, const Config *config, Error *err);
void cut_free(Cut *cut);

// Returns whether no candidate of this cut fits, whatever it evicts and recomputes. config: as in cut_make.
bool cut_never_fits(const Cut *cut, const SearchSpace *space, const Config *config);

// Returns a lower bound of the seconds of a step with this layout, which must have the chunks and the split of the cut.
double cut_bound(const Cut *cut, const RunLayout *layout);

// Returns a lower bound, in seconds, of the step for any schedule of a shape, averaged over its ranks: their work and
// the wait for the first microbatch. 0 if times come from a profile.
double shape_bound(const SearchSpace *space, const RunLayout *shape);
