// A discrete-event simulator of a schedule: when each stage works and waits, given the time of every action.
//
// It follows the six rules at the top of bpipe.h, edge depth included, and shares no code with the proof and the
// engine, so that each can be held against the other. The plan reads its makespan, the trace draws its actions, and the
// tests count lost time with it.
#pragma once

#include "bpipe.h"

// The resources that actions share with others, each a number of a resource or -1. While n users of a resource are
// active, each runs at min(1, capacity / n) of the speed it has alone, which is the one in SimulateCosts. Arrays may be
// NULL: nothing of that kind shares.
typedef struct SimulateShares {
    int count;               // resources
    const double *capacity;  // [count] users that run at full speed: 1 for a network card that one message fills
    const int *compute;      // [stages] for F, B, I and W: the cores of a host
    const int *down, *up;    // [stages] for messages from s to s+1, and from s+1 to s: the network of the sender's node
    const int *evict, *load; // [stages] by evictor: for evictions, and for loads
} SimulateShares;

// Durations in any one unit (seconds, or forwards). The caller owns the arrays. Compute costs are arrays of
// stages*chunks*slices; slice j of chunk c of stage s is at (s*chunks + c)*slices + j. The link after the last stage
// leads to the first one; only chunks in a loop use it, and without them its entry may be missing.
typedef struct SimulateCosts {
    const double *forward;
    const double *backward;       // seconds of B, recompute included; NULL in a schedule without B
    const double *input, *weight; // seconds of I, recompute included, and of W; NULL in a schedule without them
    const double *const
        *action;            // [stages][count of the list]: one cost per F, B, I or W; NULL: use the four arrays above
    const double *last;     // [stages] factor on the cost of a chunk's last B, or last I and W; NULL: 1
    const double *transfer; // [stages] one bundle, either way, by evictor; NULL: 0
    const double *edge;     // [stages] one message between s and s+1, either way; NULL: 0
    bool queue_first;       // true: if F and L ask for a slot in the same instant, L gets it; false: F does
    const SimulateShares *shares; // NULL: nothing is shared
    bool totals_only;             // leave out the times of single actions
} SimulateCosts;

typedef struct StageTimeline {
    ActionTime *times;       // [count] of the stage's list; both sides of a transfer have the same. NULL if left out
    double last;             // end of the stage's last action
    double busy;             // in F, B, I and W
    double wait_slot;        // F had its input and a send buffer, but no slot
    double wait_load;        // B or I had its gradient and a send buffer, but its bundle was not loaded
    int own_peak, lent_peak; // slots in use at a time
} StageTimeline;

typedef struct Timeline {
    int stages;
    double makespan;      // end of the last action
    double bubble;        // idle time over stages * makespan; (p-1)/(m+p-1) for 1F1B and GPipe with equal stages
    double exposed;       // the most that any one stage's compute waited for a slot or a load
    StageTimeline *stage; // [stages]
} Timeline;

// Simulates a run. The caller owns the result (timeline_free). NULL and err (code 1) if the schedule cannot go on: the
// sentence names a stage and the action it waits at. The schedule must be well-formed (schedule_check), but need not be
// live.
Timeline *simulate_run(const Schedule *schedule, const SimulateCosts *costs, Error *err);

void timeline_free(Timeline *timeline);
