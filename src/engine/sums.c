// Workspace for sums over ranks (stage.h): sized for the largest sums of a stage, and allocated once.
#include "muon.h"
#include "stage.h"
#include "base/units.h"

#include <string.h>

// The workspace of one collective.
typedef struct Need {
    SumWorkspace *workspace;
    int size;
    bool staged;
} Need;

static void need_(const Need *need, CommOperation operation, int64_t count, CommType type) {
    SumWorkspace *workspace = need->workspace;
    int64_t bytes = memory_round(comm_sum_workspace(operation, count, type, need->size));
    if (bytes > workspace->bytes) workspace->bytes = bytes;
    if (!need->staged) return;
    bool one = operation == COMM_ALL_REDUCE || operation == COMM_REDUCE;
    int64_t blocks = one ? 2 : need->size + 1; // number of blocks of operand and result
    int64_t passing = memory_round(blocks * count * comm_type_bytes(type));
    if (passing > workspace->passing_bytes) workspace->passing_bytes = passing;
}

// Counts the sums over tensor ranks. Activations and their gradients are summed after every split product, the norms'
// gradients after a step; Muon's matrices are gathered, and their norms summed. With overlap, a gather of the next
// product's input may run during a sum or another gather. In a forward, all strips of a product may be in flight. A
// gather needs no `bytes`, only `passing_bytes`.
static void count_tensor_(SumWorkspace *workspace, const Shape *shape, const StageTensors *tensors, bool staged) {
    Need need = {workspace, tensors->split.tensor_ranks, staged};
    CommType type = shape->element == 2 ? COMM_BF16 : COMM_FLOAT;
    int beside = shape->sequence && shape->overlap ? 2 : 1;
    workspace->sums = shape->strips;
    workspace->passing = shape->strips > beside ? shape->strips : beside;
    need_(&need, shape->sequence ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE, shape->shard_rows * shape->hidden, type);
    for (int64_t i = 0; i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->index == tensors->table->head) need_(&need, COMM_ALL_GATHER, shape->rows * 3, COMM_FLOAT);
        if (tensor_summed(tensor->spec, shape->sequence)) need_(&need, COMM_ALL_REDUCE, tensor->count, COMM_FLOAT);
        if (tensors->units[tensor->unit].home < 0 || tensor->spec->split == SPLIT_NONE) continue;
        need_(&need, COMM_ALL_GATHER, tensor->count / tensor->spec->parts, type);
    }
    need_(&need, COMM_ALL_REDUCE, muon_split_matrices(tensors), COMM_DOUBLE);
}

// Counts the workspace to sum gradient pieces, either of experts or of all other units. Gathering weights in the same
// pieces needs no more. Sums of both kinds share one queue, so all sums in flight may be of one kind.
static void count_pieces_(SumWorkspace *workspace, const StageTensors *tensors, bool experts, bool staged) {
    Need need = {workspace, experts ? tensors->split.expert_replicas : tensors->split.data_ranks, staged};
    int64_t units = 0;
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        const Unit *unit = &tensors->units[u];
        if (unit->experts != experts) continue;
        need_(&need, unit->home < 0 ? COMM_REDUCE_SCATTER : COMM_REDUCE, unit->piece, COMM_FLOAT);
        units++;
    }
    workspace->sums = workspace->passing = units < 1 ? 1 : units < SUMS_OVER_DATA ? (int)units : SUMS_OVER_DATA;
}

// Counts the sum of the embedding's and the head's gradient of a tied weight, between the first stage and the last.
// With both on this stage there is no sum.
static void count_tied_(SumWorkspace *workspace, const StageTensors *tensors, bool staged) {
    const TensorTable *table = tensors->table;
    Need need = {workspace, 2, staged};
    int64_t shared = -1, ends = 0, piece = 0;
    for (int64_t i = table->head; i < table->count; i++)
        if (table->specs[i].tied_to >= 0) shared = table->specs[i].tied_to;
    for (int64_t i = 0; shared >= 0 && i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        if (tensor->index != shared && tensor->spec->tied_to != shared) continue;
        piece = min_i64(tensor->count, tensors->units[tensor->unit].piece);
        ends++;
    }
    if (ends != 1) return;
    workspace->sums = workspace->passing = 1;
    need_(&need, COMM_ALL_REDUCE, piece, COMM_FLOAT);
}

static void sums_take_(SumWorkspace *workspace, Layout *layout) {
    if (workspace->bytes > 0) workspace->memory = layout_take(layout, workspace->sums * workspace->bytes);
    layout_take(layout, workspace->passing * workspace->passing_bytes);
}

void sums_layout(SumWorkspaces *workspaces, Layout *layout, const Shape *shape, const StageTensors *tensors,
                 bool staged) {
    memset(workspaces, 0, sizeof *workspaces);
    if (tensors->split.tensor_ranks > 1) count_tensor_(&workspaces->tensor, shape, tensors, staged);
    if (tensors->split.data_ranks > 1) {
        // A stage without parameters still takes part in the sum of squared norms.
        Need squares = {&workspaces->data, tensors->split.data_ranks, staged};
        count_pieces_(&workspaces->data, tensors, false, staged);
        need_(&squares, COMM_ALL_REDUCE, tensors->table->count, COMM_DOUBLE);
    }
    if (tensors->split.expert_replicas > 1) count_pieces_(&workspaces->experts, tensors, true, staged);
    for (int i = 0; i < 2 && shape->context_ranks > 1; i++) { // sums of key and value gradients: one group per half
        Need keys = {&workspaces->context[i], shape->context_ranks, staged};
        workspaces->context[i].sums = workspaces->context[i].passing = 1;
        need_(&keys, COMM_REDUCE_SCATTER, (shape->qkv_cols - shape->query_cols) * shape->rows / shape->pieces,
              COMM_FLOAT);
        if (shape->balance > 0) need_(&keys, COMM_ALL_REDUCE, shape->route.experts, COMM_DOUBLE);
    }
    count_tied_(&workspaces->tied, tensors, staged);
    sums_take_(&workspaces->tensor, layout);
    sums_take_(&workspaces->data, layout);
    sums_take_(&workspaces->tied, layout);
    sums_take_(&workspaces->experts, layout);
    for (int i = 0; i < 2; i++) sums_take_(&workspaces->context[i], layout);
}

void sums_lend(Comm *comm, const SumWorkspace *workspace) {
    if (comm == NULL || comm->use_workspace == NULL) return;
    if (workspace == NULL) comm->use_workspace(comm, NULL, 0, 0);
    else if (workspace->memory != NULL) comm->use_workspace(comm, workspace->memory, workspace->bytes, workspace->sums);
}
