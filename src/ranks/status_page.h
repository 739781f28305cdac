// The current action of a rank. The rank writes it into a page of memory that it shares with its supervisor, the
// process that started it (supervisor.h). The rank may be killed between any two instructions, and the page is still
// consistent.
#pragma once

#include "base/log.h"

#include <stddef.h>

typedef struct StatusPage StatusPage;

enum { STATUS_ACTION = 96, STATUS_WAIT = 64, STATUS_TEXT = 1024 };

// How a rank ended: not yet; cleanly, with a code; with an error that it reported; without a report (signal or code).
typedef enum Ending { ENDING_NONE, ENDING_LEFT, ENDING_REPORTED, ENDING_DIED } Ending;

// A copy of a status page. Messages contain its bytes unchanged, so the fields have fixed widths and no padding.
typedef struct RankStatus {
    int32_t stage;      // -1: unknown so far
    int32_t wait_stage; // stage that the rank waits for; -1: it does not wait, or not for a single stage
    int32_t ready;      // 1: the rank handles SIGUSR1
    int32_t ending;     // an Ending; the supervisor sets ENDING_DIED if the rank ended without leaving or reporting
    int32_t code, signal;
    int64_t when;     // time of its error or end, by clock_wall_ns; 0: neither happened
    int64_t began;    // first step that it trained, or 0
    int64_t step;     // step that it is training, or 0
    int64_t progress; // counter that increases with every piece of progress
    int64_t saved;    // 1: the rank knows of a checkpoint that this run has saved since its start
    char action[STATUS_ACTION];
    char wait[STATUS_WAIT]; // event that the rank waits for; empty: it does not wait
    char text[STATUS_TEXT]; // reason that the rank reported, or empty
} RankStatus;

// Creates a page in memory shared with processes forked later. `printed`: the program that started all ranks prints the
// rank's reports. NULL: out of memory. All other functions accept NULL and then do nothing.
StatusPage *status_page_create(bool printed);

void status_page_set_stage(StatusPage *page, int stage);
void status_page_set_step(StatusPage *page, int64_t step);
// Records that this rank now handles SIGUSR1. The parent delays a request to stop until every rank is ready.
void status_page_set_ready(StatusPage *page);
// Sets this rank's action, "step 12 F3". The engine calls it for every action; it takes a few dozen nanoseconds.
void status_page_set_action(StatusPage *page, const char *action);
// Sets the event that this action waits for, "B14 from stage 3", and the stage that the event comes from (-1: no stage,
// or several stages). The event is valid until the next action, or until it is set to NULL.
void status_page_set_wait(StatusPage *page, const char *what, int stage);
// Counts progress inside an action. Any thread may call it and the next; only the main thread calls the other functions
// that change the page.
void status_page_progress(StatusPage *page);
void status_page_set_saved(StatusPage *page);
// Reports why this rank fails, its exit code, and the time of the error. Later reports are ignored. Returns true if
// another process prints the report.
bool status_page_report(StatusPage *page, const Error *err);
// Returns whether the program that started all ranks prints this rank's failures.
bool status_page_printed(const StatusPage *page);
// Records that the rank has left cleanly, with exit code `code` unless a report has set another code.
void status_page_leave(StatusPage *page, int code);

// Reads a page. If it is NULL, every field of *status is set to unknown.
void status_page_read(const StatusPage *page, RankStatus *status);

// Copies as much as fits into `size` bytes and always ends it with a NUL.
void status_copy_text(char *to, size_t size, const char *from);
