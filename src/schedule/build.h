// What the makers of schedules share: lists that grow, and the slots that follow from a finished list. Other files
// include bpipe.h and kinds.h.
#ifndef BUILD_H
#define BUILD_H

#include "bpipe.h"

// A growing list. A push that finds no memory sets `failed`, so one test at the end is enough.
typedef struct ActionList {
    Action *actions;
    int64_t count;
    int64_t capacity;
    bool failed;
} ActionList;

void list_push(ActionList *list, Action action);

// Appends an action that computes: F, B, I or W.
void list_compute(ActionList *list, ActionKind kind, int chunk, int microbatch);

// Hands the list over to the stage, which then owns it, complete or not. -1 with err (code 1) if memory ran out.
int list_finish(ActionList *list, StageSchedule *stage, Error *err);

// Checks that there is at least one stage, and a microbatch for each. -1 with err (code 2).
int schedule_possible(int stages, int microbatches, Error *err);

// Returns a schedule with empty lists, one chunk, loop placement and the usual edge buffers. NULL with err (code 1).
Schedule *schedule_new(const char *name, int stages, int microbatches, Error *err);

// Ends the making of a schedule: sets `split` and every stage's own and lent slots. slots: the bound; 0: what the
// fullest stage needs.
void schedule_finish(Schedule *schedule, int slots);

// Returns the most bundles of a stage between their F and the B or W that frees their slot, evicted or not.
int schedule_in_flight(const StageSchedule *stage);

#endif
