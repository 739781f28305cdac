// Plans and searches for another program (foreign.h).
#pragma once

#include "foreign.h"
#include "layout.h"

// Returns the value of Config.program for a word of --for, or -1 with err.
int foreign_find(const char *word, Error *err);

// Sets a configuration's program, and hardware.trainer if it is not given: the first of its trainers that has runs on
// these GPUs. -1 with err if the program does not have what the configuration asks for, or `searched` what -o fixes.
int foreign_take(Config *config, int program, bool searched, Error *err);

// Fixes the keys of a space that the program cannot choose, and keeps to its schedules. base: the configuration of the
// space, whose keys are written.
void foreign_fix(int program, Config *base, LayoutSpace *space);
