// --verify N: the same N steps in several ways, which must all compute the same bits.
//
// Started by hand, the program runs each way as a run of its own, one after another: one stage with 1F1B; the
// configuration's stages (up to 4 if it has one) and schedule without BPipe; then with BPipe. A way that does not fit
// this machine is left out, with a line that says so. Tensor and data ranks, which change the order of sums, stay as
// configured. Each run hands its record (record.h) to the parent through a file without a name. Ranks that a launcher
// started cannot change in number, so they run the configuration's stages without and with BPipe, one after another.
// No file is left on disk.
#pragma once

#include "ranks/world.h"
#include "config/options.h"
#include "run.h"

// Returns whether this process belongs to one of the runs that a parent compares.
bool verify_is_run(void);

// Executes --verify in the process that the user started: runs every way and compares the records. Returns the exit
// code, or -1 with err.
int verify_command(const Model *model, const Options *options, const Log *log, char **argv, Error *err);

// Runs in every rank of a verified run. Returns the exit code, the same on all ranks, or -1 with err.
int verify_as_rank(const Config *config, const Model *model, const Options *options, World *world,
                   StatusPage *status_page, Log *log, Error *err);
