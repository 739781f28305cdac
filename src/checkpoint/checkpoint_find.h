// Which checkpoints a directory offers to a run that resumes, and which starts are refused because they would cost
// another run its checkpoints.
//
// A checkpoint belongs to a run: a random number in its manifest, drawn when a run starts and kept when it resumes in
// the same folder. A run that resumes in another folder is a new one. Within a folder a sequence number that only grows
// says which checkpoint is the newest. No clock decides anything.
#pragma once

#include "checkpoint_files.h"
#include "config/config.h"

typedef struct Candidates {
    bool itself;   // the directory is a checkpoint; names is NULL and count 1
    int64_t count; // in the order in which they are tried: damaged ones, which are only reported, then the newest first
    int64_t complete;      // those with a readable manifest, all of one run
    CheckpointName *names; // (count)
} Candidates;

// Lists the checkpoints that `dir` offers. any_run: if it holds several runs, the one that saved last counts; otherwise
// several are an error. if_any: errors name --resume-if-any instead of --resume. -1 with err (code 2), also if `dir` is
// a model without a training state, and (code 1) if the disk fails to read a checkpoint. candidates_free in both cases.
// A directory that does not exist offers nothing.
int candidates_find(Candidates *candidates, const char *dir, bool any_run, bool if_any, Error *err);
void candidates_free(Candidates *candidates);

// Returns the option that named the directory: --resume or --resume-if-any.
const char *resume_option(bool if_any);

// Returns whether both paths lead to one directory that exists.
bool directory_same(const char *a, const char *b);
// Returns whether `checkpoint` (a checkpoint's directory) is in `dir`.
bool checkpoint_lies_in(const char *checkpoint, const char *dir);

// Draws a random number for a new run, never 0.
uint64_t run_id_draw(void);

// Refuse, with code 2, a start that finds no checkpoint to resume from, or that would write among another run's
// checkpoints. resume: a checkpoint or a directory of them, may be NULL. if_any: finding no checkpoint is not an error.
// trains: without a checkpoint the run could start at step 0. Both only read.
int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err);
int checkpoint_check_dir(const Config *config, const char *resume, Error *err);
