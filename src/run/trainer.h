// The function that main() of each trainer calls: reads the command line, starts or joins the ranks, and trains.
#pragma once

#include "model/model.h"

// Returns the exit code: 0 done, 1 failed while running, 2 bad usage or configuration, 3 stopped on request with its
// checkpoint saved.
int trainer_main(const char *program, const Model *model, int argc, char **argv);

// --dry-run: runs the same command in the program for virtual GPUs (docs/dry-runs.md), and builds that program if
// necessary. If the arguments request a dry run and this is not one already: replaces this process by the program for
// virtual GPUs, with the configured number of GPUs per node, and without validation and checkpoints. Returns -1 with
// err, or 0 if no dry run is requested.
int dry_run_start(const char *program, int argc, char **argv, Error *err);
