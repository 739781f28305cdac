// One forward and one backward of every chunk before the first message, so that no step of a run does anything on the
// device for the first time (engine_rehearse says why).
#ifndef REHEARSAL_H
#define REHEARSAL_H

#include "links.h"
#include "stage.h"

// Runs what a step of `schedule` runs on this rank, between the buffers of its links and in one slot, from zeros.
// Gradients are garbage afterwards. -1 with err.
int rehearse(Stage *stage, const Schedule *schedule, const Links *links, void *bundle, Error *err);

#endif
