// --sweep KEY=A,B,C: a plan, or a search, for each combination of several values, in one table.
#ifndef SWEEP_H
#define SWEEP_H

#include "config/options.h"
#include "model/model.h"

// Reads the configuration anew for each combination and writes the table to stdout, or one JSON object. A combination
// that a run would refuse is a row that says why. Returns the exit code: 0, 1 where nothing fits anywhere; -1 with err,
// also where every combination is refused.
int sweep_command(const Options *options, const Model *model, const Log *log, Error *err);

#endif
