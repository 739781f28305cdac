// The current action of a rank. The rank writes it into a page of memory that it shares with its supervisor, the
// process that started it (supervisor.h). The rank may be killed between any two instructions, and the page is still
// consistent.
#pragma once

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct StatusPage StatusPage;

enum { STATUS_ACTION = 96, STATUS_WAIT = 64, STATUS_TEXT = 1024 };

// How a rank ended: cleanly with a code, with an error that it reported, or without a report, by a signal or a code.
typedef enum Ending { ENDING_NONE, ENDING_LEFT, ENDING_REPORTED, ENDING_DIED } Ending;

// A copy of a page, and a message's description of a rank: fixed widths and no padding, since it is sent as it is.
typedef struct RankStatus {
    int32_t stage;      // -1: unknown so far
    int32_t wait_stage; // stage it waits for; -1: it does not wait, or not for a single stage
    int32_t ready;      // SIGUSR1 is handled
    int32_t ending;     // an Ending; DIED is set by the supervisor if the rank ended without one
    int32_t code, signal;
    int64_t when;     // time of its error or end, by clock_wall_ns; 0: neither happened
    int64_t began;    // first step that it trained, or 0
    int64_t step;     // step that it is training, or 0
    int64_t progress; // grows with everything that it gets done
    char action[STATUS_ACTION];
    char wait[STATUS_WAIT]; // the action it waits for; empty if it is not waiting
    char text[STATUS_TEXT]; // the reason, if it reported one
} RankStatus;

// Creates a page in memory shared with processes forked later. `printed`: the program that started all ranks prints the
// rank's reports. NULL: out of memory. All other functions accept NULL and then do nothing.
StatusPage *status_page_create(bool printed);

void status_page_set_stage(StatusPage *page, int stage);
void status_page_set_step(StatusPage *page, int64_t step);
// Says that SIGUSR1 is handled from here on. The parent holds back a request to stop until every rank is ready.
void status_page_set_ready(StatusPage *page);
// Sets this rank's action, "step 12 F3". Takes a few dozen nanoseconds, because the engine calls it for every action.
void status_page_set_action(StatusPage *page, const char *action);
// Sets the event this action waits for, "B14 from stage 3", until the next action or NULL; and the stage it names, or
// -1 if it names no stage or several.
void status_page_set_wait(StatusPage *page, const char *what, int stage);
// Counts progress inside an action. Any thread.
void status_page_progress(StatusPage *page);
// Reports why this rank fails, its exit code, and when it met the error. The first report counts. Returns true if
// another process prints it.
bool status_page_report(StatusPage *page, const Error *err);
// Returns whether the program that started all ranks prints this rank's failures.
bool status_page_printed(const StatusPage *page);
// Ends the rank cleanly.
void status_page_leave(StatusPage *page, int code);

// Reads a page. NULL: nothing is known.
void status_page_read(const StatusPage *page, RankStatus *status);

// Copies as much as fits into `size` bytes and always ends it with a NUL.
void status_copy_text(char *to, size_t size, const char *from);
