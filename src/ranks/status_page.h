// What a rank is doing, written by the rank into a page of memory that it shares with its supervisor, the process that
// started it (supervisor.h). The rank may be killed between any two instructions, and what the page says is whole all
// the same.
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct StatusPage StatusPage;

enum { STATUS_ACTION = 96, STATUS_WAIT = 64, STATUS_TEXT = 1024 };

// A page, copied.
typedef struct RankStatus {
    int stage;     // -1: not known yet
    bool ready;    // SIGUSR1 is handled
    bool left;     // it ended in order, with `code`
    bool reported; // it failed, with `code` and `text`
    int code;
    int wait_stage;   // whose action it waits for; -1: it does not wait, or not for one stage alone
    int64_t when;     // it reported, in nanoseconds of the world's clock; 0: not
    int64_t step;     // that it trains; 0: none yet
    int64_t progress; // grows with all that it gets done
    char action[STATUS_ACTION];
    char wait[STATUS_WAIT]; // what it waits for; empty: nothing
    char text[STATUS_TEXT];
} RankStatus;

// A page in memory that is shared with processes forked later. `printed`: what the rank reports is printed by the
// program that started all ranks. NULL: no memory. All other functions take NULL and then do nothing.
StatusPage *status_page_create(bool printed);
void status_page_free(StatusPage *page);

void status_page_set_stage(StatusPage *page, int stage);
void status_page_set_step(StatusPage *page, int64_t step);
// SIGUSR1 is handled from here on. The parent holds back a request to stop until every rank is ready.
void status_page_set_ready(StatusPage *page);
// What this rank does now, "step 12 F3". Takes a few dozen nanoseconds: the engine calls it for every action.
void status_page_set_action(StatusPage *page, const char *action);
// What this action waits for, "B14 from stage 3", until the next action or NULL; and the stage named there, -1 for none
// or several.
void status_page_set_wait(StatusPage *page, const char *what, int stage);
// Something got done inside an action. Any thread.
void status_page_progress(StatusPage *page);
// The exit code with which this rank fails, and why. The first report stands. Returns true where somebody else prints
// it.
bool status_page_report(StatusPage *page, int code, const char *text);
// Whether failures of this rank are printed by the program that started all ranks.
bool status_page_printed(const StatusPage *page);
// The rank ends in order; returns `code`.
int status_page_leave(StatusPage *page, int code);

// Nanoseconds of the clock that hosts share more or less, to order what happened on several of them.
int64_t status_clock_ns(void);

// A page of NULL says that nothing is known.
void status_page_read(const StatusPage *page, RankStatus *status);

// Copies what fits into `size` bytes and always ends it.
void status_copy_text(char *to, size_t size, const char *from);

#endif
