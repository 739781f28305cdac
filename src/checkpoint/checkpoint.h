// Checkpoints: saving while training continues, and resuming with any other layout of ranks.
//
// Saving. At a step's end every rank copies its part into host memory; training waits only for this copy. A thread of
// each rank then writes the rank's parts into files that are split by layer (checkpoint_layout.h), at their offsets, so
// no rank ever gathers a model. Ranks that share a file combine its checksum without reading it again (crc64.h). The
// threads never communicate. At the end of every step the ranks check whether all threads are done; then rank 0's
// thread writes the manifest and renames the directory to its final name (checkpoint_files.h). If writing fails, the
// run reports the error, training continues, and the next checkpoint is a new attempt.
//
// Loading. Ranks share the work of checking every byte, then each reads the parts it owns. The caller then gathers the
// weights over data ranks (optimizer_gather), whose links are faster than a file system.
#pragma once

#include "checkpoint_files.h"
#include "engine/stage.h"
#include "ranks/world.h"

// Where a resumed run continues.
typedef struct ResumePoint {
    bool found;
    char dir[CHECKPOINT_PATH]; // path of the checkpoint that was loaded
    TrainingState state;       // for checkpoint_create, `data` is the identity of this run's data
} ResumePoint;

// --- saving

typedef struct Checkpoint Checkpoint;

// Returns the bytes of host memory that a rank with these states needs for the copy: its share of the weights, and its
// optimizer states. Apart from padding, this is an upper bound: tensors that another rank writes are counted too. 0 if
// nothing is saved at intervals.
int64_t checkpoint_copy_bytes(const Config *config, const StateBytes *rank);
// Returns the bytes of host memory for the writer threads' buffers; 0 if nothing is saved at intervals.
int64_t checkpoint_buffer_bytes(const Config *config);

// A run sets up its checkpoints in two collective calls and chooses where to resume between the calls. Without the
// lock, another run could save or remove a checkpoint after this run has chosen one.

// Locks checkpoint.dir. make: creates the folder if it is missing. Without `make`, a missing folder stays unlocked
// until checkpoint_create creates it after loading, so that a failed start leaves no folder. After this call, the
// caller checks the checkpoints again and chooses one. Sets *checkpoint to NULL if checkpoint.dir is not set. -1 with
// err, also if another run still holds the lock after some seconds. Call checkpoint_destroy on success and on failure.
int checkpoint_lock(Checkpoint **checkpoint, const Config *config, World *world, bool make, Error *err);
// Creates and locks checkpoint.dir if it did not exist, removes half-written files of an earlier run, and allocates the
// copy. Accepts NULL. from: the resume point. If from->dir is in checkpoint.dir, this run keeps the id of the run that
// saved it, and that run's checkpoints count towards checkpoint.keep; otherwise it is a new run. With
// checkpoint.overwrite, removes other runs' checkpoints once this run's first checkpoint is complete. -1 with err.
int checkpoint_create(Checkpoint *checkpoint, Stage *stage, const ResumePoint *from, const Log *log, Error *err);
// Cancels a write in progress and frees the checkpoint; the next run removes the incomplete files.
void checkpoint_destroy(Checkpoint *checkpoint);

// The next three functions are collective and accept NULL (no checkpoints). A checkpoint that cannot be written is only
// logged. -1 with err if ranks cannot communicate, or if a saved value is not finite and train.skip_bad_steps is 0.

// Waits for the previous checkpoint, copies the state after `step` and starts writing it. samples: number read so far.
int checkpoint_save(Checkpoint *checkpoint, int64_t step, int64_t samples, const StepGuard *step_guard, Error *err);
// Advances a write in progress; call at every step's end.
int checkpoint_poll(Checkpoint *checkpoint, Error *err);
// Waits until no write is in progress.
int checkpoint_finish(Checkpoint *checkpoint, Error *err);

// Returns the step of the newest checkpoint that this run completed, or -1.
int64_t checkpoint_saved(const Checkpoint *checkpoint);

// --- loading

// Loads `dir` if it is a checkpoint, or else the newest intact checkpoint in `dir`. Logs the choice and why newer
// checkpoints were skipped. If there is no complete checkpoint, point->found is false and training starts at step 0. -1
// with err if all checkpoints are damaged, if the checkpoint is of another model, or if a tensor is missing. if_any:
// errors name --resume-if-any instead of --resume. Call checkpoint_check_resume first.
int checkpoint_resume(ResumePoint *point, const char *dir, bool if_any, Stage *stage, World *world, const Log *log,
                      Error *err);

// Loads only the weights of a model in the format of transformers: model.safetensors, or an index and its files, in
// fp32, bf16, fp16 or fp64. -1 with err.
int checkpoint_init_from(const char *dir, Stage *stage, World *world, const Log *log, Error *err);
