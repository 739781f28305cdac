// ZeRO-1 and ZeRO-2, see zero.h. Sums over data ranks start in the order in which units complete. The schedule makes
// this order the same on all data ranks, so a group's sums match. If ranks sum in a workspace, at most SUMS_OVER_DATA
// sums are in flight. NCCL gets each sum as soon as its unit is complete. The host queues the complete last backward
// before the device runs it. A sum that had to wait for an earlier one would start only at the pipeline's end.
//
// Gathers of weights pass through the same queue, in the order of the stage's tensors, which is the order of their
// first use. All end in the first forward of the next step, before the first sum:
//
//     update | gathers ===============================|
//            | F0: wait, embedding, wait, layer 0, wait, layer 1 ...  B0 ...  last B: | sums ========|
#include "zero.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct Zero {
    Stage *stage;
    Comm *data, *experts;            // replicas of the stage; replicas of its experts. NULL: one replica
    bool gathers;                    // true: the units of `order` gather weights; false: they sum gradients
    int64_t *order;                  // (units) units in the order of their collectives; [0, complete) are filled
    bool *ordered;                   // (units) true: the unit's sum is in `order`
    int64_t complete, started, done; // entries of `order`; done <= started <= complete
    int64_t most;                    // most collectives in flight at once
    CommRequest *requests;           // (units) request of the unit's sum or gather
    Error error;                     // the first collective that failed while a forward or a backward ran
};

static bool alone_(const Zero *zero) { return zero->data == NULL && zero->experts == NULL; }

// Returns the group that divides a unit; NULL: this rank owns the complete unit.
static Comm *group_(const Zero *zero, int64_t u) {
    return zero->stage->tensors.units[u].experts ? zero->experts : zero->data;
}

static Comm *oldest_(const Zero *zero) { return group_(zero, zero->order[zero->done]); }

// Counts the collectives that are complete, and starts as many more as may be in progress.
static void move_on_(Zero *zero) {
    const StageTensors *tensors = &zero->stage->tensors;
    while (zero->error.code == 0 && zero->done < zero->started &&
           oldest_(zero)->test(oldest_(zero), &zero->requests[zero->order[zero->done]], &zero->error) == 1)
        zero->done++;
    while (zero->error.code == 0 && zero->started < zero->complete && zero->started < zero->done + zero->most) {
        int64_t u = zero->order[zero->started], element = unit_element(tensors, &tensors->units[u]);
        const Unit *unit = &tensors->units[u];
        bool divided = unit->home < 0;
        CommOperation operation = divided ? COMM_REDUCE_SCATTER : COMM_REDUCE;
        CommType type = COMM_FLOAT;
        void *out = tensors_sum(tensors, unit), *in = unit->gradients;
        if (zero->gathers) {
            operation = divided ? COMM_ALL_GATHER : COMM_BROADCAST;
            type = element == 2 ? COMM_BF16 : COMM_FLOAT;
            out = unit->weights, in = (char *)out + (divided ? unit->rank * unit->piece * element : 0);
        }
        Comm *group = group_(zero, u);
        zero->stage->be->summing |= !zero->gathers;
        int failed = group->collective(group, operation, unit->home, out, in, unit->piece, type, &zero->requests[u],
                                       &zero->error);
        zero->started += failed == 0;
    }
}

// Waits for the collectives in `order` of units below `units`, INT64_MAX for all. poll: see comm_wait_polling; if it
// returns false, the caller has an error, and the wait ends.
static int zero_finish_(Zero *zero, int64_t units, bool (*poll)(void *, bool), Error *err) {
    for (move_on_(zero); zero->error.code == 0 && zero->done < zero->started; move_on_(zero)) {
        int64_t oldest = zero->order[zero->done];
        CommRequest *request = &zero->requests[oldest];
        if (oldest >= units) break;
        comm_wait_polling(group_(zero, oldest), request, poll, zero->stage->pass.poll_argument, &zero->error);
        if (request->active) break;
        zero->done += zero->error.code == 0;
    }
    if (zero->error.code == 0) return 0;
    if (err != NULL) *err = zero->error;
    return -1;
}

