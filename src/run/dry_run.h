// --dry-run: the same command in the program for virtual GPUs (docs/dry-runs.md), which is built if it is not there.
#pragma once

#include "base/log.h"

// If the arguments ask for a dry run and this is not one already: replaces this process by the program for virtual
// GPUs, with as many of them on a node as the configuration has, and neither validation nor checkpoints. Returns -1
// with err, or 0 if no dry run is asked for.
int dry_run_start(const char *program, int argc, char **argv, Error *err);
