#include "sums.h"

#include <string.h>

static void widen_(SumRoom *room, CommOperation operation, int64_t count, CommType type, int size) {
    int64_t bytes = memory_round(comm_sum_room(operation, count, type, size));
    if (bytes > room->bytes) room->bytes = bytes;
}

// The stream's sums behind products that are split over tensor ranks, one at a time; norms' gradients behind the step.
static void count_tensor_(SumRoom *room, const SumShape *shape, const StageTensors *tensors) {
    int t = tensors->split.tensor_ranks;
    room->sums = 1;
    widen_(room, shape->sequence ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE, shape->count, shape->type, t);
    for (int64_t i = 0; shape->sequence && i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->spec->shard_summed) widen_(room, COMM_ALL_REDUCE, tensor->count, COMM_FLOAT, t);
    }
}

// Pieces of the gradients, and the squares of all.
static void count_data_(SumRoom *room, const StageTensors *tensors) {
    int d = tensors->split.data_ranks;
    room->sums = tensors->unit_count < SUMS_OVER_DATA ? (int)tensors->unit_count : SUMS_OVER_DATA;
    for (int64_t u = 0; u < tensors->unit_count; u++)
        widen_(room, COMM_REDUCE_SCATTER, tensors->units[u].piece, COMM_FLOAT, d);
    widen_(room, COMM_ALL_REDUCE, tensors->table->count, COMM_DOUBLE, d);
}

// The embedding's and the head's gradient of one weight, between the first stage and the last.
static void count_tied_(SumRoom *room, const StageTensors *tensors) {
    int64_t shared = -1;
    for (int64_t i = 0; i < tensors->table->count; i++)
        if (tensors->table->specs[i].tied_to >= 0) shared = tensors->table->specs[i].tied_to;
    room->sums = 1;
    for (int64_t i = 0; i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->index != shared && tensor->spec->tied_to != shared) continue;
        int64_t piece = tensors->units[tensor->unit].piece;
        widen_(room, COMM_ALL_REDUCE, tensor->count < piece ? tensor->count : piece, COMM_FLOAT, 2);
    }
}

static void take_(SumRoom *room, Layout *layout) {
    if (room->bytes > 0) room->memory = layout_take(layout, room->sums * room->bytes);
}

int64_t sums_layout(SumRooms *rooms, void *base, const SumShape *shape, const StageTensors *tensors) {
    Layout layout = {(char *)base, 0};
    memset(rooms, 0, sizeof *rooms);
    if (tensors->split.tensor_ranks > 1) count_tensor_(&rooms->tensor, shape, tensors);
    if (tensors->split.data_ranks > 1) count_data_(&rooms->data, tensors);
    if (shape->tied) count_tied_(&rooms->tied, tensors);
    take_(&rooms->tensor, &layout);
    take_(&rooms->data, &layout);
    take_(&rooms->tied, &layout);
    return layout.used;
}

void sums_lend(Comm *comm, const SumRoom *room) {
    if (comm == NULL || comm->use_room == NULL) return;
    if (room == NULL)
        comm->use_room(comm, NULL, 0, 0);
    else if (room->memory != NULL)
        comm->use_room(comm, room->memory, room->bytes, room->sums);
}
