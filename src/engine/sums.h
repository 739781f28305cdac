// Workspace for the sums over ranks that a stage takes part in. On CPUs ranks make these sums themselves (comm.h) and
// need a place for the others' data; the same layout counts it in a plan and allocates it in a run. NCCL sums in
// buffers of its own.
#pragma once

#include "comm/comm.h"
#include "model/tensors.h"

// Sums over data ranks in progress at once. The gradients of most units are complete long before the last one's;
// summing all at once would need as much memory as there are gradients.
enum { SUMS_OVER_DATA = 4 };

// Workspace of one group: `bytes` for each of `sums` concurrent sums. staged: also `passing_bytes` of host memory for
// the operand and result of each of `passing` concurrent collectives, gathers included.
typedef struct SumWorkspace {
    void *memory;
    int64_t bytes, passing_bytes;
    int sums, passing;
} SumWorkspace;

typedef struct SumWorkspaces {
    SumWorkspace tensor, data, tied, context[2];
} SumWorkspaces;

// The inputs of the layout. staged: ranks share a GPU, so complete operands and results go through host memory, in
// addition to the workspace of the sums, which the host then makes.
typedef struct SumShape {
    int64_t
        count; // elements of the stream on one tensor rank: with `sequence` each rank's block, else the complete sum
    CommType type; // the stream's
    bool sequence;
    bool overlap;  // over tensor ranks: a gather may be in progress during a sum or another gather
    bool tied;     // this stage shares its embedding or its head with another
    int64_t stats; // elements that each rank gathers from the others in addition: the head's statistics
    int chunks;    // chunks of rows that a forward sums or gathers at once
    int context_ranks;
    int64_t keys; // elements of keys and values in a piece of a context rank, whose gradients are summed
    bool staged;
} SumShape;

// Lays out the workspaces at `base`, or only counts if that is NULL; returns the bytes of all.
int64_t sums_layout(SumWorkspaces *workspaces, void *base, const SumShape *shape, const StageTensors *tensors);

// Gives a group its workspace, if it wants one; takes it back if workspace is NULL. comm may be NULL.
void sums_lend(Comm *comm, const SumWorkspace *workspace);
