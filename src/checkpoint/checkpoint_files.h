// Checkpoints as directories: their names, their manifests, and listing them.
//
// A checkpoint is a directory step_00000500 with a manifest.json. It is written under a hidden name and renamed once
// every byte is on the disk, so every directory named step_* is complete. The manifest lists every other file with its
// size and checksum and ends with a checksum of its own text, so that no byte of a checkpoint can change unnoticed.
#pragma once

#include "base/files.h"
#include "base/log.h"
#include "config/config.h"
#include "engine/step_guard.h"
#include "ranks/world.h"

enum { CHECKPOINT_PATH = FILE_PATH, CHECKPOINT_FILE = FILE_NAME };

#define CHECKPOINT_MANIFEST "manifest.json"
#define CHECKPOINT_CONFIG   "config.json" // Hugging Face's description of the model
#define CHECKPOINT_INDEX    "model.safetensors.index.json"
#define CHECKPOINT_TRAINING "training.json" // our own description of the run
#define CHECKPOINT_LOCK     ".lock"         // in checkpoint.dir while a run saves there

// Suffix of the hidden name of a checkpoint that is being replaced, if the file system cannot swap two names at once.
#define CHECKPOINT_REPLACED ".replaced"

// Writes the path DIR/step_00000500; with `partial`, the hidden path under which the checkpoint is written.
int checkpoint_path(char path[CHECKPOINT_PATH], const char *dir, int64_t step, bool partial, Error *err);

// Returns whether a file's name ends in `end`.
bool name_ends_with(const char *name, const char *end);

// --- manifests

typedef struct ManifestFile {
    char name[CHECKPOINT_FILE];
    int64_t bytes;
    uint64_t crc; // CRC-64/XZ
} ManifestFile;

typedef struct Manifest {
    int64_t step;
    uint64_t run;     // random id of the run that saved the checkpoint; 0: written by a version without run ids
    int64_t sequence; // grows with every checkpoint of a folder, even if a run returns to an earlier step; 0: missing
    ManifestFile *file;
    int64_t count;
} Manifest;

int manifest_write(const Manifest *manifest, const char *dir, Error *err);
enum { MANIFEST_UNREAD = -2 };
// Reads a manifest. -1 with err if it is missing, torn or changed; MANIFEST_UNREAD with err if it exists but the disk
// cannot read it. Call manifest_free in all cases.
int manifest_read(Manifest *manifest, const char *dir, Error *err);
void manifest_free(Manifest *manifest);
// Checks a checkpoint's manifest and, in several threads, the sizes and checksums of this rank's share of the files. -1
// with err that names the first missing or damaged file. world: notified of progress; may be NULL.
int checkpoint_verify(const char *dir, int rank, int ranks, World *world, Error *err);

// The contents of training.json: how far a run has progressed.
typedef struct TrainingState {
    uint64_t run; // run and sequence: must equal the manifest's
    int64_t sequence;
    int64_t step;
    int64_t samples; // samples read so far, over all epochs; also the position of the next sample
    int64_t tokens;  // tokens in `samples`, set by training_state_read; -1: missing in the file
    int64_t seed;
    uint64_t data;     // identity of the training data (blend.h); 0: written by a version without it
    uint64_t products; // checksum of hardware.products_file; 0: none
    StepGuard step_guard;
} TrainingState;

void training_state_write(const Config *config, const TrainingState *state, FILE *file);
int training_state_read(TrainingState *state, const char *dir, Error *err);

// --- directories

// Writes a new file of `bytes` bytes and flushes it to the disk. First removes an existing file of that name. -1 with
// err, also if `dir` is a symbolic link.
int file_write(const char *dir, const char *name, const void *data, int64_t bytes, Error *err);
// Opens a directory; -1 with err, also if `path` is a symbolic link.
int directory_open(const char *path, Error *err);
// Creates a directory and its parents, if they do not exist. -1 with err.
int directory_make(const char *path, Error *err);
// Renames the complete checkpoint `partial` to `path`. If `path` exists, removes the old directory if `replace` is
// true; otherwise renames the old directory to "NAME.kept" ("NAME.kept2" and so on if that name is taken). -1 with err.
int directory_publish(const char *partial, const char *path, bool replace, Error *err);

