// Workspace for a stage's sums over ranks. On CPUs ranks compute these sums (comm.h) and need memory for other ranks'
// data. The same layout counts the workspace in a plan and allocates it in a run. NCCL uses its own buffers.
#pragma once

#include "comm/comm.h"
#include "model/model.h"

// Most sums over data ranks in flight at once. The gradients of most units are complete long before the last unit's;
// summing all at once would need as much memory as the gradients.
enum { SUMS_OVER_DATA = 4 };

// Workspace of one group: `bytes` for each of `sums` concurrent sums. staged: also `passing_bytes` of host memory for
// the operand and result of each of `passing` concurrent collectives, gathers included.
typedef struct SumWorkspace {
    void *memory;
    int64_t bytes, passing_bytes;
    int sums, passing;
} SumWorkspace;

typedef struct SumWorkspaces {
    SumWorkspace tensor, data, tied, context[2], experts; // experts: the ranks that hold the same experts
} SumWorkspaces;

// Lays out the workspaces at `base`; base NULL: only counts. Returns the bytes of all workspaces. staged: ranks share a
// GPU, so the host computes the sums, and complete operands and results go through host memory in addition to the
// workspace of the sums.
int64_t sums_layout(SumWorkspaces *workspaces, void *base, const Shape *shape, const StageTensors *tensors,
                    bool staged);

// Sets the workspace of a group, if the group uses one; workspace NULL withdraws it. comm may be NULL.
void sums_lend(Comm *comm, const SumWorkspace *workspace);
