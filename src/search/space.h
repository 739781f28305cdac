// The settings that a search varies, and the resulting configuration.
//
// A *shape* has the first keys of a layout: how the ranks are cut up and how large a microbatch is. A *candidate* is a
// complete layout: a shape with a schedule, a split of the layers, and a way to keep bundles: on the stage, with the
// partner, on the host, or not kept: the layers are recomputed. Model, global batch and hardware stay as they are. A
// key that the command line sets with -o stays too.
#pragma once

#include "plan/planner.h"

typedef struct SearchSpace {
    LayoutSpace keys;       // from the user's configuration, in a world of this size; keys of -o are fixed
    const Planner *planner; // planner of `keys`; if it has a profile, only shapes that the profile is for are searched
} SearchSpace;

SearchSpace space_make(const Config *base, const Planner *planner, int64_t world);

// Returns whether -o gives one of the keys of a mask a value other than auto.
bool space_fixes(const SearchSpace *space, LayoutMask keys);

// Returns the layout to start from: the keys that -o fixes, one rank, and the plain schedule without evictions.
RunLayout space_start(const SearchSpace *space);

// Returns the shapes, with the plain schedule, and the schedules that a shape can have. The caller frees `layouts`.
LayoutList space_shapes(const SearchSpace *space);
LayoutList space_schedules(const SearchSpace *space, const RunLayout *shape);

// Sets evictions to one target, with the slots that -o gives.
void space_evict(const SearchSpace *space, RunLayout *layout, int target);

// Returns whether the layers of a layout dealt out by time differ from those dealt out evenly.
bool space_balance_matters(const SearchSpace *space, const RunLayout *layout);

// Writes the configuration of a layout. false: it is to recompute as many layers as it takes to fit, and does not fit
// even with all of them recomputed.
bool space_config(const SearchSpace *space, const RunLayout *layout, Config *config);

// Computes the seconds of the model's parts on one tensor rank of a shape, per microbatch or slice. The middle slice is
// timed: its attention costs the mean over the slices.
ModelTimes space_times(const SearchSpace *space, const RunLayout *shape);
// Returns the seconds of a part's forward and complete backward, with its collectives.
double space_part_seconds(const PartTime *part);
