// Schedules as data: their definition, execution rules, the BPipe pass, the soundness proof and the text form.
//
// A schedule is one list of actions per stage. Everything else in the program reads these lists: the plan counts slots,
// the engine runs them word for word, the simulator and the trace draw them. Nothing else decides the order of a step.
//
// 1F1B with p = 4 stages and m = 8 microbatches. F is a forward (1 unit of time), B a backward (2):
//
//   stage 0  F0 F1 F2 F3                   B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4---    B5---    B6---    B7---
//   stage 1     F0 F1 F2             B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5---    B6---    B7---
//   stage 2        F0 F1       B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6---    B7---
//   stage 3           F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---
//
// Stage 0 holds up to 4 bundles at once, stage 3 only one. BPipe with 3 slots leaves every F and B where it is and
// adds transfers between stages 0 and 3, which run while the stages compute:
//
//   stage 0  F0 F1 F2 F3                   B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4---    B5---    B6---    B7---
//     queue        E1    E3 L1                               E5 L3                   L5
//   stage 3           F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---
//     queue        A1    A3 R1                               A5 R3                   R5
//
// Words. A *bundle* holds the activations that one microbatch's forward saves on a stage for its backward; a *slot*
// holds one bundle. 1F1B keeps p-s bundles on stage s. BPipe (Kim et al., ICML 2023) spreads them: stage s of the first
// half, the *evictor*, sends bundles to stage p-1-s, the *acceptor*, and loads each before its backward. A stage's own
// slots and the slots it lends are fixed, disjoint sets.
//
// Chunks. A stage may hold several *chunks* of consecutive layers. The chunks of all stages are the *virtual stages*
// that a microbatch visits, 0 .. p*chunks-1. With loop placement chunk c of stage s is virtual stage c*p + s; with V
// placement it is c*p + s for even c and c*p + p-1-s for odd c, so that the last virtual stage of one chunk and the
// first of the next share a stage (the turn of the V). Every virtual stage has its own bundles; all chunks of a stage
// share its slots, so one slot holds one microbatch's bundle of one chunk.
//
// Slices. A microbatch may pass the pipeline in n *slices* of its sequence, one after another (Sun et al., Seq1F1B,
// 2024). The attention of a slice reads the keys and values of the slices before it, so forwards run from the first
// slice to the last. The gradients of its keys and values depend on the slices after it, so backwards run from the last
// slice to the first. Example with two stages and two slices; F1:0 is slice 0 of microbatch 1:
//
//   stage 0  F0:0 F0:1 F1:0           B0:1---- F1:1 B0:0---- ...
//   stage 1       F0:0 F0:1 B0:1----  F1:0 B0:0---- F1:1 ...
//
// A slot then holds the bundle of one slice. 1F1B then keeps p-s+n-1 bundles on stage s and has 1/n of the idle
// time. Keys, values and their gradients are outside the slots: the stage keeps them until the backward of slice 0.
//
// How a schedule runs. The engine, the proof and the simulator follow these rules and no others. (c,i) is microbatch i
// on chunk c. With slices, i numbers (microbatch, slice) in the order of the chunk's actions of that kind: slices
// ascend for F, and descend for B, I and W.
//   1. Compute actions F, B, I and W run in list order, one at a time. B is the complete backward. I is the part that
//      makes the gradient of the input, W the part that makes the gradients of the weights. A microbatch on a chunk has
//      either one B or one I and, later, one W. Per chunk, the F are in microbatch order, and so are the B and I, and
//      the B and W. So gradients are summed in the same order in every schedule, and their bits are identical.
//   2. E, A, R and L are posted when the list reaches them: when the compute action before them is complete (on a
//      device with streams, when it is launched; the proof covers both). They go through the stage's transfer queue in
//      list order, one at a time, while the stage computes.
//   3. E(c,i) of the evictor and A(c,i) of the acceptor are one transfer, and so are L(c,i) and R(c,i). A transfer
//      starts when it is at the head of both queues and its destination slot is free. With host memory there is only
//      the evictor's queue, and E always finds a free place.
//   4. E may only move a bundle before its B or I. E frees its own slot when the transfer is complete. A takes
//      a lent slot at its start, R frees it when complete. L takes an own slot at its start.
//   5. F(c,i) takes an own slot at its start, and waits for that slot, its input and a free send buffer. B(c,i) and
//      I(c,i) wait for their gradient, for L(c,i) if the bundle was evicted, and for a free send buffer. W(c,i) waits
//      only for the actions before it in the list: I has stored its operands in the slot. B and W free the slot when
//      complete. In a forward-only schedule F frees its slot when complete.
//   6. Every boundary between virtual stages g and g+1 has `edge_buffers` send buffers and `edge_buffers` receive
//      buffers per direction. A send buffer is taken when F, B or I starts and is free when its message has arrived; a
//      receive buffer is taken when the message leaves and is free when the action that consumes it is complete. So
//      F(g,i) cannot start before F(g+1,i-2*edge_buffers) is complete, nor B or I(g+1,i) before B or
//      I(g,i-2*edge_buffers). If g and g+1 are on one stage there is no message: the consumer reads the sender's
//      buffer, and F(g,i) cannot start before F(g+1,i-edge_buffers) is complete.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "src/base/log.h"

