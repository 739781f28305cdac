// Workspace for the sums over ranks that a stage takes part in. On CPUs ranks make these sums themselves (comm.h) and
// need a place for what the others send; it is counted in a plan and allocated in a run by the same layout. NVIDIA's
// library sums in buffers of its own.
#ifndef SUMS_H
#define SUMS_H

#include "comm/comm.h"
#include "model/tensors.h"

// Sums over data ranks under way at once. Units' gradients are complete long before the last one's: all of them at once
// would need as much memory as there are gradients.
enum { SUMS_OVER_DATA = 4 };

// Room of one group: for `sums` at once, `bytes` each.
typedef struct SumWorkspace {
    void *memory;
    int64_t bytes;
    int sums;
} SumWorkspace;

typedef struct SumWorkspaces {
    SumWorkspace tensor, data, tied;
} SumWorkspaces;

// What the sums depend on. staged: ranks share a GPU, so that whole operands and results go through host memory, beside
// the workspace of the sums, which the host makes then.
typedef struct SumShape {
    int64_t
        count; // elements of the stream on one tensor rank: of each rank's block with `sequence`, else of the whole sum
    CommType type; // the stream's
    bool sequence;
    bool tied;     // this stage shares its embedding or its head with another
    int64_t stats; // elements that each rank gathers of the others beside the stream: the head's statistics
    bool staged;
} SumShape;

// Lays the workspaces out at `base`, or with NULL only counts; returns the bytes of all.
int64_t sums_layout(SumWorkspaces *workspaces, void *base, const SumShape *shape, const StageTensors *tensors);

// Gives a group its workspace, if it wants one; with workspace NULL takes it back. comm may be NULL.
void sums_lend(Comm *comm, const SumWorkspace *workspace);

#endif
