// Runs one stage's list of a schedule, word for word.
//
// Compute actions run in list order on the compute stream. Meanwhile E, A, R and L pass through one queue, also in list
// order. The host waits for an action's inputs, keeps messages and transfers moving while it waits, and yields its core
// in between. The rules are in bpipe.h; under these rules the schedule was proved sound.
#pragma once

#include "ranks/status_page.h"
#include "bpipe.h"
#include "p2p.h"
#include "slots.h"
#include "stage.h"

typedef struct EngineRun {
    ActionTime *times; // [count] one per action of the list; owned by the engine, valid until the next run
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
    Comm *const *lanes; // [p2p_lanes(schedule)] groups of all stages, with rank = stage; may be NULL with one stage
    Comm *pair;         // group of this stage and its partner, lower stage first; NULL: no bundle moves between stages
} EngineGroups;

// Allocates slots and message buffers, and connects the links and the pair. All ranks of a pipeline call it. Every
// schedule passed to engine_run must place chunks like `schedule` and must not need more edge buffers or lent slots.
// status_page may be NULL. Returns NULL with err.
Engine *engine_create(Stage *stage, const Schedule *schedule, const SlotCounts *slots, const EngineGroups *groups,
                      StatusPage *status_page, Error *err);
void engine_destroy(Engine *engine);

// Runs the stage's list of `schedule`, which must fit the allocated slots. scale: factor on the loss's gradient; 0 for
// forward-only lists. label ("step 12") prefixes the action in status messages. On success all work on the device is
// complete and all messages have arrived. Returns -1 with err.
int engine_run(Engine *engine, const char *label, const Schedule *schedule, float scale, EngineRun *run, Error *err);

// Fills memory with random numbers: products of zeros draw less power and run at another clock rate. -1 with err.
int engine_draw(Backend *be, void *to, int64_t count, uint64_t lane, Error *err);

// Runs every operation of a step of `schedule` on this rank, in the buffers that steps use: for each chunk a forward
// and a complete backward, a split backward, or both, as in the list. This loads the kernels, including those of matrix
// products, and creates attention's plans. Otherwise the first use of a kernel or plan inside a step could wait for the
// device to drain while the device waits for another rank's message. Collectives over tensor and context ranks run, so
// all ranks of a stage call this; no messages are sent between stages. Gradients are garbage until optimizer_rehearse.
// Does nothing on a backend without late loading (a CPU). Returns -1 with err.
int engine_rehearse(Engine *engine, const Schedule *schedule, Error *err);
