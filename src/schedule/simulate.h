// A discrete-event simulator of a schedule: when each stage works and waits, given the time of every action.
//
// It follows the six rules at the top of bpipe.h, edge buffers included. It shares no code with the proof and the
// engine, so that they can be checked against each other. The plan reads its makespan, the trace draws its actions, and
// the tests measure lost time with it.
#pragma once

#include "bpipe.h"

// The resources that actions share: arrays of resource indices, with -1 for no resource. While n users of a resource
// are active, each runs at min(1, capacity / n) of its full speed. The durations in SimulateCosts are those at full
// speed. An array may be NULL: actions of that kind share nothing.
typedef struct SimulateShares {
    int count;               // resources
    const double *capacity;  // [count] most users that run at full speed; 1: a network card that one message fills
    const double *part;      // [count] of a user's time in which it needs the resource (contention.h); NULL: 1
    const int *rival;        // [count] the resource whose users need the same, or -1; NULL: none
    const int *compute;      // [stages] resource of F, B, I and W: the cores of a host
    const int *down, *up;    // [stages] resource of messages s to s+1, and s+1 to s: the network of the sender's node
    const double *beside;    // [stages] speed of a stage's `compute` beside messages that share a resource; NULL: 1
    const int *evict, *load; // [stages] resource of the evictions, and of the loads, of an evictor
} SimulateShares;

// Durations in any one unit (seconds, or forwards). The caller owns the arrays. Compute costs are arrays of
// stages*chunks*slices; slice j of chunk c of stage s is at (s*chunks + c)*slices + j. edge[stages-1] is the link from
// the last stage to the first. Only chunks with loop placement use it; otherwise the array may lack it.
typedef struct SimulateCosts {
    const double *forward;
    const double *backward;       // time of B, recompute included; NULL in a schedule without B
    const double *input, *weight; // time of I, recompute included, and of W; NULL in a schedule without them
    const double *const
        *action;          // [stages][count of the list]: one cost per F, B, I or W; NULL: use the four arrays above
    const double *last;   // [stages] factor on the costs of a stage from its first chunk's last B or last W on; NULL: 1
    const double *queued; // [stages*chunks] share of an action's time after which its host has queued it; NULL: 1
    const double *transfer;       // [stages] transfer of one bundle of the evictor, in either direction; NULL: 0
    const double *edge;           // [stages] one message between s and s+1, in either direction; NULL: 0
    bool queue_first;             // true: if F and L need a slot at the same instant, L gets it; false: F gets it
    const SimulateShares *shares; // NULL: nothing is shared
    bool totals_only;             // true: the times of single actions are left out
    double most;                  // largest makespan of interest; 0: no limit
} SimulateCosts;

typedef struct StageTimeline {
    ActionTime *times;       // [count of the list] both sides of a transfer have equal times. NULL with totals_only
    double last;             // end of the stage's last action
    double busy;             // time in F, B, I and W
    double wait_slot;        // time in which F had its input and a send buffer, but no slot
    double wait_load;        // time in which B or I had its gradient and a send buffer, but its bundle was not loaded
    int own_peak, lent_peak; // most own and most lent slots in use at once
} StageTimeline;

typedef struct Timeline {
    int stages;
    double makespan;      // end of the last action; INFINITY: the run was abandoned because it exceeds `most`
    double bubble;        // idle time over stages * makespan; (p-1)/(m+p-1) for 1F1B and GPipe with equal stages
    double exposed;       // longest total time that a stage's compute waited for slots and loads
    StageTimeline *stage; // [stages]
    double *ended;        // [stages*chunks] end of a chunk's last F, B, I or W
} Timeline;

// Simulates a run. The caller owns the result (timeline_free). NULL with err (code 1) if the schedule deadlocks: the
// message names a stage and the action at which it waits. The schedule must pass schedule_check, except that it need
// not be live.
Timeline *simulate_run(const Schedule *schedule, const SimulateCosts *costs, Error *err);

void timeline_free(Timeline *timeline);
