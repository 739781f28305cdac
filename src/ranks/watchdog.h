// Decides from what ranks say of themselves whether one of them has fallen silent, or nothing moves in the whole job,
// and then says what every stage is doing and what it waits for. It does no input and reads no clock: the coordinator
// (coordinator.h) tells it what it heard and when.
//
// Where the watchdog itself was not called for a while (a machine that slept, a debugger), all ranks seem silent alike,
// and what they said meanwhile may still lie in a buffer. It then starts to wait anew.
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include "status_page.h"

typedef struct Patience {
    double peer_s;     // with a rank that says nothing; 0: endless
    double progress_s; // with a job in which nothing gets done; 0: endless
} Patience;

typedef struct Watchdog Watchdog;

// A rank's silence counts from when it was heard for the first time, or from watchdog_expect.
Watchdog *watchdog_create(int ranks, Patience patience, double now);
void watchdog_free(Watchdog *dog);

// How often it wants to be called, in seconds: often enough for the shorter of the two patiences, at least once a
// second.
double watchdog_interval(Patience patience);

void watchdog_hear(Watchdog *dog, int rank, const RankStatus *status, double now);
void watchdog_expect(Watchdog *dog, int rank, double now); // from now on its silence counts
void watchdog_excuse(Watchdog *dog, int rank); // its silence no longer counts: it has ended, or cannot be heard
const RankStatus *watchdog_status(const Watchdog *dog, int rank); // as it was heard last

typedef enum Found { FOUND_WELL, FOUND_SILENT, FOUND_STUCK } Found;

// rank: the one that fell silent first, where one did; else -1.
Found watchdog_look(Watchdog *dog, double now, int *rank);

enum { WATCHDOG_TEXT = 512 };

// The sentence for what was found, without what to do about it.
void watchdog_reason(const Watchdog *dog, Found found, int rank, double now, char text[WATCHDOG_TEXT]);
// Line `index` of those that say how things are, one a stage: "stage 2 waits for B14 from stage 3, which is at step 12
// F21". False: there are no more.
bool watchdog_line(const Watchdog *dog, int index, double now, char text[WATCHDOG_TEXT]);

// "rank 2 (stage 2)"
enum { WATCHDOG_NAME = 64 };
void watchdog_name(int rank, int stage, char name[WATCHDOG_NAME]);
// What a rank is doing; one that has not said so yet is at start-up.
const char *watchdog_action(const RankStatus *status);
// The same for a rank that knows of no other: "waits for B14 from stage 3", "is at step 12 F21".
void watchdog_describe(const RankStatus *status, char text[WATCHDOG_TEXT]);

#endif