// Empties `order`, whose collectives have all ended.
static void clear_(Zero *zero) {
    assert(zero->done == zero->complete);
    zero->gathers = false;
    zero->complete = zero->started = zero->done = 0;
}

// Waits for the weights of the stage's first `tensors` tensors. Messages progress meanwhile, as in pass_collective.
static void needs_weights_(void *argument, int64_t tensors) {
    Zero *zero = (Zero *)argument;
    const Pass *pass = &zero->stage->pass;
    if (!zero->gathers) return;
    zero_finish_(zero, zero->stage->tensors.tensors[tensors - 1].unit + 1, pass->poll, pass->err);
    if (zero->done == zero->complete) clear_(zero);
}

// Appends unit u to the order in which units are summed, the first time its gradients are complete. All ranks of a
// stage use one order for both groups, so that no two ranks wait for each other's sums.
static void zero_add_(Zero *zero, int64_t u) {
    assert(!zero->gathers);
    if (zero->ordered[u] || group_(zero, u) == NULL || zero->stage->tensors.units[u].count == 0) return;
    zero->ordered[u] = true;
    zero->order[zero->complete++] = u;
}

static void layer_done_(void *argument, int64_t layer) {
    Zero *zero = (Zero *)argument;
    const Stage *stage = zero->stage;
    // The next backward, of layer - 1, writes into the buffer of the gradients of layer + 1.
    if (stage->tensors.buffer > 0 && zero->complete > 0) {
        zero_finish_(zero, INT64_MAX, NULL, NULL);
        tensors_zero_layer(&stage->tensors, stage->be, layer - 1);
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
    zero->most = sums_itself ? min_i64(units, 128) : SUMS_OVER_DATA; // 128 collectives of NCCL do not fill a stream
    zero->order = xcalloc((size_t)units, sizeof *zero->order);
    zero->ordered = xcalloc((size_t)units, sizeof *zero->ordered);
    zero->requests = xcalloc((size_t)units, sizeof *zero->requests);
    if (!alone_(zero)) {
        stage->needs_weights = needs_weights_;
        stage->layer_done = layer_done_;
        stage->zero = zero;
        for (int64_t u = 0; u < units; u++) {
            const Unit *unit = &stage->tensors.units[u];
            int64_t copies = unit->home < 0 ? unit->ranks - 1 : unit->ranks > 1; // a ring passes a home's unit on once
            int64_t sent = unit->piece * copies * unit_element(&stage->tensors, unit);
            if (unit->owner < 0) stage->gather_flops += (double)sent * stage->be->flops_per_gathered_byte;
        }
    }
    return zero;
}

void zero_destroy(Zero *zero) {
    if (zero == NULL) return;
    // If all ranks abandon a step, for example because its loss is not finite, its sums may still be in flight. They
    // must end before their memory is freed.
    zero_finish_(zero, INT64_MAX, NULL, NULL);
    free_all(zero->order, zero->ordered, zero->requests, zero);
}

int zero_reduce_gradients(Zero *zero, Error *err) {
    int64_t units = zero->stage->tensors.unit_count;
    if (alone_(zero)) return 0;
    for (int64_t u = 0; u < units; u++) zero_add_(zero, u);
    if (zero_finish_(zero, INT64_MAX, NULL, err) != 0) return -1;
    zero->stage->be->summing = false;
    memset(zero->ordered, 0, (size_t)units * sizeof *zero->ordered);
    clear_(zero);
    return 0;
}

void zero_gather_weights(Zero *zero) {
    const StageTensors *tensors = &zero->stage->tensors;
    assert(zero->complete == 0);
    for (int64_t u = 0; u < tensors->unit_count; u++)
        if (group_(zero, u) != NULL && tensors->units[u].owner < 0 && tensors->units[u].count > 0)
            zero->order[zero->complete++] = u;
    zero->gathers = zero->complete > 0;
    move_on_(zero);
}

int zero_wait_weights(Zero *zero, Error *err) {
    if (!zero->gathers) return 0;
    if (zero_finish_(zero, INT64_MAX, NULL, err) != 0) return -1;
    clear_(zero);
    return 0;
}
