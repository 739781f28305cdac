// --sweep KEY=A,B,C and --gpus N,N,N: a plan, or a search, for each combination of several values, in one table. With
// --deadline it names the row that meets it at the smallest cost: by hardware.gpu_hour, else in GPU hours.
#pragma once

#include "config/options.h"
#include "model/model.h"

// Reads the configuration anew for each combination and writes the table to stdout, or one JSON object. A combination
// that a run would refuse is a row that says why. Returns the exit code: 0, or 1 where nothing fits anywhere or meets
// the deadline; -1 with err, also where every combination is refused.
int sweep_command(const Options *options, const Model *model, const Log *log, Error *err);
