// Heartbeats between hosts: every rank sends rank 0 a datagram at each beat, saying what it is at, and rank 0 answers. So rank 0 knows of
// all, and every rank of rank 0. None of it goes through MPI, which may be what hangs.
//
//     rank  -- BEAT ->  rank 0         at start to all of its addresses; the one that is answered is kept
//     rank  <- ANSWER - rank 0         with what rank 0 is at
//     rank  <- END ---- rank 0         the job ends now
//     rank  -- BYE ->   rank 0         it leaves in order; answered too
//
// The main thread opens a star and settles it; in between and afterwards it belongs to the heartbeat's thread.
#ifndef STAR_H
#define STAR_H

#include "watchdog.h"
#include "world.h"

typedef struct Star Star;

// Collective. Tells all ranks where rank 0 listens. NULL without err where rank 0 cannot open a socket; NULL with err where MPI failed.
Star *star_open(World *world, const StatusPage *status_page, Patience patience, Error *err);
// Collective, with the thread at work. Waits until all are connected, at most a few seconds; false where this rank is not. Rank 0 says
// which ranks are not, and watches the others alone.
int star_settle(Star *star, World *world, const Log *log, bool *connected, Error *err);
void star_close(Star *star);

int star_file(const Star *star); // to poll

// Takes what has come. True: rank 0 says that the job ends.
bool star_take(Star *star, double now);
// One beat, and a look at the others. What it finds is about the job on rank 0, and about rank 0 elsewhere.
Found star_beat(Star *star, double now, int *rank);
// A rank on rank 0's host whose process has gone without a goodbye, seen from rank 0; -1: none.
int star_dead(Star *star);
// Says how things stand in the words of watchdog.h, in log's name, and the reason last.
void star_say(Star *star, Found found, int rank, const Log *log, double now);
// Rank 0 tells all others to end, and those on its host or the silent rank's to kill that one, which may be stopped.
void star_end(Star *star, int silent);
// This rank ends and has said why: nobody has to miss it. Any thread.
void star_excuse_me(Star *star);
// A beat of a rank that leaves. True: everybody who should know does, and it may go.
bool star_bye(Star *star);

#endif
