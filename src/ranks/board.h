// A sheet of memory that the ranks of one machine share with the parent that started them: one page a rank, on which it
// writes who it is, what it is doing and what became of it. The parent reads the last word there, a watchdog what the
// others are at. It is a file that the parent makes and removes; its path travels in the environment.
//
// Under a bare mpirun or srun there is no board: board_attach returns NULL. A rank keeps its page all the same, for its own
// heartbeat (board_alone). Every function takes a NULL board.
#ifndef BOARD_H
#define BOARD_H

#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BOARD_VARIABLE "TRAINER_BOARD" // the file's path, in a rank's environment

typedef struct Board Board;

// One rank's page, copied.
typedef struct BoardPage {
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
} BoardPage;

// --- the parent
// A new file of `ranks` empty pages; NULL with err where the path exists already or nothing can be written.
Board *board_create(const char *path, int ranks, Error *err);

// --- a rank
// The page of `rank` on the parent's board, NULL where there is none. rank -1: as the launcher's environment says, so
// that errors before MPI is up have a page too.
Board *board_attach(int rank);
// The rank that the launcher's environment names; -1: none.
int board_launched_rank(void);
// A page of this rank alone, which no parent reads: board_report leaves what it is told to the caller. NULL: out of memory.
Board *board_alone(void);
void board_set_stage(Board *board, int stage);
// SIGUSR1 is handled from here on. Until all ranks said so, the parent keeps a request to stop back.
void board_set_ready(Board *board);
// What this rank does now, "step 12 F3". A few dozen nanoseconds: called for every action.
void board_set_action(Board *board, const char *action);
// What this action waits for, "B14 from stage 3", until the next action or NULL; and the stage named there, -1 for none or several.
void board_set_wait(Board *board, const char *what, int stage);
// Something got done inside an action. Any thread.
void board_progress(Board *board);
// The process lives. From one thread.
void board_beat(Board *board);
void board_read_own(const Board *board, BoardPage *page);
// Whether a parent reads this board.
bool board_shared(const Board *board);
// The exit code this rank ends with, and why. True: the parent will print it; false: it is the caller's to print. The
// first report of a rank stands.
bool board_report(Board *board, int code, const char *text);
// For return from main: reports `code` where nothing was reported yet, and says what to hand to the launcher. With a
// parent at the board that is 0 and mpirun ends quietly and at once; without one it is the code.
int board_leave(Board *board, int code);

// --- both
int board_ranks(const Board *board);
int board_read(const Board *board, int rank, BoardPage *page); // -1: no such page
void board_close(Board *board);                                // the file stays

#ifdef __cplusplus
}
#endif

#endif
