// Every schedule that can run with a configuration's model, world and micro-batch size, with its bytes and its
// simulated step. These alternatives to BPipe are planned from the engine's own action lists, not by formulas.
#pragma once

#include "base/json_out.h"
#include "planner.h"

// A row is a layout in which no key is auto, so a configuration with this layout reproduces the row.
typedef struct ScheduleTable {
    Forecast *rows;
    int count;
    int best; // index among all rows; -1: no schedule fits, or the device is unknown
} ScheduleTable;

// Returns true if simulating all schedules would take too long (several seconds): with more than 32 stages and many
// microbatches.
bool schedule_table_too_long(const Config *config);

// Forecasts every schedule at the planner's micro-batch size; adds no rows if that takes too long. threads: use all
// cores; only for a process that does not fork later, because threads do not survive a fork. -1 with err;
// schedule_table_free in both cases.
int schedule_table_make(ScheduleTable *table, const Planner *planner, bool threads, Error *err);
void schedule_table_free(ScheduleTable *table);

// Returns the index of the best row by planner_prefers among the rows that fit, have a time, and have the values of
// `given` for the keys of a mask (0: any values); -1: no such row.
int schedule_table_best(const ScheduleTable *table, const RunLayout *given, LayoutMask mask);

// Writes the words for a layout's schedule: "1F1B, split, BPipe". Returns `text`.
enum { SCHEDULE_TEXT = 160 };
char *schedule_text(const RunLayout *layout, char text[SCHEDULE_TEXT]);
// Returns the part of that text for evictions: "" (no evictions), ", BPipe" or ", host".
const char *schedule_evicts_text(const RunLayout *layout);
// Writes how much memory a forecast lacks: "stage 0 lacks 3.1 GiB". Returns `text`.
char *schedule_lacks_text(const Forecast *forecast, char text[SCHEDULE_TEXT]);

// Print the table for people, fastest rows first: at most `most` rows, which are the five fastest that fit, the row
// that `config` runs and the row with the fewest bytes. most 0: all rows. own: the configuration's forecast, which is a
// row of its own with schedule.file. Write the table as "schedules" and "best" of --plan --json.
void schedule_table_print(const ScheduleTable *table, const Planner *planner, const Config *config, const Forecast *own,
                          int most, FILE *file);
void schedule_table_write_json(const ScheduleTable *table, const Config *config, JsonOut *out);
