// Checkpoints: saving while training goes on, and resuming from one with any other layout of ranks.
//
// Saving. At a step's end every rank copies its part into host memory; training waits only for this copy. A thread of
// each rank then writes the rank's parts into files that are split by layer (checkpoint_layout.h), at their offsets, so
// no rank ever gathers a model. Ranks that share a file add up its checksum without reading it again (crc64.h). The
// threads never communicate: at every step's end the ranks ask whether all threads are done, and then rank 0's thread
// writes the manifest and gives the directory its name (checkpoint_files.h). If something fails, the run says so and
// training goes on; the next checkpoint is a new attempt.
//
// Loading. Ranks share the work of checking every byte, then each reads the parts it holds.
#pragma once

#include "checkpoint_files.h"
#include "engine/step_guard.h"
#include "engine/stage.h"
#include "ranks/world.h"

// Where a resumed run continues.
typedef struct ResumePoint {
    bool found;
    char dir[CHECKPOINT_PATH]; // the checkpoint that was taken
    uint64_t run;              // the run it belongs to
    int64_t step, samples;
    int64_t seed;
    uint64_t data;        // identity of the data; the caller of checkpoint_create sets that of this run
    StepGuard step_guard; // a fresh guard if the checkpoint lacks it
} ResumePoint;

// --- saving

typedef struct Checkpoint Checkpoint;

// Returns the bytes of host memory that a rank with these states keeps for the copy (an upper bound, exact but for
// padding): its share of the weights and its optimizer states. 0 if nothing is saved at intervals.
int64_t checkpoint_copy_bytes(const Config *config, const StateBytes *rank);
// Returns the bytes of host memory for the threads that write it.
int64_t checkpoint_buffer_bytes(const Config *config);

// A run's checkpoints begin in two parts, both collective. The choice of where to resume lies between them: without the
// lock another run could save or remove a checkpoint after this run has chosen one.

// Locks checkpoint.dir if it exists, and with `make` creates it first. Otherwise a new folder is created once all is
// loaded, so that a failed start leaves no folder. The caller then checks the folders again and chooses. Sets
// *checkpoint to NULL if checkpoint.dir is empty. -1 with err, also if another run holds the lock for some seconds;
// checkpoint_destroy in both cases.
int checkpoint_lock(Checkpoint **checkpoint, const Config *config, World *world, bool make, Error *err);
// Creates and locks checkpoint.dir if it did not exist, removes half-written files of an earlier run, and allocates the
// copy. Accepts NULL. from: where the run continues. If that is in checkpoint.dir, the checkpoints there are this run's
// and count towards checkpoint.keep; otherwise a new run begins. Checkpoints of another run are removed only if
// checkpoint.overwrite says so, and then only after this run's first one is complete. -1 with err.
int checkpoint_create(Checkpoint *checkpoint, Stage *stage, const ResumePoint *from, const Log *log, Error *err);
// Ends a write in progress; the next run removes the incomplete files.
void checkpoint_destroy(Checkpoint *checkpoint);

// All of these are collective and accept NULL for no checkpoints. -1 with err only if ranks cannot reach each other: a
// checkpoint that cannot be written is reported on stderr and is not an error.

// Copies the state after `step`, when `samples` samples had been taken from the data, and starts writing. Waits for the
// previous checkpoint.
int checkpoint_save(Checkpoint *checkpoint, int64_t step, int64_t samples, const StepGuard *step_guard, Error *err);
// Advances a write in progress; call at every step's end.
int checkpoint_poll(Checkpoint *checkpoint, Error *err);
// Waits until no write is in progress.
int checkpoint_finish(Checkpoint *checkpoint, Error *err);

// Returns the step of the newest checkpoint that this run completed, or -1.
int64_t checkpoint_saved(const Checkpoint *checkpoint);

// --- loading

// Resumes from `dir`, a checkpoint or a directory of checkpoints, of which it takes the newest intact one. Says which
// one it took, and why it skipped newer ones. found is false if there is no complete one: training starts at step 0. -1
// with err if there are only damaged ones, if it is another model's, or if a tensor is missing. if_any: errors name
// --resume-if-any instead of --resume. Call checkpoint_check_resume first.
int checkpoint_resume(ResumePoint *point, const char *dir, bool if_any, Stage *stage, World *world, const Log *log,
                      Error *err);

// Loads only weights, from a model as transformers saves it: model.safetensors, or an index with its files; fp32, bf16
// or fp16.
int checkpoint_init_from(const char *dir, Stage *stage, World *world, const Log *log, Error *err);
