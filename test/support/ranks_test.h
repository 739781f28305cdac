// Shared by the programs that test several ranks. The first failure ends the job.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "ranks/world.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Test {
    World *world;
    Backend *be;
    Comm *comm; // the group that is tested
    int rank, size;
    Error error;
} Test;

// Ends this process if the world cannot be joined.
static inline Test test_join(int *argc, char ***argv) {
    Test t = {0};
    t.world = world_join(argc, argv, &t.error);
    if (t.world == NULL) fprintf(stderr, "%s\n", t.error.text), exit(1);
    t.rank = world_rank(t.world), t.size = world_size(t.world);
    return t;
}

static inline void fail_(Test *t, const char *what, long long got, long long wanted) {
    fprintf(stderr, "rank %d of %d: %s: got %lld, wanted %lld; %s\n", t->rank, t->size, what, got, wanted,
            t->error.text);
    world_abort(t->world, 1);
}

#define EQUAL(t, what, got, wanted)                                                                                    \
    do {                                                                                                               \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                              \
        if (got_ != wanted_) fail_(t, what, got_, wanted_);                                                            \
    } while (0)

// Waits for all ranks; rank 0 prints the name of the test that passed.
static inline void held_(Test *t, const char *name) {
    EQUAL(t, name, world_barrier(t->world, &t->error), 0);
    if (t->rank == 0) printf("held: %s\n", name);
    fflush(stdout);
}

static inline uint32_t hash_(uint32_t a, uint32_t b) {
    uint32_t x = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;
    x ^= x >> 15;
    x *= 2654435761u;
    return x ^ x >> 13;
}
