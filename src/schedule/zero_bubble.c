// Schedules that split backwards so that a stage can do W while it would wait for I.
//
// zb-d (Qi et al., ICLR 2024) is 1F1B with every W postponed by d = min(s, delay) microbatches on stage s. delay 0 is
// 1F1B with split backwards; delay p-1 is ZB-H1, where every stage keeps p bundles. Each microbatch of delay costs a
// slot on the later stages and takes one W off the bubble. Stage 2 of p = 3, delay 2, m = 4:
//
//   F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3      without delay: F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3
//
// zb-v (the same paper) places two chunks in a V, so that the first and the last virtual stage share a stage. There a
// microbatch's backward can directly follow its forward. All stages keep 2p chunk bundles.
//
// dualpipe-v (DeepSeek-AI, DualPipe, 2025), here without overlap of a forward with a backward, has two chunks in a
// V, complete backwards in the steady phase, and split ones where a stage would otherwise wait: at the start because
// another stage waits for the gradient, at the end because W can wait. Needs at least 2p microbatches.
#include "kinds.h"

#include "base/units.h"

void zb_d_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    int m = spec->microbatches, warm_up = spec->stages - s, late = min_int(s, spec->delay);
    for (int i = 0; i < warm_up; i++) list_compute(list, ACTION_FORWARD, 0, i);
    for (int i = 0; i < m; i++) {
        list_compute(list, ACTION_INPUT, 0, i);
        if (i >= late) list_compute(list, ACTION_WEIGHT, 0, i - late);
        if (i + warm_up < m) list_compute(list, ACTION_FORWARD, 0, i + warm_up);
    }
    for (int i = m - late; i < m; i++) list_compute(list, ACTION_WEIGHT, 0, i);
}

// ---------------------------------------------------------------------------------------------------------------------
// Two chunks in a V. The papers give the number of actions of each kind in each phase, so the code gives only kind and
// chunk: the action is for the chunk's next microbatch without an action of this kind.

typedef struct Counting {
    ActionList *list;
    int microbatches;
    int forwards[2], backwards[2], weights[2]; // [chunk] actions so far; backwards: B and I; weights: W
    int64_t oldest;                            // index in the list: where oldest_weight_ resumes
} Counting;

// Appends the action for microbatch *next, if this microbatch exists, and increments *next.
static void next_(Counting *at, ActionKind kind, int chunk, int *next) {
    if (*next < at->microbatches) list_compute(at->list, kind, chunk, *next);
    ++*next;
}

static void forward_(Counting *at, int chunk) { next_(at, ACTION_FORWARD, chunk, &at->forwards[chunk]); }

static void backward_(Counting *at, int chunk) { next_(at, ACTION_BACKWARD, chunk, &at->backwards[chunk]); }

static void input_(Counting *at, int chunk) { next_(at, ACTION_INPUT, chunk, &at->backwards[chunk]); }

static void weight_(Counting *at, int chunk) { next_(at, ACTION_WEIGHT, chunk, &at->weights[chunk]); }

static void input_weight_(Counting *at, int chunk) {
    input_(at, chunk);
    weight_(at, chunk);
}

// Appends the W of the I that has waited longest, on either chunk. Returns false if no W is pending.
static bool oldest_weight_(Counting *at) {
    const ActionList *list = at->list;
    while (at->oldest < list->count && list->actions[at->oldest].kind != ACTION_INPUT) at->oldest++;
    if (at->oldest == list->count) return false;
    Action input = list->actions[at->oldest++];
    list_compute(at->list, ACTION_WEIGHT, input.chunk, input.microbatch);
    return true;
}

// The phases are for n >= 2p-1 microbatches; actions of microbatches that do not exist are left out.
void zb_v_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    int p = spec->stages, n = max_int(spec->microbatches, 2 * p - 1);
    Counting at = {.list = list, .microbatches = spec->microbatches};
    for (int i = 0; i < 2 * (p - s) - 1; i++) forward_(&at, 0);
    for (int i = 0; i < s; i++) {
        forward_(&at, 1);
        forward_(&at, 0);
    }
    for (int i = 0; i < p - s; i++) {
        forward_(&at, 1);
        input_weight_(&at, 1);
    }
    while (at.forwards[1] < at.forwards[0] || at.forwards[0] < n) {
        if (at.forwards[0] < n) forward_(&at, 0);
        input_weight_(&at, 0);
        forward_(&at, 1);
        input_weight_(&at, 1);
    }
    for (int i = 0; i < s; i++) {
        input_(&at, 0);
        input_(&at, 1);
    }
    for (int i = 0; i < p - s; i++) input_weight_(&at, 0);
    while (at.weights[1] < n) weight_(&at, 1);
    while (at.weights[0] < n) weight_(&at, 0);
}

void dualpipe_v_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    int p = spec->stages, m = spec->microbatches, later = p - s - 1;
    Counting at = {.list = list, .microbatches = m};
    for (int i = 0; i < 2 * later; i++) forward_(&at, 0);
    for (int i = 0; i < s + 1; i++) {
        forward_(&at, 0);
        forward_(&at, 1);
    }
    for (int i = 0; i < later; i++) {
        input_(&at, 1);
        oldest_weight_(&at);
        forward_(&at, 1);
    }
    for (int i = 0; i < m - 2 * p + s + 1; i++) {
        forward_(&at, 0);
        backward_(&at, 1);
        forward_(&at, 1);
        backward_(&at, 0);
    }
    for (int i = 0; i < later; i++) {
        backward_(&at, 1);
        forward_(&at, 1);
        backward_(&at, 0);
    }
    // 2(s+1) backwards, chunks 1 and 0 in turn: the first half complete, the second half without their W.
    for (int i = 0; i < 2 * (s + 1); i++)
        if (i < s + 1) backward_(&at, 1 - i % 2);
        else input_(&at, 1 - i % 2);
    for (int i = 0; i < later; i++) {
        oldest_weight_(&at);
        input_(&at, 0);
    }
    while (oldest_weight_(&at)) {}
}
