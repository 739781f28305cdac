// Which checkpoints a directory offers to a run that goes on, and which starts are refused because they would cost
// another run its checkpoints.
//
// A checkpoint belongs to a run: a random number in its manifest, drawn where a run starts and kept where it goes on in
// the same folder. A run that goes on in another folder is a new one. Within a folder a sequence number that only grows
// says which checkpoint is the newest. No clock decides anything.
#ifndef CHECKPOINT_FIND_H
#define CHECKPOINT_FIND_H

#include "checkpoint_files.h"
#include "config/config.h"

typedef struct Candidates {
    bool itself;   // the directory is a checkpoint; names is NULL and count 1
    int64_t count; // in the order in which they are tried: damaged ones, which are only told of, then the newest first
    int64_t complete;      // those of them with a readable manifest, all of one run
    CheckpointName *names; // (count)
} Candidates;

// What `dir` offers. any_run: of several runs the one that saved last counts; otherwise several are an error. -1 with
// err (code 2), also where `dir` is a model without a training state. candidates_free in both cases. A directory that
// is not there offers nothing.
int candidates_find(Candidates *candidates, const char *dir, bool any_run, Error *err);
void candidates_free(Candidates *candidates);

// True if `checkpoint` (a checkpoint's directory) lies in `dir`.
bool checkpoint_lies_in(const char *checkpoint, const char *dir);

// A random number for a new run, never 0.
uint64_t run_id_draw(void);

// Refuses, with code 2, a start that finds no checkpoint to go on from, or that would write among another run's
// checkpoints. resume: a checkpoint or a directory of them, NULL: none. if_any: finding none is no error. trains: a run
// without a checkpoint could start at step 0. These two only read.
int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err);
int checkpoint_check_dir(const Config *config, const char *resume, Error *err);

#endif
