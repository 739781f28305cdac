// The table of named schedules. A row has the function that makes the schedule and the settings that it accepts.
// Configuration, plan and search read this table and never test for a particular name, so a new schedule is one
// function and one row in kinds.c.
#pragma once

#include "bpipe.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

enum {
    SCHEDULE_GROUP_HALF = -1, // groups of ceil(p/2) microbatches
    SCHEDULE_DELAY_MOST = -1, // p-1
};

typedef struct ScheduleKind {
    const char *name;    // value of the key schedule.name and of Schedule.name
    const char *title;   // name in reports: "1F1B"
    const char *meaning; // a few words for the help text
    // Writes the list of one stage, from a spec that schedule_complete has accepted. NULL: the stages' lists depend on
    // each other, so `make` makes the complete schedule, within `slots` slots.
    StageMaker *stage;
    Schedule *(*make)(const ScheduleSpec *spec, int slots);
    // Checks a completed spec against the rules of its kind. Returns the name of the illegal field of ScheduleSpec
    // ("microbatches"), with the reason in err (code 2), or NULL if the spec is legal. The pointer is NULL if every
    // completed spec is legal.
    const char *(*refuse)(const ScheduleSpec *spec, Error *err);
    // Returns an upper bound of the slots that a stage needs. A test checks the lists against it.
    int (*slots)(const ScheduleSpec *spec);
    int (*edge_buffers)(const ScheduleSpec *spec); // NULL: SCHEDULE_EDGE_BUFFERS
    int chunks, most_chunks;                       // chunks per stage: default and minimum; maximum
    Placement placement;
    // Returns the fewest slots for the BPipe pass by a formula. NULL: no formula; the number is found from the lists.
    int (*least)(const ScheduleSpec *spec, EvictTarget target);
    // Returns the bundles that stage s keeps in flight by a formula. NULL: no formula; they are counted in the lists.
    int (*in_flight)(const ScheduleSpec *spec, int s);
    bool splits;    // all or some backwards are I and W, even if spec.split is false
    bool grouped;   // spec.group may be set; otherwise it is fixed
    bool delayed;   // spec.delay may be set; otherwise it is fixed
    bool pairs;     // the BPipe pass may evict to the partner; it may always evict to the host
    bool sliced;    // a microbatch may be cut into slices
    bool keeps_all; // every stage keeps the bundles of all microbatches at once
    bool plain;     // true for a single row: the fallback, and the reference for comparisons
} ScheduleKind;

extern const ScheduleKind schedule_kinds[];
extern const int schedule_kind_count;

// The names of schedule_kinds in the same order, then "auto" and NULL; for the table of configuration keys.
extern const char *const schedule_words[];

// Returns the index of the row that is marked as plain.
int schedule_kind_plain(void);

// Fills in the defaults of a spec and checks it. -1 with err (code 2) if it is illegal. Unless `key` is NULL, *key is
// then the illegal field: "stages", "microbatches", "chunks", "slices", "group" or "delay".
int schedule_complete(const ScheduleKind *kind, ScheduleSpec *spec, const char **key, Error *err);

// Makes the schedule of this kind. The caller owns it (schedule_free). NULL with err (code 2) if the spec is illegal.
Schedule *schedule_make(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err);

// Returns the fewest slots that the BPipe pass needs for a schedule of this kind; 1 if the spec is illegal.
int schedule_least_slots(const ScheduleKind *kind, const ScheduleSpec *spec, EvictTarget target);

__END_DECLS
