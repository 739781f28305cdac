// The function that main() of each trainer calls: reads the command line, starts or joins the ranks, and trains.
#pragma once

#include "config/config.h"
#include "model/model.h"

// Returns the exit code: 0 done, 1 failed while running, 2 bad usage or configuration, 3 stopped on request with its
// checkpoint saved.
int trainer_main(const char *program, const Model *model, int argc, char **argv);
