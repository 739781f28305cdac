// The function that main() of each trainer calls: reads the command line, starts or joins the ranks, and trains.
#pragma once

#include "config/config.h"
#include "model/model.h"

// Returns the exit code: 0 done, 1 failed while running, 2 bad usage or configuration, 3 stopped on request with its
// checkpoint saved.
int trainer_main(const char *program, const Model *model, int argc, char **argv);

// --dry-run: runs the same command in the program for virtual GPUs (docs/dry-runs.md), and builds that program if
// necessary. Replaces this process by it, with the configured number of GPUs per node, and without validation and
// checkpoints. Returns -1 with err, or 0 if this process is a dry run already.
int dry_run_start(const Config *config, const Log *log, int argc, char **argv, Error *err);
