// The schedules that a pipeline of a given depth can choose from: every row of schedule_kinds with its chunks, groups
// and delays, with whole and with split backwards. The plan's table of schedules and the search enumerate the same
// ones.
#ifndef SCHEDULE_CHOICES_H
#define SCHEDULE_CHOICES_H

#include "config/config.h"

// One list of forwards and backwards, before any eviction. Numbers are never auto.
typedef struct ScheduleChoice {
    int kind;   // row of schedule_kinds
    int chunks; // on every stage
    int group;  // 0: the kind has none
    int delay;  // 0: the kind has none
    bool split; // backwards are I and W
} ScheduleChoice;

enum { SCHEDULE_CHOICES = 64 };

// Writes the choices for the configuration's stages and layers, in the order of schedule_kinds, and returns how many.
// They may still be illegal for its number of microbatches (config_schedule_legal).
int schedule_choices(const Config *config, ScheduleChoice choices[SCHEDULE_CHOICES]);

// Sets schedule.name, chunks, group, delay and split_backward, no file, and slots and load_ahead to auto.
void schedule_choose(const ScheduleChoice *choice, Config *config);

#endif
