// Plan against measured: after the first step every rank has allocated all it ever will, and the plan said beforehand what that is.
#ifndef COMPARE_H
#define COMPARE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Collective. Rank 0 tells on stderr: one line where every rank holds, category by category, what the plan has for its stage; else a table
// of what differs. -1 with err only where ranks cannot be reached.
int compare_plan(Run *run, Error *err);

// What compare_plan prints. measured: one entry for each stage of the plan. quiet: only what differs.
void compare_print(const Plan *plan, const MemoryBytes *measured, bool quiet, FILE *file);

#ifdef __cplusplus
}
#endif

#endif
