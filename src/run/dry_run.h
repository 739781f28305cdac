// --dry-run: the same command in the program for virtual GPUs (docs/dry-runs.md), which is built if it is not there.
#pragma once

#include "base/log.h"

// Returns whether the arguments ask for a dry run and this is not already one.
bool dry_run_asked(char **argv);

// Replaces this process by the program for virtual GPUs, with as many of them on a node as the configuration has, and
// neither validation nor checkpoints. Returns only with err.
int dry_run_start(const char *program, int argc, char **argv, Error *err);
