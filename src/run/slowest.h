// Finds the rank that a run waits for. Compares each rank's seconds in forwards and in backwards over the last steps
// with those of its peers or, without peers, with its plan. Peers are the ranks with the same stage and tensor rank,
// which do the same work.
#pragma once

#include <stdbool.h>

enum { SLOWEST_WINDOW = 16 }; // steps that are compared

typedef enum SlowestPart { SLOWEST_FORWARD, SLOWEST_BACKWARD, SLOWEST_PARTS } SlowestPart;

// One rank's seconds in each part: measured in a step, or planned.
typedef struct RankSeconds {
    double part[SLOWEST_PARTS];
} RankSeconds;

// The rank that loses most time, and how much.
typedef struct SlowestRank {
    int rank;
    SlowestPart part;
    double excess; // lost time / expected time
    double cost;   // lost time / time of the steps
} SlowestRank;

typedef struct Slowest {
    int ranks;
    long steps;
    int *peers;           // [ranks]; ranks with the same work have equal numbers
    RankSeconds *planned; // [ranks], in any unit; 0: unknown
    RankSeconds *window;  // [SLOWEST_WINDOW][ranks]
    double step_seconds[SLOWEST_WINDOW];
} Slowest;

// Creates the state for `ranks` ranks. The caller sets `peers` and `planned`, which are 0 so far.
Slowest *slowest_create(int ranks);
void slowest_destroy(Slowest *slowest);

// Adds a step of step_seconds. Returns where the caller puts the measured times of every rank.
RankSeconds *slowest_add(Slowest *slowest, double step_seconds);

// Finds the slowest rank. Returns false before SLOWEST_WINDOW steps, or if no rank exceeds a known expected time.
bool slowest_find(Slowest *slowest, SlowestRank *found);
