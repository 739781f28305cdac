// Small schedules run in every order of events that there is: the definition against which the proof is held.
#pragma once

#include "bpipe.h"

enum { MOST_STAGES = 4, MOST_ACTIONS = 40 };

// Returns whether some interleaving of a schedule without chunks or split backwards hangs, with transfers posted when
// the action before is complete or when it starts. For at most MOST_STAGES stages with MOST_ACTIONS actions each.
bool schedule_can_hang(const Schedule *schedule);
