// Checkpoints as directories: their names, their manifests, and listing them.
//
// A checkpoint is a directory step_00000500 with a manifest.json. It is written under a hidden name and gets its own by
// one rename once every byte is on the disk, so whatever has such a name is complete. The manifest lists every other
// file with its size and checksum and ends with a checksum of its own text, so that no byte of a checkpoint can change
// unnoticed.
#pragma once

#include "base/files.h"
#include "base/log.h"
#include "config/config.h"
#include "engine/step_guard.h"
#include "ranks/world.h"

#include <stdbool.h>
#include <stdint.h>

enum { CHECKPOINT_PATH = FILE_PATH, CHECKPOINT_FILE = FILE_NAME };

#define CHECKPOINT_MANIFEST "manifest.json"
#define CHECKPOINT_CONFIG   "config.json" // Hugging Face's description of the model
#define CHECKPOINT_INDEX    "model.safetensors.index.json"
#define CHECKPOINT_TRAINING "training.json" // our own of the run

// Ends the hidden name of a checkpoint that is being replaced, on file systems that cannot exchange two names at once.
#define CHECKPOINT_REPLACED ".replaced"

// Writes "DIR/NAME". -1 with err if it is too long.
int path_join(char path[CHECKPOINT_PATH], const char *dir, const char *name, Error *err);

// Writes DIR/step_00000500, or the hidden name under which it is written.
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
    uint64_t run; // the run it belongs to: a random number. 0: written by a version without run ids
    int64_t
        sequence;  // grows with every checkpoint of a folder, even if a run goes back to an earlier step. 0: as above
    int64_t saved; // nanoseconds since 1970, for people: clocks may go back, so no decision uses it
    ManifestFile *file;
    int64_t count;
} Manifest;

int manifest_write(const Manifest *manifest, const char *dir, Error *err);
enum { MANIFEST_UNREAD = -2 };
// Reads a manifest. -1 with err that gives the reason: missing, torn, changed; MANIFEST_UNREAD if it is there and the
// disk fails to read it. manifest_free in all cases.
int manifest_read(Manifest *manifest, const char *dir, Error *err);
void manifest_free(Manifest *manifest);
// Checks a checkpoint: its manifest, and in several threads the sizes and checksums of this rank's share of the files.
// -1 with err that names the first file that is not as it was written. world: informed of progress; may be NULL.
int checkpoint_verify(const char *dir, int rank, int ranks, World *world, Error *err);

// How far a run had come: training.json.
typedef struct TrainingState {
    uint64_t run; // run and sequence: from the manifest
    int64_t sequence;
    int64_t step;
    int64_t samples; // taken from the endless sequence of epochs: position of the next one
    int64_t tokens;  // in these samples; -1: not written
    int64_t seed;
    uint64_t data; // identity of the training data (blend.h); 0: written by a version without it
    StepGuard step_guard;
} TrainingState;

void training_state_write(const Config *config, const TrainingState *state, FILE *file);
int training_state_read(TrainingState *state, const char *dir, Error *err);

// --- directories

// Writes `bytes` bytes into a new file, down to the disk. Anything with that name is removed first, and `dir` must not
// be a symbolic link.
int file_write(const char *dir, const char *name, const void *data, int64_t bytes, Error *err);
// Returns the bytes of a file after opening it, because a network file system may remember an old size of files that
// other hosts write. 0 if it does not exist.
int64_t file_size(const char *dir, const char *name);
// Creates a directory in an existing one, unless another rank has, and opens it; -1 with err, also if the name is a
// symbolic link's.
int directory_open_new(const char *path, Error *err);
// Creates a directory and those above it, if they do not exist.
int directory_make(const char *path, Error *err);
// Returns -1 with err if nothing can be written into it, as on a disk that is mounted read-only.
int directory_check_writable(const char *path, Error *err);
// Locks the directory for this process until *lock is closed; *lock is -1 if the file system has no locks. -1 with err
// if another process holds it for some seconds.
int directory_lock(const char *path, int *lock, Error *err);
// Gives a complete checkpoint its name. A directory that had the name is removed afterwards if `replace` is set;
// otherwise it is kept as "NAME.kept", with a number if that is taken.
int directory_publish(const char *partial, const char *path, bool replace, Error *err);

// One checkpoint of a directory.
typedef struct CheckpointName {
    char name[48]; // name of the directory; hidden if a run ended while this checkpoint was being replaced
    int64_t step;
    uint64_t run; // run and sequence: from the manifest
    int64_t sequence;
    bool complete; // its manifest can be read
} CheckpointName;

// Lists the checkpoints in `dir`: those without a readable manifest first, then the newest first, by sequence and then
// by step. A directory that does not exist has no checkpoints. -1 with err if the disk fails to read it or a manifest;
// the list then has the others.
int checkpoint_list(const char *dir, CheckpointName **list, int64_t *count, Error *err);
// Removes the complete checkpoints of `run` that `config` does not keep, and never the one called `newest`. With
// config->overwrite removes those of other runs too. A checkpoint that cannot be removed stays.
void checkpoint_prune(const CheckpointConfig *config, uint64_t run, const char *newest);
// Removes files that an earlier run left half written or half removed. A checkpoint that was being replaced gets its
// name back unless the new one is complete.
void checkpoint_sweep(const char *dir);
void directory_remove(const char *path);
