// Which kernel computes each matrix product of a run on GPUs. cuBLASLt offers several kernels for a product; ranks time
// them once, all ranks use one choice, and the file hardware.products keeps it.
//
// Kernels add in different orders, so a choice decides bits. Two rules keep them the same: all ranks use the same
// choices, and only choices that are in the file are used. A choice in the file never changes while GPU, driver and
// cuBLASLt stay the same; a run that meets new products adds them. So a run that is resumed, or repeated, with the same
// file has the same bits. If the file cannot be written, products without a choice are computed by cuBLASLt's first
// suggestion, which is the same at every start, too.
#pragma once

#include "backend/backend.h"
#include "ranks/world.h"

// Both are collective over `world` (NULL: this process alone) and do nothing if the backend has no choice to make or
// hardware.products is empty. Rank 0 logs a fault of the file, which is no error; -1 with err only if ranks cannot
// reach each other.

// Before anything is computed: reads the file and gives its choices to the backends of all ranks.
int products_recall(const Config *config, Backend *be, World *world, const Log *log, Error *err);
// After a rehearsal of all that will be computed: times the products that have no choice yet, adds the choices of the
// lowest rank that timed each to the file, and gives the complete table to all backends. The outputs of earlier
// products are garbage afterwards.
int products_choose(const Config *config, Backend *be, World *world, const Log *log, Error *err);
