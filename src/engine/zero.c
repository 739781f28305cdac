// ZeRO-1 and ZeRO-2, see zero.h. Sums over data ranks start in the order in which units complete. The schedule makes
// this order the same on all data ranks, so a group's sums match. If ranks sum in a workspace, at most SUMS_OVER_DATA
// sums are in flight. NCCL gets each sum as soon as its unit is complete. The host queues the complete last backward
// before the device runs it. A sum that had to wait for an earlier one would start only at the pipeline's end.
#include "zero.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

struct Zero {
    Stage *stage;
    Comm *data, *experts;              // replicas of the stage; replicas of its experts. NULL: one replica
    int64_t *order;                    // (units) units in the order of their sums; [0, complete) are filled
    bool *ordered;                     // (units) true: the unit is in `order`
    int64_t complete, started, summed; // entries of `order`; summed <= started <= complete
    int64_t most;                      // most sums in flight at once
    CommRequest *requests;             // (units) request of the unit's sum or gather
    Error error;                       // the first sum that failed while a backward ran
};

static bool alone_(const Zero *zero) { return zero->data == NULL && zero->experts == NULL; }

// Returns the group that divides a unit; NULL: this rank owns the complete unit.
static Comm *group_(const Zero *zero, int64_t u) {
    return zero->stage->tensors.units[u].experts ? zero->experts : zero->data;
}

static void start_next_(Zero *zero) {
    StageTensors *tensors = &zero->stage->tensors;
    int64_t u = zero->order[zero->started];
    const Unit *unit = &tensors->units[u];
    Comm *group = group_(zero, u);
    float *sum = tensors_sum(tensors, unit);
    CommOperation operation = unit->home < 0 ? COMM_REDUCE_SCATTER : COMM_REDUCE;
    int failed = group->collective(group, operation, unit->home, sum, unit->gradients, unit->piece, COMM_FLOAT,
                                   &zero->requests[u], &zero->error);
    zero->started += failed == 0;
    zero->stage->be->summing = true;
}

static Comm *oldest_(const Zero *zero) { return group_(zero, zero->order[zero->summed]); }

// Counts the sums that are complete, and starts as many more as may be in progress.
static void move_on_(Zero *zero) {
    while (zero->error.code == 0 && zero->summed < zero->started &&
           oldest_(zero)->test(oldest_(zero), &zero->requests[zero->order[zero->summed]], &zero->error) == 1)
        zero->summed++;
    while (zero->error.code == 0 && zero->started < zero->complete && zero->started < zero->summed + zero->most)
        start_next_(zero);
}

// Waits until all complete gradients are summed.
static int zero_finish_(Zero *zero, Error *err) {
    for (move_on_(zero); zero->error.code == 0 && zero->summed < zero->started; move_on_(zero)) {
        int64_t oldest = zero->order[zero->summed];
        if (comm_wait(group_(zero, oldest), &zero->requests[oldest], &zero->error) == 0) zero->summed++;
    }
    if (zero->error.code == 0) return 0;
    if (err != NULL) *err = zero->error;
    return -1;
}

// Appends unit u to the order in which units are summed, the first time its gradients are complete. All ranks of a
// stage use one order for both groups, so that no two ranks wait for each other's sums.
static void zero_add_(Zero *zero, int64_t u) {
    if (zero->ordered[u] || group_(zero, u) == NULL || zero->stage->tensors.units[u].count == 0) return;
    zero->ordered[u] = true;
    zero->order[zero->complete++] = u;
}

static void layer_done_(void *argument, int64_t layer) {
    Zero *zero = (Zero *)argument;
    const Stage *stage = zero->stage;
    // The next backward, of layer - 1, writes into the buffer of the gradients of layer + 1.
    if (stage->tensors.buffer > 0 && zero->complete > 0) {
        zero_finish_(zero, NULL);
        tensors_zero_buffer(&stage->tensors, stage->be, layer + 1);
    }
    int64_t first = stage->layers - stage->tensors.tensors + layer * stage->table.per_layer;
    for (int64_t u = 0; u < stage->tensors.unit_count; u++) {
        int64_t begins = stage->tensors.units[u].first;
        if (begins >= first && begins < first + stage->table.per_layer) zero_add_(zero, u);
    }
    move_on_(zero);
}

Zero *zero_create(Stage *stage, Comm *data, Comm *experts) {
    Zero *zero = xcalloc(1, sizeof *zero);
    int64_t units = stage->tensors.unit_count;
    *zero = (Zero){.stage = stage, .data = data, .experts = experts};
    const Comm *some = data != NULL ? data : experts;
    bool sums_itself = some != NULL && some->use_workspace == NULL && !stage->config->hardware.share_gpu;
    zero->most = sums_itself ? units : SUMS_OVER_DATA;
    zero->order = xcalloc((size_t)units, sizeof *zero->order);
    zero->ordered = xcalloc((size_t)units, sizeof *zero->ordered);
    zero->requests = xcalloc((size_t)units, sizeof *zero->requests);
    if (!alone_(zero)) {
        stage->layer_done = layer_done_;
        stage->layer_done_argument = zero;
    }
    return zero;
}

void zero_destroy(Zero *zero) {
    if (zero == NULL) return;
    // If all ranks abandon a step, for example because its loss is not finite, its sums may still be in flight. They
    // must end before their memory is freed.
    if (zero->complete > 0) zero_finish_(zero, NULL);
    free_all(zero->order, zero->ordered, zero->requests, zero);
}

int zero_reduce_gradients(Zero *zero, Error *err) {
    int64_t units = zero->stage->tensors.unit_count;
    if (alone_(zero)) return 0;
    for (int64_t u = 0; u < units; u++) zero_add_(zero, u);
    int status = zero_finish_(zero, err);
    zero->stage->be->summing = false;
    memset(zero->ordered, 0, (size_t)units * sizeof *zero->ordered);
    zero->complete = zero->started = zero->summed = 0;
    return status;
}

static int zero_gather_(Zero *zero, int64_t u, Error *err) {
    const StageTensors *tensors = &zero->stage->tensors;
    const Unit *unit = &tensors->units[u];
    Comm *group = group_(zero, u);
    if (unit->owner >= 0 || group == NULL || unit->count == 0) return 0;
    int64_t element = unit_element(tensors, unit);
    char *whole = (char *)unit->weights, *piece = whole + unit->rank * unit->piece * element;
    CommType type = element == 2 ? COMM_BF16 : COMM_FLOAT;
    CommOperation operation = unit->home < 0 ? COMM_ALL_GATHER : COMM_BROADCAST;
    return group->collective(group, operation, unit->home, whole, unit->home < 0 ? piece : whole, unit->piece, type,
                             &zero->requests[u], err);
}

// At most SUMS_OVER_DATA gathers are in flight at once.
int zero_gather_weights(Zero *zero, Error *err) {
    int64_t units = zero->stage->tensors.unit_count;
    if (alone_(zero)) return 0;
    for (int64_t u = 0; u < units + SUMS_OVER_DATA; u++) {
        int64_t oldest = u - SUMS_OVER_DATA;
        if (oldest >= 0 && zero->requests[oldest].active &&
            comm_wait(group_(zero, oldest), &zero->requests[oldest], err) != 0)
            return -1;
        if (u < units && zero_gather_(zero, u, err) != 0) return -1;
    }
    return 0;
}
