// What --verbose adds to a run's start: what was found and chosen, and where the time until the first step goes. Rank 0 speaks,
// except about what each evicting stage chose for itself.
#ifndef DETAILS_H
#define DETAILS_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Phases one behind the other; the first begins with details_begin.
typedef struct Details {
    Log log; // says nothing on ranks other than 0
    double began, since;
} Details;

// world NULL: before ranks exist.
void details_begin(Details *details, const Log *log, const World *world);

// Says how long it was since the phase before, or since the beginning.
void details_phase(Details *details, const char *what);

// Says how long all phases took together.
void details_ready(const Details *details);

// The launcher's library, host and device, what computes and what carries messages.
void details_found(const Details *details, const Run *run);

// How this stage's evicted bundles travel; nothing where it evicts none.
void details_bundles(const Run *run);

#ifdef __cplusplus
}
#endif

#endif
