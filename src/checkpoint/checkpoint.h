// Checkpoints: saving while training goes on, and going on from one with any other layout of ranks.
//
// Saving. At a step's end every rank copies what it writes into host memory; the copy is all that training waits for. A
// thread of each rank then writes the rank's own parts into files that are split by layer (checkpoint_layout.h), at
// their offsets, so no rank ever gathers a model. Ranks that share a file add up its checksum without reading it again
// (crc64.h). The threads never talk to each other: the ranks ask at every step's end whether all are through, and then
// rank 0's thread writes the manifest and gives the directory its name (checkpoint_files.h). What fails is said, and
// training goes on; the next checkpoint is a new attempt.
//
// Loading. Ranks share the work of checking every byte, then each reads the parts it holds.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "checkpoint_files.h"
#include "engine/step_guard.h"
#include "engine/stage.h"
#include "ranks/world.h"

// Where a run goes on.
typedef struct ResumePoint {
    bool found;
    char dir[CHECKPOINT_PATH]; // the checkpoint that was taken
    uint64_t run;              // the run it belongs to
    int64_t step, samples;
    StepGuard step_guard; // of a checkpoint that has none: as at the start
} ResumePoint;

// --- saving

typedef struct Checkpoint Checkpoint;

// Bytes of host memory that a rank with these states keeps for the copy (an upper bound, equal but for padding): its
// share of the weights and its optimizer states. 0 where nothing is saved at intervals.
int64_t checkpoint_copy_bytes(const Config *config, const StateBytes *rank);
// And for the threads that write it.
int64_t checkpoint_buffer_bytes(const Config *config);

// Collective. Makes checkpoint.dir, removes what an earlier run left half written in it, and allocates the copy. Sets
// *checkpoint to NULL where checkpoint.dir is empty. from: where the run goes on. If that lies in checkpoint.dir, the
// checkpoints there are this run's and count towards checkpoint.keep; otherwise a new run begins. No checkpoint of
// another run is removed unless checkpoint.overwrite says so, and then only after this run's first one is complete. -1
// with err.
int checkpoint_create(Checkpoint **checkpoint, Stage *stage, World *world, const ResumePoint *from, const Log *log,
                      Error *err);
// Ends a write that is under way: what is not complete is left to the next run's sweep.
void checkpoint_destroy(Checkpoint *checkpoint);

// All of these are collective, and take NULL for no checkpoints. -1 with err only where ranks cannot reach each other:
// a checkpoint that cannot be written is said on stderr and is no error.

// Copies the state after `step`, which took `samples` samples from the data so far, and starts writing. Waits for the
// one before.
int checkpoint_save(Checkpoint *checkpoint, int64_t step, int64_t samples, const StepGuard *step_guard, Error *err);
// At every step's end: takes a write under way further.
int checkpoint_poll(Checkpoint *checkpoint, Error *err);
// Waits until nothing is under way.
int checkpoint_finish(Checkpoint *checkpoint, Error *err);

// Step of the newest checkpoint that this run completed, or -1.
int64_t checkpoint_saved(const Checkpoint *checkpoint);

// --- loading

// Goes on from `dir`, which is a checkpoint or a directory of checkpoints; of those the newest that is whole. Says
// which one it took, and what is wrong with newer ones. Not found: there is no complete one, training starts at step 0.
// -1 with err where there are only damaged ones, where it is another model's, or where a tensor is missing.
// checkpoint_check_resume comes before it.
int checkpoint_resume(ResumePoint *point, const char *dir, Stage *stage, World *world, const Log *log, Error *err);

// Weights alone, from a model as transformers saves it: model.safetensors, or an index with its files; fp32, bf16 or
// fp16.
int checkpoint_init_from(const char *dir, Stage *stage, World *world, const Log *log, Error *err);

#endif
