// The states of a stage as bytes, to detect changes.
#pragma once

#include "engine/stage.h"
#include "unit.h"

#include <string.h>

// Returns weights, masters, moments and, with `gradients`, gradients; stores their size in *bytes. Caller frees.
static inline char *stage_states(const Stage *stage, bool gradients, size_t *bytes) {
    const StageTensors *t = &stage->tensors;
    StateBytes all = tensors_states(t);
    char *copy = calloc(1, (size_t)states_total(&all)), *to = copy;
    assert_non_null(copy);
    for (int group = 0; group < STATE_GROUPS; group++) {
        const StateArenas *a = &t->arenas[group];
        const void *parts[] = {a->weights, a->gradients, a->masters, a->moments};
        size_t floats = (size_t)a->state_elements * 4;
        size_t sizes[] = {(size_t)(a->elements * t->element), gradients ? (size_t)a->gradient_elements * 4 : 0,
                          a->masters != NULL ? floats : 0, 2 * floats};
        for (int i = 0; i < 4; i++)
            if (sizes[i] > 0) to = (char *)memcpy(to, parts[i], sizes[i]) + sizes[i];
    }
    *bytes = (size_t)(to - copy);
    return copy;
}
