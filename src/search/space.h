// What a search may vary, and the configuration that comes of it.
//
// A *shape* is how the ranks are cut up and what one microbatch is: t, p, d, b, sequence parallelism, attention. A
// *candidate* is a shape with a schedule, a split of the layers, and a way to keep bundles: on the stage, with the
// partner, on the host, or made again from recomputed layers. Model, global batch and hardware stay as they are. A key
// that the command line sets with -o stays too.
#ifndef SPACE_H
#define SPACE_H

#include "plan/planner.h"
#include "plan/schedule_choices.h"

enum { SEARCH_KEEP = -1, SEARCH_MOST_STAGES = 128 };

typedef struct Candidate {
    int64_t tensor, pipeline, data, micro_batch;
    bool sequence;
    int placement, attention;
    ScheduleChoice schedule;
    bool balanced;  // layers dealt out by time, so that embedding and head weigh what they weigh; else evenly
    bool recompute; // on every stage as many layers as it takes to fit
    int evict;      // EvictTarget, or SEARCH_KEEP
    int64_t slots, load_ahead; // with evictions; 0: auto
} Candidate;

typedef struct SearchSpace {
    const Config *base;     // what the user gave, in a world of this size
    const Planner *planner; // of base; if it has a profile, only shapes that the profile is for are searched
    int64_t world;
} SearchSpace;

// Returns whether -o gives the key a value other than auto.
bool space_fixes(const SearchSpace *space, const char *key);

// Returns whether -o gives no value for the key, or this one.
bool space_allows(const SearchSpace *space, const char *key, int64_t given, int64_t value);

// Returns whether the lists that -o gives, with a value for each stage or chunk, fit so many stages.
bool space_lists_allow(const SearchSpace *space, int64_t stages);

// Returns whether the stages of a shape are on several nodes, so that their order matters; -o or the search decides it.
bool space_places(const SearchSpace *space, const Candidate *shape);

// Returns whether shapes come in both orders. If the first and the last stage sum the gradients of a tied matrix,
// either order may be quicker; else neighbouring stages belong together, except for pairs that evict to each other.
bool space_places_both(const SearchSpace *space, const Candidate *shape);

// Writes the shapes, whose schedules are yet to be chosen, into a list that the caller frees. Returns how many.
int64_t space_shapes(const SearchSpace *space, Candidate **shapes);

// Writes the schedules that a shape can have. Returns how many.
int space_schedules(const SearchSpace *space, const Candidate *shape, ScheduleChoice choices[SCHEDULE_CHOICES]);

// Returns whether the layers of a candidate with `balanced` set differ from those without.
bool space_balance_matters(const SearchSpace *space, const Candidate *candidate);

// Writes the configuration of a candidate. false: with recomputation, it does not fit even with all layers recomputed.
bool space_config(const SearchSpace *space, const Candidate *candidate, Config *config);

// Computes the seconds of the model's parts on one tensor rank of a shape.
void space_times(const SearchSpace *space, const Candidate *shape, ModelTimes *times);

#endif
