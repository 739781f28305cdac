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

#include <string.h>

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

// Appends the W of the I that has waited longest, on either chunk. Returns false if no W is pending.
static bool oldest_weight_(Counting *at) {
    const ActionList *list = at->list;
    while (at->oldest < list->count && list->actions[at->oldest].kind != ACTION_INPUT) at->oldest++;
    if (at->oldest == list->count) return false;
    Action input = list->actions[at->oldest++];
    list_compute(at->list, ACTION_WEIGHT, input.chunk, input.microbatch);
    return true;
}

// Appends a phase: `actions`, repeated `times` times. "F0" is a forward of chunk 0; "W" is oldest_weight_'s. Actions of
// microbatches that do not exist are left out.
static void phase_(Counting *at, int times, const char *actions) {
    for (int i = 0; i < times; i++)
        for (const char *action = actions; *action != '\0'; action += strcspn(action, " "), action += *action == ' ') {
            int chunk = action[1] - '0';
            int *done = action[0] == 'F' ? at->forwards : action[0] == 'W' ? at->weights : at->backwards;
            if (chunk < 0) oldest_weight_(at);
            else if (done[chunk]++ < at->microbatches)
                list_compute(at->list, (ActionKind)action[0], chunk, done[chunk] - 1);
        }
}

// The phases are for n >= 2p-1 microbatches.
void zb_v_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    int p = spec->stages, n = max_int(spec->microbatches, 2 * p - 1);
    Counting at = {.list = list, .microbatches = spec->microbatches};
    phase_(&at, 2 * (p - s) - 1, "F0");
    phase_(&at, s, "F1 F0");
    phase_(&at, p - s, "F1 I1 W1");
    while (at.forwards[1] < at.forwards[0] || at.forwards[0] < n)
        phase_(&at, 1, at.forwards[0] < n ? "F0 I0 W0 F1 I1 W1" : "I0 W0 F1 I1 W1");
    phase_(&at, s, "I0 I1");
    phase_(&at, p - s, "I0 W0");
    phase_(&at, n - at.weights[1], "W1");
    phase_(&at, n - at.weights[0], "W0");
}

void dualpipe_v_stage_(const ScheduleSpec *spec, int s, ActionList *list) {
    int p = spec->stages, m = spec->microbatches, later = p - s - 1;
    Counting at = {.list = list, .microbatches = m};
    phase_(&at, 2 * later, "F0");
    phase_(&at, s + 1, "F0 F1");
    phase_(&at, later, "I1 W F1");
    phase_(&at, m - 2 * p + s + 1, "F0 B1 F1 B0");
    phase_(&at, later, "B1 F1 B0");
    // 2(s+1) backwards, chunks 1 and 0 in turn: the first half complete, the second half without their W.
    phase_(&at, (s + 1) / 2, "B1 B0");
    phase_(&at, (s + 1) % 2, "B1 I0");
    phase_(&at, (s + 1) / 2, "I1 I0");
    phase_(&at, later, "W I0");
    while (oldest_weight_(&at)) {}
}
