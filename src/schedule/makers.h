// The makers of the table in kinds.c, by file. Each takes a spec that schedule_complete has accepted, and returns NULL
// with err (code 1) if memory runs out.
#ifndef MAKERS_H
#define MAKERS_H

#include "kinds.h"

// zero_bubble.c
Schedule *make_zb_d(const ScheduleSpec *spec, Error *err);
Schedule *make_zb_v(const ScheduleSpec *spec, Error *err);

// interleaved.c
Schedule *make_interleaved(const ScheduleSpec *spec, Error *err);
Schedule *make_gis(const ScheduleSpec *spec, Error *err);

// dualpipe_v.c
Schedule *make_dualpipe_v(const ScheduleSpec *spec, Error *err);

// v_half.c
Schedule *make_v_half(const ScheduleSpec *spec, Error *err);
Schedule *make_v_min(const ScheduleSpec *spec, Error *err);

// Returns the most chunk bundles that V-Half and V-Min keep on a stage.
int v_half_slots(int stages);
int v_min_slots(int stages);

#endif
