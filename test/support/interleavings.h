// Runs small schedules in every possible order of events: the definition with which the proof is compared.
#pragma once

#include "bpipe.h"

enum { MOST_STAGES = 4, MOST_ACTIONS = 40 };

// Returns whether some interleaving of a schedule without chunks or split backwards hangs. Transfers are posted when
// the preceding action completes, or when it starts. For at most MOST_STAGES stages with MOST_ACTIONS actions each.
bool schedule_can_hang(const Schedule *schedule);
