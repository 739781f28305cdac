// Every schedule that can run with a configuration's model, world and micro-batch size, each with its bytes and its
// simulated step: the alternatives to BPipe, by the engine's own lists instead of formulas.
#ifndef PLAN_SCHEDULES_H
#define PLAN_SCHEDULES_H

#include "planner.h"

// One way to run the pipeline. The values of `schedule` and `attention` are numbers and words, never auto, so that a
// configuration with them reproduces the row.
typedef struct ScheduleRow {
    ScheduleConfig schedule;
    AttentionConfig attention;
    Forecast forecast;
} ScheduleRow;

typedef struct ScheduleTable {
    ScheduleRow *rows;
    int count, capacity;
    int best; // of all rows; -1: none fits, or nothing is known of the device
} ScheduleTable;

// Returns whether simulating all schedules would take several seconds, so that none is simulated: more than 32 stages,
// and many microbatches.
bool schedule_table_too_long(const Config *config);

// Forecasts every schedule at the planner's micro-batch size; none if that takes too long. threads: run on all cores;
// set it only if the process forks nothing later, because a child has none of the threads. -1 with err;
// schedule_table_free in both cases.
int schedule_table_make(ScheduleTable *table, const Planner *planner, bool threads, Error *err);
void schedule_table_free(ScheduleTable *table);

// Returns the row to run, by planner_prefers, of those that fit, have a time, and that `may` allows (NULL: all); -1:
// none.
typedef bool ScheduleRowMay(const ScheduleRow *row, const void *argument);
int schedule_table_best(const ScheduleTable *table, ScheduleRowMay *may, const void *argument);

// Writes the row's schedule as people do: "1F1B, split, BPipe". Returns `text`.
enum { SCHEDULE_ROW_TEXT = 96 };
char *schedule_row_text(const ScheduleRow *row, char text[SCHEDULE_ROW_TEXT]);

// Print the table for people, within 120 columns, and write it as the "schedules" and "best" of --plan --json.
void schedule_table_print(const ScheduleTable *table, const Planner *planner, FILE *file);
void schedule_table_write_json(const ScheduleTable *table, FILE *file);

#endif
