// Starts the ranks again after a loss (a rank died or fell silent, or no rank made progress), up to train.max_restarts
// times.
#pragma once

#include "checkpoint/checkpoint_files.h"
#include "config/config.h"
#include "launch/launch.h"

// The number of restarts left, and the rank and its action at the last loss.
typedef struct Restarts {
    int64_t left;
    int64_t furthest; // highest step trained so far
    bool again;       // there was a loss before
    int rank;
    char action[STATUS_ACTION];
} Restarts;

// Counts this loss and returns whether the ranks may be started again. A loss without a new step costs two restarts. A
// rank that is lost twice in the same action, with no new step between, is not restarted. If the result is false, `why`
// is the reason, as a sentence without a full stop.
bool restart_allowed(Restarts *restarts, const JobEnd *end, char why[256]);

// Starts the ranks (launch_ranks) with the arguments argv. After a loss, starts them again from the newest complete
// checkpoint if restart_allowed permits it. Returns the exit code, or -1 with err.
int restart_launch(const Log *log, const Config *config, const Job *job, char **argv, Error *err);
