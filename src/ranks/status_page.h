// A sheet of memory that the ranks of one machine share with the parent that started them: one page a rank, on which it
// writes who it is, what it is doing and what became of it. The parent reads the last word there, a watchdog what the
// others are at. It is a file that the parent makes and removes; its path travels in the environment.
//
// Under a bare mpirun or srun there is no board: status_page_attach returns NULL. A rank keeps its page all the same, for its own
// heartbeat (status_page_alone). Every function takes a NULL board.
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

#define STATUS_PAGE_VARIABLE "TRAINER_BOARD" // the file's path, in a rank's environment

typedef struct StatusPage StatusPage;

// One rank's page, copied.
typedef struct StatusRank {
    int pid;   // 0: not there yet
    int stage; // -1: not known yet
    bool ready;
    int reported;     // 0: not yet; else its place among those that reported, from 1
    int code;         // the exit code it reported
    int64_t beats;    // how often its heartbeat said that the process lives
    int64_t progress; // grows with all that it gets done
    int wait_stage;   // whose action it waits for; -1: it does not wait, or not for one stage alone
    char action[96];
    char wait[64]; // what it waits for; empty: nothing
    char text[1024];
} StatusRank;

// --- the parent
// A new file of `ranks` empty pages; NULL with err where the path exists already or nothing can be written.
StatusPage *status_page_create(const char *path, int ranks, Error *err);

// --- a rank
// The page of `rank` on the parent's board, NULL where there is none. rank -1: as the launcher's environment says, so
// that errors before MPI is up have a page too.
StatusPage *status_page_attach(int rank);
// The rank that the launcher's environment names; -1: none.
int status_page_launched_rank(void);
// A page of this rank alone, which no parent reads: status_page_report leaves what it is told to the caller. NULL: out of memory.
StatusPage *status_page_alone(void);
void status_page_set_stage(StatusPage *status_page, int stage);
// SIGUSR1 is handled from here on. Until all ranks said so, the parent keeps a request to stop back.
void status_page_set_ready(StatusPage *status_page);
// What this rank does now, "step 12 F3". A few dozen nanoseconds: called for every action.
void status_page_set_action(StatusPage *status_page, const char *action);
// What this action waits for, "B14 from stage 3", until the next action or NULL; and the stage named there, -1 for none or several.
void status_page_set_wait(StatusPage *status_page, const char *what, int stage);
// Something got done inside an action. Any thread.
void status_page_progress(StatusPage *status_page);
// The process lives. From one thread.
void status_page_beat(StatusPage *status_page);
void status_page_read_own(const StatusPage *status_page, StatusRank *page);
// Whether a parent reads this board.
bool status_page_shared(const StatusPage *status_page);
// The exit code this rank ends with, and why. True: the parent will print it; false: it is the caller's to print. The
// first report of a rank stands.
bool status_page_report(StatusPage *status_page, int code, const char *text);
// For return from main: reports `code` where nothing was reported yet, and says what to hand to the launcher. With a
// parent at the board that is 0 and mpirun ends quietly and at once; without one it is the code.
int status_page_leave(StatusPage *status_page, int code);

// --- both
int status_page_ranks(const StatusPage *status_page);
int status_page_read(const StatusPage *status_page, int rank, StatusRank *page); // -1: no such page
void status_page_close(StatusPage *status_page);                                 // the file stays

#endif
