#include "zero.h"

#include <stdlib.h>
#include <string.h>

struct Zero {
    Stage *stage;
    Comm *data;
    CommRequest *requests; // per unit
    bool *started;
    Error error; // of a sum that failed while a backward ran
};

static bool alone_(const Zero *zero) {
    return zero->data == NULL;
}

static void start_reduce_(Zero *zero, int64_t u) {
    StageTensors *tensors = &zero->stage->tensors;
    const Unit *unit = &tensors->units[u];
    if (zero->started[u] || zero->error.code != 0) return;
    zero->started[u] = true;
    float *sum = tensors->gradients + unit->gradient_offset;
    float *piece = sum + tensors->split.data_rank * unit->piece;
    zero->data->reduce_scatter(zero->data, piece, sum, unit->piece, COMM_FLOAT, &zero->requests[u], &zero->error);
}

static void layer_done_(void *argument, int64_t layer) {
    Zero *zero = (Zero *)argument;
    const Stage *stage = zero->stage;
    int64_t first = stage->layers - stage->tensors.tensors + layer * stage->table.per_layer;
    for (int64_t u = 0; u < stage->tensors.unit_count; u++) {
        int64_t begins = stage->tensors.units[u].first;
        if (begins >= first && begins < first + stage->table.per_layer) start_reduce_(zero, u);
    }
}

Zero *zero_create(Stage *stage, Comm *data, Error *err) {
    Zero *zero = (Zero *)calloc(1, sizeof *zero);
    int64_t units = stage->tensors.unit_count;
    if (zero != NULL) {
        zero->stage = stage;
        zero->data = data;
        zero->requests = (CommRequest *)calloc((size_t)units, sizeof *zero->requests);
        zero->started = (bool *)calloc((size_t)units, sizeof *zero->started);
    }
    if (zero == NULL || zero->requests == NULL || zero->started == NULL) {
        error_set(err, EXIT_FAILED, "out of host memory for %lld gradient sums", (long long)units);
        zero_destroy(zero);
        return NULL;
    }
    if (!alone_(zero)) {
        stage->layer_done = layer_done_;
        stage->layer_done_argument = zero;
    }
    return zero;
}

void zero_destroy(Zero *zero) {
    if (zero == NULL) return;
    free(zero->requests);
    free(zero->started);
    free(zero);
}

static int wait_all_(Zero *zero, Error *err) {
    for (int64_t u = 0; zero->error.code == 0 && u < zero->stage->tensors.unit_count; u++)
        if (zero->requests[u].active) comm_wait(zero->data, &zero->requests[u], &zero->error);
    if (zero->error.code == 0) return 0;
    *err = zero->error;
    return -1;
}

int zero_reduce_gradients(Zero *zero, Error *err) {
    int64_t units = zero->stage->tensors.unit_count;
    if (alone_(zero)) return 0;
    for (int64_t u = 0; u < units; u++) start_reduce_(zero, u);
    memset(zero->started, 0, (size_t)units * sizeof *zero->started);
    return wait_all_(zero, err);
}

int zero_gather_weights(Zero *zero, Error *err) {
    StageTensors *tensors = &zero->stage->tensors;
    if (alone_(zero)) return 0;
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        const Unit *unit = &tensors->units[u];
        if (unit->alias) continue;
        char *whole = (char *)tensors->weights + unit->offset * tensors->element;
        char *piece = whole + tensors->split.data_rank * unit->piece * tensors->element;
        CommType type = tensors->element == 2 ? COMM_BF16 : COMM_FLOAT;
        if (zero->data->all_gather(zero->data, whole, piece, unit->piece, type, &zero->requests[u], err) != 0)
            return -1;
    }
    return wait_all_(zero, err);
}