__BEGIN_DECLS

typedef enum ActionKind {
    ACTION_FORWARD = 'F',
    ACTION_BACKWARD = 'B', // the complete backward: I and W in one
    ACTION_INPUT = 'I',    // the gradient of the input
    ACTION_WEIGHT = 'W',   // the gradients of the weights, after I
    ACTION_EVICT = 'E',    // send a bundle to the peer
    ACTION_ACCEPT = 'A',   // lend a slot to the peer's bundle
    ACTION_RETURN = 'R',   // send the peer's bundle back
    ACTION_LOAD = 'L',     // receive a bundle back
} ActionKind;

enum {
    SCHEDULE_HOST = -2,       // the peer of an eviction to host memory
    SCHEDULE_NO_PEER = -1,    // the peer of F, B, I and W
    SCHEDULE_EDGE_BUFFERS = 2 // default edge_buffers of a schedule
};

// 12 bytes, since a long schedule has millions. So chunks, slices and stages of a transfer are below 32,768.
typedef struct Action {
    ActionKind kind : 8;
    int slice : 24; // 0 .. slices-1
    int16_t chunk;  // 0 .. chunks-1
    int16_t peer;   // E, A, R, L: the other stage, or SCHEDULE_HOST; F, B, I, W: SCHEDULE_NO_PEER
    int microbatch; // 0 .. microbatches-1
} Action;

// When an action ran: in a run, by clock_seconds() of this host; in a simulation, since the start of the step. A
// transfer begins when it is at the head of the queue and has its inputs, and ends when it is complete.
typedef struct ActionTime {
    double begin, end;
} ActionTime;

// One stage's list, and the slots that the stage allocates: own for its microbatches, lent for its partner's.
typedef struct StageSchedule {
    Action *actions;
    int64_t count;
    int own_slots;
    int lent_slots; // own_slots + lent_slots <= Schedule.slots
    int host_slots; // peak number of its bundles in host memory
    int64_t moves;  // number of E and L
    int *kept;      // [chunks] most microbatches between F and B (or I) of slice 0; NULL: no slices or no backwards
} StageSchedule;

// The virtual stage of chunk c on stage s.
typedef enum Placement {
    PLACEMENT_LOOP, // c*p + s
    PLACEMENT_V,    // c*p + s for even c, c*p + p-1-s for odd c
} Placement;

typedef struct Schedule {
    char name[32]; // [a-z0-9-]: gpipe, 1f1b, bpipe, forward, gis, v-half, ...
    int stages;
    int chunks; // chunks per stage
    Placement placement;
    int microbatches;
    int slices;       // slices per microbatch
    int slots;        // limit per stage, own and lent together; one slot holds one chunk's bundle of a slice
    int edge_buffers; // buffers on each side of a boundary between virtual stages, per direction
    bool forward_only;
    bool split;           // at least one backward is split into I and W
    StageSchedule *stage; // [stages]
} Schedule;

// Return the virtual stage of a chunk, 0 .. stages*chunks-1, and the inverse.
int schedule_virtual(const Schedule *schedule, int stage, int chunk);
void schedule_home(const Schedule *schedule, int virtual_stage, int *stage, int *chunk);

