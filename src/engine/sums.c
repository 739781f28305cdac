#include "sums.h"

#include <string.h>

// What one collective needs of its group.
typedef struct Need_ {
    SumRoom *room;
    int size;
    bool staged;
} Need_;

static void need_(const Need_ *need, CommOperation operation, int64_t count, CommType type) {
    int64_t bytes = comm_sum_room(operation, count, type, need->size);
    int64_t blocks = operation == COMM_ALL_REDUCE ? 2 : need->size + 1; // operand and result
    if (need->staged) bytes += blocks * count * comm_type_bytes(type);
    bytes = memory_round(bytes);
    if (bytes > need->room->bytes) need->room->bytes = bytes;
}

// The stream's sums behind products that are split over tensor ranks, one at a time; norms' gradients behind the step.
static void count_tensor_(SumRoom *room, const SumShape *shape, const StageTensors *tensors) {
    Need_ need = {room, tensors->split.tensor_ranks, shape->staged};
    room->sums = 1;
    need_(&need, shape->sequence ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE, shape->count, shape->type);
    need_(&need, COMM_ALL_GATHER, shape->stats, COMM_FLOAT);
    for (int64_t i = 0; shape->sequence && i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->spec->shard_summed) need_(&need, COMM_ALL_REDUCE, tensor->count, COMM_FLOAT);
    }
}

// Pieces of the gradients, and the squares of all. Weights are gathered likewise, and are no larger.
static void count_data_(SumRoom *room, const SumShape *shape, const StageTensors *tensors) {
    Need_ need = {room, tensors->split.data_ranks, shape->staged};
    room->sums = tensors->unit_count < SUMS_OVER_DATA ? (int)tensors->unit_count : SUMS_OVER_DATA;
    for (int64_t u = 0; u < tensors->unit_count; u++)
        need_(&need, COMM_REDUCE_SCATTER, tensors->units[u].piece, COMM_FLOAT);
    need_(&need, COMM_ALL_REDUCE, tensors->table->count, COMM_DOUBLE);
}

// The embedding's and the head's gradient of one weight, between the first stage and the last.
static void count_tied_(SumRoom *room, const SumShape *shape, const StageTensors *tensors) {
    Need_ need = {room, 2, shape->staged};
    int64_t shared = -1;
    for (int64_t i = 0; i < tensors->table->count; i++)
        if (tensors->table->specs[i].tied_to >= 0) shared = tensors->table->specs[i].tied_to;
    room->sums = 1;
    for (int64_t i = 0; i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->index != shared && tensor->spec->tied_to != shared) continue;
        int64_t piece = tensors->units[tensor->unit].piece;
        need_(&need, COMM_ALL_REDUCE, tensor->count < piece ? tensor->count : piece, COMM_FLOAT);
    }
}

static void take_(SumRoom *room, Layout *layout) {
    if (room->bytes > 0) room->memory = layout_take(layout, room->sums * room->bytes);
}

int64_t sums_layout(SumRooms *rooms, void *base, const SumShape *shape, const StageTensors *tensors) {
    Layout layout = {(char *)base, 0};
    memset(rooms, 0, sizeof *rooms);
    if (tensors->split.tensor_ranks > 1) count_tensor_(&rooms->tensor, shape, tensors);
    if (tensors->split.data_ranks > 1) count_data_(&rooms->data, shape, tensors);
    if (shape->tied) count_tied_(&rooms->tied, shape, tensors);
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
