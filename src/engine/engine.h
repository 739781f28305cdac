// Runs one stage's list of a schedule, word for word.
//
// Compute actions run in list order on the compute stream; E, A, R and L go through one queue, in list order, at the
// same time. The host waits for an action's inputs, keeps everything else moving while it waits, and yields its core in
// between. The rules are those of bpipe.h, under which the schedule was proved.
#pragma once

#include "ranks/status_page.h"
#include "bpipe.h"
#include "backend/checksum.h"
#include "p2p.h"
#include "slots.h"
#include "stage.h"

typedef struct EngineRun {
    ActionTime *times; // one per action of the list; the engine's, valid until the next run
    int64_t count;
    double busy;       // seconds in F, B, I and W
    double forward;    // seconds in F
    double begin, end; // first start and last end of compute
    double exposed;    // seconds in which compute had its input but waited for a load or a slot
    int64_t evictions; // E actions
    int slots_used, slots_lent;
} EngineRun;

typedef struct Engine Engine;

typedef struct EngineGroups {
    Comm *const *lanes; // [p2p_lanes of the schedule], rank = stage in each; may be NULL with one stage
    Comm *pair;         // this stage and its partner, the lower stage first, for bundles; NULL: no bundle moves
    Checksum *checksum; // compares every bundle from eviction to load; NULL: bundles are not compared
} EngineGroups;

// Allocates slots and message buffers, and connects the links and the pair. All ranks of a pipeline call it. `schedule`
// must place chunks as every schedule of engine_run does, with at least as many edge buffers and lent slots.
// status_page may be NULL.
Engine *engine_create(Stage *stage, const Schedule *schedule, const SlotCounts *slots, const EngineGroups *groups,
                      StatusPage *status_page, Error *err);
void engine_destroy(Engine *engine);

// Runs the stage's list of `schedule`, whose slots must not exceed the plan's. scale: of the loss's gradient; 0 for
// forward-only lists. label ("step 12") prefixes the action in status messages. On return everything is complete on the
// device and all messages have arrived. Returns -1 with err, which names the action.
int engine_run(Engine *engine, const char *label, const Schedule *schedule, float scale, EngineRun *run, Error *err);

// Runs on the device the operations of a step of `schedule` on this rank: a forward and a backward of every chunk, in
// one part and in two where the list has both, between the buffers that the steps use. Afterwards kernels are loaded,
// also those of matrix products, and attention's plans exist: a first use inside a step could wait for the device to
// drain, and the device for another rank's message. Sums over tensor ranks run, so all ranks of a stage call this;
// no message leaves. Gradients are garbage until optimizer_rehearse. Does nothing on a backend that has all its code
// from the start (a CPU), where it would only make the start longer. -1 with err.
int engine_rehearse(Engine *engine, const Schedule *schedule, Error *err);
