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

#include "plan/space.h"

// Bytes and times of one way to cut the model: a shape with chunks, placement, layers, complete or split backwards, and
// recomputed layers. Schedules of the same cut differ only in their lists.
typedef struct Cut {
    Schedule lists; // placement and chunks only: one slot per stage, no lists
    Plan plan;
    int64_t least_bytes;       // bytes of the plan's fullest rank
    int64_t recomputing_bytes; // a lower bound of these bytes, whatever layers are recomputed
    PlanCosts costs;
    double after; // seconds of a step after the pipeline that overlap with nothing
} Cut;

// Count the bytes and, unless the bytes rule it out, the times of a candidate's cut. config: the candidate's
// configuration; it is the same in both calls. cut_time: -1 with err. Freed with cut_free.
void cut_open(Cut *cut, const SearchSpace *space, const Config *config);
int cut_time(Cut *cut, const SearchSpace *space, const Config *config, Error *err);
void cut_free(Cut *cut);

// Returns whether no candidate of this cut fits, whatever it evicts and recomputes. config: as in cut_open.
bool cut_never_fits(const Cut *cut, const SearchSpace *space, Config *config);

// Returns a lower bound of the seconds of a step with this layout, which must have the chunks and the split of the cut.
double cut_bound(const Cut *cut, const RunLayout *layout);

// Returns a lower bound of the seconds of a step with the recomputed layers of `config` instead of the cut's. all: the
// same cut with all layers recomputed.
double cut_recomputing_bound(const Cut *cut, const Cut *all, const Config *config);

// Returns a lower bound, in seconds, of the step for any schedule of a shape or division with these times: the ranks'
// average work and wait for the first microbatch, or the work of the slowest. 0 if times come from a profile.
double shape_bound(const SearchSpace *space, const RunLayout *shape, const PartTimes *times);

// Returns a lower bound of the step for any list of a cut, from the times of layers; 0 if times come from a profile.
// config: the cut's configuration.
double cut_rough_bound(const SearchSpace *space, const Config *config, const PartTimes *times);
