// The fewest ranks on which a model fits, for a configuration in which nothing fits.
#pragma once

#include "planner.h"

typedef struct SmallestWorld {
    int64_t ranks, pipeline, tensor, data, context; // ranks 0: not found
    bool bpipe;
} SmallestWorld;

// Sets *fits, and at->bpipe, for the ranks of `at`. -1 with err.
typedef int WorldFits(void *argument, SmallestWorld *at, bool *fits, Error *err);

// Replaces *best by a smaller world with this many tensor and data ranks, if one fits: the one with the fewest stages,
// out of `count` ascending numbers. With more stages each holds less, so bisection finds it. -1 with err.
int plan_fewest_stages(const int64_t *stages, int64_t count, int64_t t, int64_t d, WorldFits *fits, void *argument,
                       SmallestWorld *best, Error *err);

// Finds the smallest world for the planner's model at micro-batch size 1, over stages and tensor ranks. -1 with err.
int plan_smallest_world(const Planner *planner, SmallestWorld *world, Error *err);
