// Finds the checkpoints that a run can resume from, and refuses starts that would endanger another run's checkpoints.
//
// Every checkpoint belongs to a run. The run's id is a random number in the manifest, drawn when a run starts and kept
// when it resumes in the same folder. A run that resumes in another folder is a new run. Within a folder, the newest
// checkpoint has the largest sequence number. No decision depends on a clock.
#pragma once

#include "checkpoint_files.h"
#include "config/config.h"

typedef struct Candidates {
    bool itself;           // true: the directory is a checkpoint; names is NULL, count and complete are 1
    int64_t count;         // number of candidates
    int64_t complete;      // number of candidates with a readable manifest, all of one run
    CheckpointName *names; // (count), in the order tried: damaged ones (reported and skipped), then newest to oldest
} Candidates;

// Lists the checkpoints in `dir` that a run can resume from; a missing directory has no checkpoints. any_run: if `dir`
// has checkpoints of several runs, lists those of the run that saved last. Without `any_run`, several runs are an
// error. if_any: errors name --resume-if-any instead of --resume. -1 with err: code 2 for several runs or for a model
// without a training state; code 1 if the disk cannot read a checkpoint. Call candidates_free in both cases.
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

// checkpoint_check_resume refuses (code 2) a start without a checkpoint to resume from. checkpoint_check_dir refuses a
// start that would write among another run's checkpoints. Both only read. resume: a checkpoint or a directory of
// checkpoints; may be NULL. if_any: a missing checkpoint is not an error. trains: the error suggests --resume-if-any.
int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err);
int checkpoint_check_dir(const Config *config, const char *resume, Error *err);