typedef struct CheckpointName {
    char name[48]; // name of the directory; hidden if a run ended while this checkpoint was being replaced
    int64_t step;
    uint64_t run; // run and sequence: from the manifest
    int64_t sequence;
    bool complete; // true: the manifest can be read
} CheckpointName;

// Lists the checkpoints in `dir`: first those without a readable manifest, then the complete ones, newest first by
// sequence and then by step. A directory that does not exist has no checkpoints. -1 with err if the disk cannot read
// the directory or a manifest. The caller frees the list in both cases.
int checkpoint_list(const char *dir, CheckpointName **list, int64_t *count, Error *err);
// Finds the newest complete checkpoint in `dir`, as far as the disk can read it; step -1 and sequence 0: none. A run's
// checkpoints have higher numbers than all checkpoints that existed when it began, which may belong to another
// run. -1 with err as checkpoint_list.
int checkpoint_newest(const char *dir, CheckpointName *newest, Error *err);
// The checkpoints that a resume passed over, because they are damaged or the run went back to an earlier one: those
// with sequence numbers above `after`, up to `last`.
typedef struct PassedOver {
    int64_t after, last;
} PassedOver;

// Removes the complete checkpoints of `run` that `config` does not keep, but never the checkpoint named `newest`. Those
// passed over count as the oldest: else the first save after a resume could remove the intact checkpoint that the run
// resumed from. With config->overwrite, also removes complete checkpoints of other runs. Ignores a checkpoint that it
// cannot remove.
void checkpoint_prune(const CheckpointConfig *config, uint64_t run, const char *newest, PassedOver passed);
// Removes checkpoints that an earlier run left half written or half removed. Restores the name of a checkpoint that was
// being replaced, unless its replacement is complete.
void checkpoint_sweep(const char *dir);
void directory_remove(const char *path);

// --- finding a checkpoint to resume from, and refusing starts that would endanger another run's checkpoints
//
// Every checkpoint belongs to a run. The run's id is a random number in the manifest, drawn when a run starts and kept
// when it resumes in the same folder. A run that resumes in another folder is a new run. Within a folder, the newest
// checkpoint has the largest sequence number. No decision depends on a clock.

typedef struct Candidates {
    int64_t count;    // number of candidates
    int64_t complete; // number of candidates with a readable manifest, all of one run
    // (count), in the order tried: damaged ones (reported and skipped), then newest to oldest. A single name "" is the
    // directory itself.
    CheckpointName *names;
} Candidates;

// Lists the checkpoints in `dir` that a run can resume from; a missing directory has no checkpoints. any_run: if `dir`
// has checkpoints of several runs, lists those of the run that saved last. Without `any_run`, several runs are an
// error. if_any: errors name --resume-if-any instead of --resume. -1 with err: code 2 for several runs or for a model
// without a training state; code 1 if reading a checkpoint fails. The caller frees the names.
int candidates_find(Candidates *candidates, const char *dir, bool any_run, bool if_any, Error *err);

// Returns the option that named the directory: --resume or --resume-if-any.
const char *resume_option(bool if_any);

// Returns whether both paths lead to one file or directory that exists.
bool same_file(const char *a, const char *b);
// Returns whether `checkpoint` (a checkpoint's directory) is in `dir`.
bool checkpoint_lies_in(const char *checkpoint, const char *dir);

// Draws a random number for a new run, never 0.
uint64_t run_id_draw(void);

// checkpoint_check_resume refuses (code 2) a start without a checkpoint to resume from. checkpoint_check_dir refuses a
// start that would write among another run's checkpoints. Both only read. resume: a checkpoint or a directory of
// checkpoints; may be NULL. if_any: a missing checkpoint is not an error. trains: the error suggests --resume-if-any.
int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err);
int checkpoint_check_dir(const Config *config, const char *resume, Error *err);