// Returns the index of an action's bundle on its stage, 0 .. chunks*microbatches*slices-1.
static inline int64_t schedule_bundle(const Schedule *schedule, Action action) {
    int64_t microbatch = (int64_t)action.chunk * schedule->microbatches + action.microbatch;
    return microbatch * schedule->slices + action.slice;
}
// Returns the place of F, B, I or W among the actions of that kind on its chunk, 0 .. microbatches*slices-1.
static inline int64_t schedule_place(const Schedule *schedule, Action action) {
    int slices = schedule->slices;
    bool forward = action.kind == ACTION_FORWARD;
    return (int64_t)action.microbatch * slices + (forward ? action.slice : slices - 1 - action.slice);
}

// Returns whether an action computes (F, B, I, W) or moves a bundle (E, A, R, L).
static inline bool action_computes(ActionKind kind) {
    return kind == ACTION_FORWARD || kind == ACTION_BACKWARD || kind == ACTION_INPUT || kind == ACTION_WEIGHT;
}

// Returns whether a stage's list has any E, A, R or L.
bool schedule_stage_moves(const StageSchedule *stage);

// Returns whether a compute action frees the own slot of its bundle at its end: B and W; F in a forward-only schedule.
static inline bool action_frees(ActionKind kind, bool forward_only) {
    return kind == ACTION_BACKWARD || kind == ACTION_WEIGHT || (forward_only && kind == ACTION_FORWARD);
}

// Where bpipe_balance evicts to.
typedef enum EvictTarget {
    EVICT_TO_PEER, // stage s to stage p-1-s: E and L on one side, A and R on the other
    EVICT_TO_HOST, // every stage to its own host memory: only E and L
} EvictTarget;

// The next functions make schedules; src/schedule/kinds.h lists all schedules by name. The caller owns the result
// (schedule_free).

// Makes 1F1B (PipeDream-Flush): stage s runs min(p-s, m) forwards, then alternates backward and forward. Slots: p. NULL
// with err (code 2) if stages or microbatches < 1, or if there are fewer microbatches than stages.
Schedule *schedule_1f1b(int stages, int microbatches, Error *err);

// Makes a forward-only schedule, for validation, with the stages, chunks, slices, placement and edge buffers of `like`.
// Each stage has one slot, which its microbatches use in turn. microbatches >= 1; may be fewer than stages.
Schedule *schedule_forward_like(const Schedule *like, int microbatches);

// Replaces every B by I, directly followed by W, so that a stage sends the input's gradient before it computes the
// gradients of the weights. Slots do not change.
void schedule_split(Schedule *schedule);

// Runs the BPipe pass: returns a copy of `base` in which no stage needs more than `slots` slots, with the same compute
// actions. The base may be any schedule that moves no bundles yet; eviction to a partner needs loop placement. slots 0
// selects bpipe_least_slots. With fewer slots than this minimum, the pass fails, and err names the minimum. If the base
// needs no more than `slots`, nothing is evicted. A bundle is loaded up to `ahead` (>= 1) backwards before its own
// backward. A swap then overlaps `ahead` forwards and `ahead` backwards, and a larger `ahead` keeps more bundles in
// transit. Use spare slots for ahead > 1 if 2 transfers take longer than a forward and a backward; see docs/bpipe.md.
// Returns NULL with err.
Schedule *bpipe_balance(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err);

// Returns the smallest `slots` for this base. To a partner: half of the bundles that a pair keeps in flight, rounded
// down, plus one, since a bundle in transit takes a slot on each stage. To the host: the fewest with which the pass
// succeeds. If no backward is split, this is 2: one slot for compute and one for transfers.
int bpipe_least_slots(const Schedule *base, EvictTarget target);

// Return bpipe_least_slots of 1F1B: ceil((p+2)/2) to a partner; 2 to the host, 1 with one stage.
int bpipe_min_slots(int stages);
int bpipe_min_slots_host(int stages);

// Returns the default `ahead` of bpipe_balance: 1; 2 if backwards are split, since a swap then overlaps less
// compute; 3 to the host with V placement, where forwards and backwards alternate less evenly.
int bpipe_load_ahead(const Schedule *base, EvictTarget target);

