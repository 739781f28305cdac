// Plans and searches for another program (foreign.h).
#pragma once

#include "foreign.h"
#include "layout.h"

// Sets Config.program to the program with this word of --for, and hardware.trainer if it is not given: the first of its
// trainers that has runs on these GPUs. -1 with err if the program is unknown or does not support the configuration
// (`searched`: the keys fixed by -o).
int foreign_take(Config *config, const char *word, bool searched, Error *err);

// Returns a program's schedules, a bit for each of schedule_kinds.
uint32_t foreign_schedules(int program);

// Fixes the keys of a space that the program cannot choose, and keeps to its schedules. base: the configuration of the
// space, whose keys are written.
void foreign_fix(int program, Config *base, LayoutSpace *space);
