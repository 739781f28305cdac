// Decides from what ranks say of themselves whether one of them has fallen silent, or the whole job stands still, and says then what
// every stage is at and what it waits for. It does no input and keeps no clock: whoever hears the ranks (launch_watch.c from the
// board, heartbeat.c from the network) tells it what it heard and when.
//
// Patience restarts where the watchdog itself was not looked after for a while: a machine that slept, or a debugger, silences all
// ranks alike, and what they said meanwhile may still lie in a buffer.
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include "status_page.h"

typedef struct Patience {
    double peer_s;     // with a rank that says nothing; 0: endless
    double progress_s; // with a job in which nothing gets done; 0: endless
} Patience;

typedef struct Watchdog Watchdog;

// Nobody is watched for silence before it was heard for the first time or watchdog_expect was called. NULL: out of memory.
Watchdog *watchdog_create(int ranks, Patience patience, double now);
void watchdog_free(Watchdog *dog);

// How often it wants to be looked at, in seconds: often enough for the shorter of the two patiences, at most once a second.
double watchdog_interval(Patience patience);

// What a rank said at last; it was heard where its beats have grown.
void watchdog_hear(Watchdog *dog, int rank, const StatusRank *page, double now);
void watchdog_expect(Watchdog *dog, int rank, double now); // from now on its silence counts
void watchdog_excuse(Watchdog *dog, int rank); // its silence no longer counts: it has left, or cannot be heard

// FOUND_DEAD is for those who see processes; watchdog_look does not.
typedef enum Found { FOUND_WELL, FOUND_SILENT, FOUND_STUCK, FOUND_DEAD } Found;

// rank: the one that fell silent first, where one did.
Found watchdog_look(Watchdog *dog, double now, int *rank);

enum { WATCHDOG_TEXT = 512 };

// The sentence for what was found.
void watchdog_reason(const Watchdog *dog, Found found, int rank, double now, char text[WATCHDOG_TEXT]);
// "stage 2 waits for B14 from stage 3, which is at step 12 F21": line `index` of those that say how things stand, one a stage. False:
// there are no more.
bool watchdog_line(const Watchdog *dog, int index, double now, char text[WATCHDOG_TEXT]);

// What a rank is at; one that has not said so yet starts up.
const char *watchdog_action(const StatusRank *page);
// The same of one page alone, for a rank that knows of no other: "waits for B14 from stage 3", "is at step 12 F21".
void watchdog_describe(const StatusRank *page, char text[WATCHDOG_TEXT]);

#endif
