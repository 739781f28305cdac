// Starting ranks again after one of them died or fell silent, as often as train.max_restarts says.
#ifndef RESTART_H
#define RESTART_H

#include "config/config.h"
#include "launch/launch.h"

// How often ranks may still be started again, and what was known at the last loss.
typedef struct Restarts {
    int64_t left;
    int64_t furthest; // step that was trained by then
    bool again;       // there was a loss before
    int rank;
    char action[STATUS_ACTION];
} Restarts;

// Whether the ranks may be started again after this loss, which is taken into account. Where no step beyond the
// furthest was reached, it counts double. The same action of the same rank twice in a row is no accident. `why`: not,
// as a sentence without an end.
bool restart_allowed(Restarts *restarts, const LaunchEnd *end, char why[256]);

// Starts the ranks (launch_ranks) with the arguments argv, and again from the newest complete checkpoint while that is
// allowed. Returns the exit code, or -1 with err.
int restart_launch(const Log *log, const Config *config, const Job *job, char **argv, Error *err);

#endif