// Returns the other stage of the pair: p-1-s; SCHEDULE_NO_PEER for the middle of an odd p.
int bpipe_partner(int stages, int stage);

void schedule_free(Schedule *schedule);

// Proves that a schedule is sound. Returns 0, or -1 with err (code 2), which names the stage and the action:
//   complete   every chunk of every stage runs F, and B or I and W, once per microbatch and slice, each in its order
//              (forward-only: only F)
//   paired     E and L of a stage are A and R of its partner, in the same order
//   resident   B, I, E and R use only bundles on the stage, and L only evicted bundles; no E follows I; at the end no
//              bundle is still evicted
//   bounded    own and lent slots suffice in list order, and together stay within `slots`
//   live       no stage waits forever, whatever the durations and whichever of two waiting actions gets a slot
// Takes O(actions) time if the queue follows compute closely, as in all schedules made here.
int schedule_check(const Schedule *schedule, Error *err);

// Writes the text form: a header line, then one line per stage. Version 1 has no chunk numbers. It is for schedules
// with one chunk, neither I nor W, one slice, and SCHEDULE_EDGE_BUFFERS. Version 2 has no slice numbers and is for all
// other schedules with one slice. Version 3 is for the rest. Returns -1 if the stream fails.
int schedule_write(const Schedule *schedule, FILE *file);

// Reads every version. NULL with err (code 2, "schedule, line 3: ...") for any other text; a schedule that parses may
// still fail the check. The text has no slots per stage, so schedule_finish counts them in the lists.
Schedule *schedule_parse(const char *text, Error *err);

enum { ACTION_TEXT = 48 };

// Writes an action to `text` in this schedule's text form: F3, E3>0, L3<h, or with chunk numbers F3.1, E3.1>0,
// and with slices F3.1:2, E3.1:2>0. Returns `text`.
char *action_text(const Schedule *schedule, Action action, char text[ACTION_TEXT]);

// --- for the functions that make schedules. A stage's list grows action by action; schedule_finish then counts slots.

typedef struct ActionList {
    Action *actions;
    int64_t count, capacity;
} ActionList;

// The parameters of a schedule. In chunks, group and slices, 0 stands for a default; schedule_complete (kinds.h) fills
// it in.
typedef struct ScheduleSpec {
    int stages, microbatches;
    int chunks; // 0: the kind's default
    int group;  // microbatches that pass a chunk one after another, or SCHEDULE_GROUP_HALF; 0: ceil(p/slices)
    int delay;  // most I that may run between an I and its W, or SCHEDULE_DELAY_MOST
    int slices; // slices per microbatch; 0: 1
    bool split; // write every B as I and W; schedules that need I and W have them anyway
} ScheduleSpec;

// Writes the list of stage s.
typedef void StageMaker(const ScheduleSpec *spec, int s, ActionList *list);
void gpipe_stage(const ScheduleSpec *spec, int s, ActionList *list);
void one_f_one_b_stage(const ScheduleSpec *spec, int s, ActionList *list);

void list_push(ActionList *list, Action action);

// Appends a compute action (F, B, I or W) of slice 0.
void list_compute(ActionList *list, ActionKind kind, int chunk, int microbatch);

// Appends the action with this place (schedule_place) among the actions of its kind and chunk.
void list_place(ActionList *list, ActionKind kind, int chunk, int slices, int place);

// Moves the list to the stage, and frees the stage's previous list.
void list_finish(ActionList *list, StageSchedule *stage);

// Returns a schedule with empty lists, one chunk, one slice, loop placement and the usual edge buffers.
Schedule *schedule_new(const char *name, int stages, int microbatches);

// Returns a finished schedule whose lists `maker` has written. spec has every default filled in.
Schedule *schedule_fill(const char *name, const ScheduleSpec *spec, Placement placement, StageMaker *maker);

// Finishes a schedule: sets `split` and every stage's own and lent slots. slots: the bound; 0: the number of slots that
// the fullest stage needs.
void schedule_finish(Schedule *schedule, int slots);

// Checks that there is at least one stage, and at least as many microbatches as stages. -1 with err (code 2).
int schedule_possible(int stages, int microbatches, Error *err);

__END_DECLS
