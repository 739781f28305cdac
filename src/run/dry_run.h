// --dry-run: runs the same command in the program for virtual GPUs (docs/dry-runs.md), and builds that program if
// necessary.
#pragma once

#include "base/log.h"

// If the arguments request a dry run and this is not one already: replaces this process by the program for virtual
// GPUs, with the configured number of GPUs per node, and without validation and checkpoints. Returns -1 with err, or 0
// if no dry run is requested.
int dry_run_start(const char *program, int argc, char **argv, Error *err);
