// The one enumeration of layouts, and the configuration of each. The table of --plan, `schedule.name: auto`, the
// smallest world and --search walk it with other keys fixed, and pass each layout to a function of their own.
//
// A *division* has the first keys of a layout: how the model and the batch are divided. A *shape* also says how a layer
// is computed: sequence parallelism, collectives, attention, pointwise recomputation. A *candidate* is a complete
// layout: a shape with a schedule, a split of the layers, and a way to keep bundles (on the stage, on its partner, on
// the host, or recomputed). Model, global batch, hardware and the keys set with -o do not change.
#pragma once

#include "planner.h"

typedef struct SearchSpace {
    LayoutSpace keys;       // user's configuration and number of ranks; keys set with -o are fixed
    const Planner *planner; // planner of `keys`; with a profile, only shapes that the profile covers are searched
} SearchSpace;

SearchSpace space_make(const Config *base, const Planner *planner, int64_t world);

// Returns whether -o sets any key of a mask to a value other than auto.
bool space_fixes(const SearchSpace *space, LayoutMask keys);

// Returns a layout of one rank with the plain schedule and without evictions. The keys layers, recompute, pointwise and
// attention have the values that -o fixes, if any.
RunLayout space_start(const SearchSpace *space);

// Return all divisions, the shapes of a division, and the schedules that a shape can have. A shape is left out if
// another shape of the division is as fast and takes no more memory. useful: of a single stage, which has no bubble to
// fill, leaves out chunks, split backwards and GPipe, unless -o fixes the schedule. The caller frees `layouts`.
// config: see space_set.
LayoutList space_divisions(const SearchSpace *space);
LayoutList space_shapes(const SearchSpace *space, const RunLayout *division, Config *config);
LayoutList space_schedules(const SearchSpace *space, const RunLayout *shape, bool useful, Config *config);

// Returns a schedule with one slot per stage and without lists. The caller frees `stage`.
Schedule space_one_slot(const Config *config);

// Returns a lower bound of the bytes of the fullest rank for any schedule of a shape: the average over all stages
// without slots, or with one slot of one chunk each if -o fixes the recomputed layers. config: see space_set.
int64_t space_least_bytes(const SearchSpace *space, const RunLayout *shape, Config *config);

// Returns a lower bound of the bytes of the fullest rank for any candidate of a division, from weights, gradients and
// moments alone: the average over the stages. 0: unknown.
int64_t space_division_bytes(const SearchSpace *space, const RunLayout *division, Config *config);

// The ways to keep the bundles of one schedule that a walk tries. Every walk tries the schedule without evictions, then
// evictions to the partner and to the host with the fewest slots, unless -o fixes other ways.
enum {
    WAYS_TO_FIT = 1, // if bundles do not fit: recomputed layers, instead of evictions or in addition, and more slots
    WAYS_GIVEN = 2,  // evictions also with schedule.slots as given
    WAYS_ALL_LAYERS = 8, // all layers recomputed, without evictions
    WAYS_SAVING = 4      // pointwise recomputation; with one chunk, also recomputed layers and recomputed attention
};

// Visits a candidate and returns its forecast; all zero if the candidate is impossible or was not tried. kept: the
// forecast of the same schedule without evictions; NULL while that candidate is visited.
typedef Forecast SpaceVisit(void *argument, const RunLayout *way, const Forecast *kept);

// Visits the ways to keep the bundles of a schedule.
void space_ways(const SearchSpace *space, const RunLayout *list, unsigned ways, SpaceVisit *visit, void *argument);

// Writes the configuration of a layout. With RECOMPUTE_TO_FIT, what no number of recomputed layers makes fit has those
// that lack least. Returns false if a layout with RECOMPUTE_EVICTING is not a separate candidate.
bool space_config(const SearchSpace *space, const RunLayout *layout, Config *config);
// Does the same in `config`, a copy of the user's configuration that functions of this space may have changed before.
// Copying a configuration takes longer than setting its keys.
bool space_set(const SearchSpace *space, const RunLayout *layout, Config *config);

// Splits the layers of a layout by time, in `config`, which space_set has set to the layout with an even split. Returns
// false if the split is the same, or if -o fixes the layers.
bool space_set_by_time(const SearchSpace *space, const RunLayout *even, Config *config);

// Returns the seconds of the model's parts on one tensor rank of a shape, per microbatch.
PartTimes space_times(const SearchSpace *space, const RunLayout *shape, Config *config);
// Return lower bounds of these seconds: for all shapes of a division, with free collectives; and for one shape, with
// free collectives only at the ends of the model (`ends`).
PartTimes space_least_times(const SearchSpace *space, const RunLayout *division, Config *config);
PartTimes space_layer_times(const SearchSpace *space, const RunLayout *shape, const PartTimes *ends, Config *config);

// The fewest ranks on which the model fits, and its layout there.
typedef struct SmallestWorld {
    int64_t ranks; // 0: not found
    RunLayout at;
} SmallestWorld;

// Finds the smallest world for the fixed keys of a space, ignoring the space's number of ranks. Every layer is
// recomputed; all schedules, slices, context ranks and evictions are tried, the simplest first. -1 with err.
int space_smallest_world(const SearchSpace *space, SmallestWorld *world, Error *err);
