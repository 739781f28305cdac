// Starts ranks again after one of them died or fell silent, as often as train.max_restarts says.
#pragma once

#include "config/config.h"
#include "launch/launch.h"

#include <time.h>

// The number of restarts left, and the state at the last loss.
typedef struct Restarts {
    int64_t left;
    int64_t furthest; // step that was trained by then
    bool again;       // there was a loss before
    int rank;
    char action[STATUS_ACTION];
} Restarts;

// Returns whether the ranks may be started again after this loss, which is taken into account: a loss that came no
// further than the one before counts double, and the same action of the same rank twice in a row is no accident. If
// not, `why` says so, as a sentence without an end.
bool restart_allowed(Restarts *restarts, const JobEnd *end, char why[256]);

// Returns the sequence number of the newest complete checkpoint in checkpoint.dir, or 0. A checkpoint of this run has a
// higher number than any that existed when the run began, which may belong to another run.
int64_t restart_sequence(const Config *config);
// Returns the step of the newest complete checkpoint with a higher number than `before`, or -1, with its path and when
// it was made (for people).
int64_t restart_newest(const Config *config, int64_t before, time_t *made, char *path, size_t size);

// Starts the ranks (launch_ranks) with the arguments argv, and again from the newest complete checkpoint while that is
// allowed. Returns the exit code, or -1 with err.
int restart_launch(const Log *log, const Config *config, const Job *job, char **argv, Error *err);
