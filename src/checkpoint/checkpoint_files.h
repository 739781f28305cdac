// Checkpoints as directories: their names, their manifests, and which are there.
//
// A checkpoint is a directory step_00000500 that holds manifest.json. It is written under a hidden name and gets its
// own by one rename once every byte is on the disk, so what has the name is complete. The manifest lists every other
// file with its size and checksum and ends with a checksum of its own text: no byte of a checkpoint can change without
// being noticed.
#ifndef CHECKPOINT_FILES_H
#define CHECKPOINT_FILES_H

#include "base/crc64.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

enum { CHECKPOINT_PATH = 1024, CHECKPOINT_FILE = 128 };

#define CHECKPOINT_MANIFEST "manifest.json"

// "DIR/NAME". -1 with err where that is too long.
int path_join(char path[CHECKPOINT_PATH], const char *dir, const char *name, Error *err);

// DIR/step_00000500, and the hidden name it is written under.
int checkpoint_path(char path[CHECKPOINT_PATH], const char *dir, int64_t step, Error *err);
int checkpoint_partial_path(char path[CHECKPOINT_PATH], const char *dir, int64_t step, Error *err);

// Path of a file that an index or a manifest in `dir` names. Refused: names with a slash, "..", hidden names, and links
// that lead out of the directory (except for the store of a Hugging Face cache beside it).
int checkpoint_file_path(char path[CHECKPOINT_PATH], const char *dir, const char *name, Error *err);

// --- manifests

typedef struct ManifestFile {
    char name[CHECKPOINT_FILE];
    int64_t bytes;
    uint64_t crc; // CRC-64/XZ
} ManifestFile;

typedef struct Manifest {
    int64_t step;
    uint64_t run; // the run it belongs to: a random number. 0: written before runs had one
    int64_t
        sequence; // grows with every checkpoint of a folder, also where a run goes back to an earlier step. 0: as above
    int64_t saved; // nanoseconds since 1970, for people: clocks go back, so nothing is decided by it
    ManifestFile *file;
    int64_t count;
} Manifest;

// The number of a run in a manifest or a training state; 0 where there is none. -1 where it is something else.
struct JsonValue;
int run_id_read(uint64_t *run, const struct JsonValue *root);

int manifest_write(const Manifest *manifest, const Crc64 *crc, const char *dir, Error *err);
// -1 with err that names what is wrong: not there, torn, changed. manifest_free in both cases.
int manifest_read(Manifest *manifest, const Crc64 *crc, const char *dir, Error *err);
void manifest_free(Manifest *manifest);
// Reads a whole file and compares size and checksum.
int manifest_check(const ManifestFile *file, const Crc64 *crc, const char *dir, Error *err);
// All of it: the manifest and every file. -1 with err that names the first file that is not as it was written.
int checkpoint_verify(const char *dir, Error *err);

// --- directories

// Writes `bytes` bytes into a new file, down to the disk. What has its name is removed first, and `dir` may be no
// symbolic link.
int file_write(const char *dir, const char *name, const void *data, int64_t bytes, Error *err);
// Bytes of a file, opened for it: what a network file system remembers of other hosts' files may be old. 0 where it is
// not there.
int64_t file_size(const char *dir, const char *name);
// Makes a directory in one that is there, if no other rank has, and opens it; -1 with err, also where its name is a
// symbolic link's.
int directory_open_new(const char *path, Error *err);
// Makes a directory and those above it; none of them has to be new.
int directory_make(const char *path, Error *err);
// -1 with err where nothing can be written into it, as on a disk that is mounted read-only.
int directory_check_writable(const char *path, Error *err);
// Takes the directory for this process until *lock is closed; *lock is -1 where the file system knows no locks. -1 with
// err where another process has it and keeps it for some seconds.
int directory_lock(const char *path, int *lock, Error *err);
int directory_sync(const char *path, Error *err);
// Gives a complete checkpoint its name. What had the name before is removed afterwards if `replace` says so; otherwise
// it is kept as "NAME.kept", with a number where that is taken.
int directory_publish(const char *partial, const char *path, bool replace, Error *err);

// One checkpoint of a directory.
typedef struct CheckpointName {
    char name[48]; // of the directory; hidden where a run ended while this checkpoint gave its name to another
    int64_t step;
    uint64_t run; // this and the next: of the manifest
    int64_t sequence;
    bool complete; // its manifest can be read
} CheckpointName;

// What `dir` holds: those without a readable manifest first, then the newest first, by sequence and then by step. A
// directory that is not there holds none.
int checkpoint_list(const char *dir, const Crc64 *crc, CheckpointName **list, int64_t *count, Error *err);
// Removes the complete checkpoints of `run` but the `keep` newest, and never the one called `newest`. others: removes
// all that is not of this run too. What cannot be removed stays.
int checkpoint_prune(const char *dir, const Crc64 *crc, uint64_t run, int64_t keep, const char *newest, bool others);
// Removes what an earlier run left half written or half removed. A checkpoint that was to be replaced and has not been
// gets its name back.
void checkpoint_sweep(const char *dir);
void directory_remove(const char *path);

#endif
