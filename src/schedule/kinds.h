// All schedules that have a name, one row each: how to make one, the settings it accepts and refuses. Configuration,
// plan and search ask this table and never for a particular name, so a new schedule is one function and one row in
// kinds.c.
#pragma once

#include "bpipe.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

enum {
    SCHEDULE_GROUP_HALF = -1, // groups of ceil(p/2) microbatches
    SCHEDULE_DELAY_MOST = -1, // p-1
};

typedef struct ScheduleKind {
    const char *name;    // schedule.name, and Schedule.name
    const char *title;   // as people write it: "1F1B"
    const char *meaning; // for help, a few words
    // Writes the list of one stage, from a spec that schedule_complete has accepted. If the lists of all stages follow
    // from each other, `make` makes the schedule instead, within `slots` slots.
    StageMaker *stage;
    Schedule *(*make)(const ScheduleSpec *spec, int slots);
    // Checks a completed spec against the rules of its kind. Returns the field of ScheduleSpec to blame
    // ("microbatches") and why in err (code 2), or NULL if nothing is wrong. The pointer is NULL if every completed
    // spec is accepted.
    const char *(*refuse)(const ScheduleSpec *spec, Error *err);
    // Returns the most slots that any stage needs, a bound that a test holds the lists to.
    int (*slots)(const ScheduleSpec *spec);
    int (*edge_buffers)(const ScheduleSpec *spec); // NULL: SCHEDULE_EDGE_BUFFERS
    int chunks, most_chunks;                       // the default, which is also the minimum, and the maximum
    Placement placement;
    // Returns the fewest slots for the BPipe pass, if there is a formula; otherwise they follow from the lists.
    int (*least)(const ScheduleSpec *spec, EvictTarget target);
    // Returns the bundles that stage s keeps in flight, if there is a formula; otherwise they follow from the lists.
    int (*in_flight)(const ScheduleSpec *spec, int s);
    bool splits;    // its backwards are I and W, whatever the spec says
    bool grouped;   // has a group
    bool delayed;   // has a delay
    bool pairs;     // the BPipe pass may evict to the partner; it may always evict to the host
    bool sliced;    // a microbatch may be cut into slices
    bool keeps_all; // its stages keep a bundle of every microbatch
    bool plain;     // the one row that runs if nothing better is known, and that others are compared with
} ScheduleKind;

extern const ScheduleKind schedule_kinds[];
extern const int schedule_kind_count;

// Their names in the same order, then "auto" and NULL: for the table of configuration keys.
extern const char *const schedule_words[];

// Returns the row that is marked as plain.
int schedule_kind_plain(void);

// Fills in the defaults of a spec and refuses illegal ones. 0, or -1 with err (code 2) and, in *key if that is not
// NULL, the field to blame: "stages", "microbatches", "chunks", "slices", "group" or "delay".
int schedule_complete(const ScheduleKind *kind, ScheduleSpec *spec, const char **key, Error *err);

// Makes the schedule of this kind. The caller owns it (schedule_free). NULL and err as schedule_complete.
Schedule *schedule_make(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err);

// Returns the fewest slots that the BPipe pass needs for it; 1 if the spec is illegal.
int schedule_least_slots(const ScheduleKind *kind, const ScheduleSpec *spec, EvictTarget target);

__END_DECLS
