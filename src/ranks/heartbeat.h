// A thread of each rank that says that the process lives, whatever its main thread is at, and that ends it where the job cannot go on.
// It never touches MPI.
//
// Under a parent (status_page.h) it only beats on the board, and the parent does the rest, from the first moment on. Elsewhere ranks hear each
// other through a star (star.h) once they have joined, and the thread looks after its own rank alone before: that something moves,
// and that the launcher is there.
#ifndef HEARTBEAT_H
#define HEARTBEAT_H

#include "watchdog.h"
#include "world.h"

typedef struct Heartbeat Heartbeat;

// What a rank is at (status_page_set_action) until there is a world.
#define HEARTBEAT_JOINING "joining the other ranks"

// `launched`: started by mpirun or srun, without which a rank is lost. NULL without err where no patience ever ends; every function takes
// NULL.
Heartbeat *heartbeat_start(StatusPage *status_page, Patience patience, bool launched, const char *program, Error *err);

// Collective, as soon as there is a world: from here on ranks watch each other.
int heartbeat_join(Heartbeat *heartbeat, World *world, const Log *log, Error *err);

// Before a rank that has said why it fails takes the job down: its end needs no other comment.
void heartbeat_excuse_me(Heartbeat *heartbeat);

// After world_leave: says goodbye, so that nobody misses this rank, and ends the thread. Rank 0 stays until all others have said it.
void heartbeat_leave(Heartbeat *heartbeat);

#endif
