// Schedules as data: GPipe, 1F1B, the BPipe pass over 1F1B, the proof that a schedule is sound, and its text form.
//
// A schedule says, stage by stage, in which order a stage works. Everything else in the program reads it: the plan
// counts its slots, the engine runs it word for word, the simulator and the trace draw it. Nothing else decides what
// happens when.
//
// The words. A *bundle* is all that one microbatch leaves behind in one stage for its backward; a *slot* holds one
// bundle. 1F1B keeps p-s bundles on stage s. BPipe (Kim et al., ICML 2023) levels that: stage s of the first half, the
// *evictor*, moves bundles to stage p-1-s, the *acceptor*, and takes each back before its backward. A stage's own slots
// and the slots it lends are fixed, disjoint sets.
//
// How a schedule runs. The engine, the proof and the simulator keep to these rules and to no others:
//   1. F and B run in list order, one at a time.
//   2. E, A, R and L are posted when the list reaches them, which is when the F or B before them is complete (on a
//   device
//      with streams: launched; the proof covers both). They go through the stage's transfer queue in list order, one at
//      a time, beside compute.
//   3. E(i) of the evictor and A(i) of the acceptor are one transfer, and so are L(i) and R(i). It starts when it is at
//   the
//      head of both queues and has a slot to go to. To host memory there is one queue and always a place to go to.
//   4. E frees its own slot when the transfer is complete. A takes a lent slot at the start, R frees it when complete.
//   L
//      takes an own slot at its start.
//   5. F(i) takes an own slot at its start. It waits for that slot, its input, and a free send buffer. B(i) waits for
//   its
//      gradient, for L(i) if the bundle was evicted, and a free send buffer. It frees its slot when complete. In a
//      forward-only schedule F frees its own slot when complete.
//   6. Between neighbours there are, in each direction, SCHEDULE_EDGE_BUFFERS send and as many receive buffers. A send
//      buffer is taken when F or B starts and free when its message has arrived; a receive buffer is taken when the
//      message leaves and free when the action that consumes it is complete. With two and two, F(s,i) therefore cannot
//      start before F(s+1,i-4) is complete, nor B(s,i) before B(s-1,i-4).
#ifndef BPIPE_H
#define BPIPE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ActionKind {
    ACTION_FORWARD = 'F',
    ACTION_BACKWARD = 'B',
    ACTION_EVICT = 'E',  // send an own bundle away
    ACTION_ACCEPT = 'A', // lend a slot to the peer's bundle
    ACTION_RETURN = 'R', // send the peer's bundle back
    ACTION_LOAD = 'L',   // take an own bundle back
} ActionKind;

enum {
    SCHEDULE_HOST = -2,       // the peer of an eviction to host memory
    SCHEDULE_NO_PEER = -1,    // the peer of F and B
    SCHEDULE_EDGE_BUFFERS = 2 // send buffers, and receive buffers, per neighbour and direction
};

typedef struct Action {
    ActionKind kind;
    int microbatch; // 0 .. microbatches-1
    int peer;       // E, A, R, L: the other stage, or SCHEDULE_HOST; F, B: SCHEDULE_NO_PEER
} Action;

// One stage's list, and the slots the stage has to allocate: for its own microbatches and for its partner's.
typedef struct StageSchedule {
    Action *actions;
    int64_t count;
    int own_slots;
    int lent_slots; // own_slots + lent_slots <= Schedule.slots
} StageSchedule;

typedef struct Schedule {
    char name[16]; // gpipe, 1f1b, bpipe, forward
    int stages;
    int microbatches;
    int slots; // the bound every stage keeps to, own and lent together
    bool forward_only;
    StageSchedule *stage; // [stages]
} Schedule;

// Where bpipe_balance sends bundles.
typedef enum EvictTarget {
    EVICT_TO_PEER, // stage s to stage p-1-s: E and L on one side, A and R on the other
    EVICT_TO_HOST, // every stage to its own host memory: E and L alone
} EvictTarget;

// Makers. The caller owns what comes back (schedule_free). NULL and err (code 2) where the arguments make no schedule:
// stages or microbatches < 1, fewer microbatches than stages with more than one stage; code 1 when memory runs out.

// All forwards, then all backwards in microbatch order. Slots: microbatches.
Schedule *schedule_gpipe(int stages, int microbatches, Error *err);

// Stage s starts min(p-s, m) forwards, then alternates backward and forward (PipeDream-Flush). Slots: min(p, m).
Schedule *schedule_1f1b(int stages, int microbatches, Error *err);

// Forwards alone, for validation; one slot, reused from microbatch to microbatch. Fewer microbatches than stages are
// fine.
Schedule *schedule_forward(int stages, int microbatches, Error *err);

// bpipe_balance of 1F1B, evicting to the partner.
Schedule *schedule_bpipe(int stages, int microbatches, int slots, Error *err);

// The BPipe pass: a copy of `base` (1F1B, or GPipe with EVICT_TO_HOST) in which no stage needs more than `slots` slots,
// its F and B untouched. Fewer than bpipe_min_slots is an error that names the smallest number that works; with as many
// as the base needs, nothing is evicted. docs/bpipe.md says how it chooses and what that costs.
Schedule *bpipe_balance(const Schedule *base, int slots, EvictTarget target, Error *err);

// The same for slow transfers: bundles come home up to `ahead` (>= 1; bpipe_balance: 1) backwards before their own, so that
// a swap has `ahead` times a forward and a backward to hide behind, and more bundles are on the way. With slots to spare
// this is the better use of them where 2 transfers take longer than a forward and a backward; see docs/bpipe.md.
Schedule *bpipe_balance_ahead(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err);

// Smallest `slots` for 1F1B. Peer: ceil((p+2)/2), what a pair needs (p+1) and a place to move to, over two stages.
// Host: 2, one slot for compute and one that is being exchanged; 1 with one stage, which keeps one bundle (GPipe keeps more, and needs 2).
int bpipe_min_slots(int stages);
int bpipe_min_slots_host(int stages);

// The other stage of the pair: p-1-s; SCHEDULE_NO_PEER for the middle of an odd p.
int bpipe_partner(int stages, int stage);

void schedule_free(Schedule *schedule);

// The proof. 0 when the schedule is sound, otherwise -1 and one sentence (code 2) that names stage and action:
//   complete   every stage runs F and B once per microbatch, both in microbatch order (forward-only: F alone)
//   paired     E and L of a stage are A and R of its partner, in the same order
//   resident   B, E and R only of what is there, L only of what was evicted, everything home at the end
//   bounded    own and lent slots suffice in list order, and together stay within `slots`
//   live       whatever the durations, and whoever gets a slot that two wait for, no stage ever waits for good
// Time O(actions) for schedules whose queue follows compute closely, as those made here do.
int schedule_check(const Schedule *schedule, Error *err);

// Text v1: a header line, then one line per stage. schedule_write returns -1 when the stream fails.
int schedule_write(const Schedule *schedule, FILE *file);

// Reads text v1. NULL and err (code 2, "line 3: ...") for anything else; a schedule that parses may still fail the
// check. Slots per stage are not written: lent is the most that is lent at a time, own what 1F1B would keep, within the
// rest.
Schedule *schedule_parse(const char *text, Error *err);

// E3>0, A3<0, F3: at most 32 bytes with the end, written to `text`, which is returned.
char *action_text(Action action, char text[32]);

#ifdef __cplusplus
}
#endif

#endif
