// Saving: the phases of a checkpoint, which all ranks pass together.
//
//   idle -- save: copy, start the thread --> writing -- all done --> committing (rank 0's thread) -- done --> idle
//
// The threads only touch files. Their results are exchanged by checkpoint_poll, which all ranks call at the same steps.
#include "checkpoint.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "hf_config.h"
#include "checkpoint_write.h"
#include "base/grid.h"
#include "base/threads.h"
#include "base/units.h"
#include "range_file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum SavePhase { SAVE_IDLE, SAVE_WRITING, SAVE_COMMITTING } SavePhase;

struct Checkpoint {
    const Config *config;
    World *world;
    Log log, all; // logs in the name of all ranks: `log` writes on every rank, `all` only on rank 0
    Writer writer;
    SavePhase phase;
    // The state being saved, or saved last. On rank 0, run is the id of this run, and sequence the largest number in
    // checkpoint.dir.
    TrainingState state;
    PassedOver passed;
    int64_t saved; // step of the newest complete checkpoint of this run, or -1
    FileLock lock; // rank 0's lock that keeps other runs from sweeping checkpoint.dir; no path: not taken yet
    char partial[CHECKPOINT_PATH], path[CHECKPOINT_PATH];
    Manifest manifest;     // manifest of all files, on rank 0
    HfTokenizer tokenizer; // written into every checkpoint by rank 0
    // --- the writing thread; the main thread reads its results once `ended` is set
    pthread_t thread;
    bool running;
    atomic_bool ended;
    double seconds; // time that the threads took for this checkpoint so far
    double copying; // seconds that training waited in the latest save: for the previous checkpoint, then for the copy
    Error failure;
};

enum { SMALL_FILES = 3 }; // config.json, the index, training.json: rank 0 writes them with its parts

static bool saves_(const Config *config) { return config->checkpoint.every > 0 && config->checkpoint.dir[0] != '\0'; }

int64_t checkpoint_copy_bytes(const Config *config, const StateBytes *rank) {
    if (!saves_(config)) return 0;
    int64_t element = config->train.precision == PRECISION_BF16 ? 2 : 4;
    return rank->owned * element + rank->masters + rank->moments;
}

int64_t checkpoint_buffer_bytes(const Config *config) {
    return saves_(config) ? (int64_t)WRITER_LANES * 2 * RANGE_FILE_STAGING
                          : 0; // per lane: transposed rows, and staging
}

// --- threads

static void thread_start_(Checkpoint *checkpoint, void *(*work)(void *)) {
    checkpoint->failure = (Error){0};
    atomic_store(&checkpoint->ended, false);
    checkpoint->running = thread_start(&checkpoint->thread, work, checkpoint);
    if (checkpoint->running) return;
    error_set(&checkpoint->failure, EXIT_FAILED, "cannot start the writing thread");
    atomic_store(&checkpoint->ended, true);
}

static void thread_join_(Checkpoint *checkpoint) {
    if (checkpoint->running) pthread_join(checkpoint->thread, NULL);
    checkpoint->running = false;
}

// --- writing: every rank's thread

static int write_memory_(Checkpoint *checkpoint, ManifestFile *entry, const HfFile *file, Error *err) {
    const Crc64 *crc = &checkpoint->writer.crc;
    strcpy(entry->name, file->name);
    entry->bytes = (int64_t)file->length;
    entry->crc = crc64_finish(crc, crc64_add(crc, 0, file->text, file->length), entry->bytes);
    return file_write(checkpoint->partial, file->name, file->text, entry->bytes, err);
}

// Writes this rank's parts, and on rank 0 the files that it makes in memory: config.json, the index, training.json and
// the tokenizer's files.
static void *write_(void *argument) {
    static const char *const names[SMALL_FILES] = {CHECKPOINT_CONFIG, CHECKPOINT_INDEX, CHECKPOINT_TRAINING};
    Checkpoint *checkpoint = argument;
    const HfTokenizer *tokenizer = &checkpoint->tokenizer;
    ManifestFile *entry = checkpoint->manifest.file + checkpoint->writer.layout.files;
    Error *failure = &checkpoint->failure;
    double start = clock_seconds();
    int status = writer_write(&checkpoint->writer, checkpoint->partial, failure);
    bool first = world_rank(checkpoint->world) == 0;
    for (int i = 0; i < SMALL_FILES && status == 0 && first; i++) {
        HfFile small = {.name = names[i]};
        FILE *file = xmemstream(&small.text, &small.length);
        if (i == 0) hf_config_write(checkpoint->config, tokenizer->end, file);
        if (i == 1) layout_write_index(&checkpoint->writer.layout, file);
        if (i == 2) training_state_write(checkpoint->config, &checkpoint->state, file);
        xmemstream_close(file);
        status = write_memory_(checkpoint, entry++, &small, failure);
        free(small.text);
    }
    for (int i = 0; i < tokenizer->count && status == 0 && first; i++)
        status = write_memory_(checkpoint, entry++, &tokenizer->file[i], failure);
    checkpoint->seconds = clock_seconds() - start;
    atomic_store(&checkpoint->ended, true);
    return NULL;
}

// --- committing: rank 0's thread

// Checks that this host sees the complete files of all ranks, which it does not if each host writes to its own disk. On
// a network file system, the size of a file that another host wrote may be outdated until this host opens the file.
static int check_sizes_(const Checkpoint *checkpoint, Error *err) {
    for (int64_t i = 0; i < checkpoint->manifest.count; i++) {
        const ManifestFile *file = &checkpoint->manifest.file[i];
        char path[CHECKPOINT_PATH];
        int64_t bytes = 0;
        int fd = file_join(path, checkpoint->partial, file->name, NULL) == 0 ? file_open(path, &bytes, NULL) : -1;
        if (fd >= 0) close(fd);
        if (bytes != file->bytes)
            return error_set(err, EXIT_FAILED,
                             "%s/%s has %lld bytes on this host, but %lld were written; checkpoint.dir must be on a "
                             "file system shared by all hosts, and nothing else may write there",
                             checkpoint->partial, file->name, (long long)bytes, (long long)file->bytes);
    }
    return 0;
}

static void *commit_(void *argument) {
    Checkpoint *checkpoint = argument;
    const CheckpointConfig *config = &checkpoint->config->checkpoint;
    double start = clock_seconds();
    Error *failure = &checkpoint->failure;
    // A checkpoint of the same name may be replaced if this run wrote it before returning to an earlier step, or with
    // checkpoint.overwrite. A directory without a readable manifest is never replaced: it may contain anything, or the
    // disk may have failed to read the manifest.
    Manifest there;
    bool readable = manifest_read(&there, checkpoint->path, NULL) == 0;
    bool replaces = readable && (there.run == checkpoint->state.run || config->overwrite);
    manifest_free(&there);
    if (check_sizes_(checkpoint, failure) == 0 &&
        manifest_write(&checkpoint->manifest, checkpoint->partial, failure) == 0 &&
        directory_publish(checkpoint->partial, checkpoint->path, replaces, failure) == 0) {
        world_saved(checkpoint->world);
        // Both calls ignore errors: a superfluous checkpoint does no harm. The sweep removes what failed attempts left,
        // for example while the disk was read-only. No rank is writing: all have finished.
        checkpoint_prune(config, checkpoint->state.run, strrchr(checkpoint->path, '/') + 1, checkpoint->passed);
        checkpoint_sweep(config->dir);
    }
    checkpoint->seconds += clock_seconds() - start;
    atomic_store(&checkpoint->ended, true);
    return NULL;
}

// Collective: gathers all ranks' shares on rank 0, combines the lengths and checksums of each file, and starts rank 0's
// thread, which commits, unless a length shows that bytes were not written.
static int start_commit_(Checkpoint *checkpoint, Error *err) {
    const Writer *writer = &checkpoint->writer;
    int ranks = world_size(checkpoint->world), files = writer->layout.files;
    bool first = world_rank(checkpoint->world) == 0;
    WriteShare *all = first ? xcalloc((size_t)ranks * (size_t)files, sizeof *all) : NULL;
    int status = world_gather(checkpoint->world, all, writer->shares, files * (int64_t)sizeof *all, err);
    Manifest *manifest = &checkpoint->manifest;
    const TrainingState *state = &checkpoint->state;
    *manifest = (Manifest){state->step, state->run, state->sequence, manifest->file, manifest->count};
    for (int f = 0; f < files && first && status == 0; f++) {
        const LayoutFile *file = &writer->layout.file[f];
        WriteShare whole = {0, 0};
        for (int r = 0; r < ranks; r++) {
            whole.raw ^= all[r * files + f].raw;
            whole.bytes += all[r * files + f].bytes;
        }
        ManifestFile *entry = &manifest->file[f];
        strcpy(entry->name, file->name);
        entry->bytes = file->bytes;
        entry->crc = crc64_finish(&writer->crc, whole.raw, file->bytes);
        if (whole.bytes != file->bytes)
            error_set(&checkpoint->failure, EXIT_FAILED, "%s: %lld bytes were written, not %lld", file->name,
                      (long long)whole.bytes, (long long)file->bytes);
    }
    if (status == 0 && first && checkpoint->failure.code == 0) thread_start_(checkpoint, commit_);
    free(all);
    checkpoint->phase = SAVE_COMMITTING;
    return status;
}

// --- starting, polling and finishing a save

static int end_failed_(Checkpoint *checkpoint, Error *err) {
    const char *dir = checkpoint->config->checkpoint.dir, *why = checkpoint->failure.text;
    CheckpointName newest;
    char earlier[CHECKPOINT_PATH + 64] = "earlier checkpoints are unchanged";
    world_agree(checkpoint->world, &checkpoint->failure, &checkpoint->failure);
    checkpoint->phase = SAVE_IDLE;
    if (world_rank(checkpoint->world) == 0) directory_remove(checkpoint->partial);
    checkpoint_newest(dir, &newest, NULL);
    if (newest.step < 0) snprintf(earlier, sizeof earlier, "%s holds no earlier readable checkpoint", dir);
    if (checkpoint->failure.code == WRITER_BROKEN)
        return error_on_all(err, EXIT_FAILED,
                            "step %lld: %s, so it was not saved; %s (with train.skip_bad_steps above 0 the run would "
                            "continue)",
                            (long long)checkpoint->state.step, why, earlier);
    log_line(&checkpoint->all, "the checkpoint of step %lld could not be written: %s; %s",
             (long long)checkpoint->state.step, why, earlier);
    return 0;
}

int checkpoint_poll(Checkpoint *checkpoint, Error *err) {
    if (checkpoint == NULL || checkpoint->phase == SAVE_IDLE) return 0;
    bool ended = atomic_load(&checkpoint->ended);
    double count[2] = {ended, ended && checkpoint->failure.code != 0};
    if (world_sum(checkpoint->world, count, 2, err) != 0) return -1;
    if (count[0] < world_size(checkpoint->world)) return 0;
    thread_join_(checkpoint);
    if (count[1] > 0) return end_failed_(checkpoint, err);
    if (checkpoint->phase == SAVE_WRITING) {
        if (checkpoint->writer.strange[0] != '\0')
            log_line(&checkpoint->log, "step %lld is saved although %s", (long long)checkpoint->state.step,
                     checkpoint->writer.strange);
        return start_commit_(checkpoint, err);
    }
    char size[32];
    int64_t bytes = 0;
    for (int64_t i = 0; i < checkpoint->manifest.count; i++) bytes += checkpoint->manifest.file[i].bytes;
    checkpoint->phase = SAVE_IDLE;
    checkpoint->saved = checkpoint->state.step;
    world_saved(checkpoint->world);
    log_status(&checkpoint->all, "saved %s (%s, copied in %.1f s, written in %.1f s)", checkpoint->path,
               grid_bytes(bytes, size), checkpoint->copying, checkpoint->seconds);
    return 0;
}

int checkpoint_finish(Checkpoint *checkpoint, Error *err) {
    while (checkpoint != NULL && checkpoint->phase != SAVE_IDLE) {
        thread_join_(checkpoint); // so that the next poll finds this rank done
        if (checkpoint_poll(checkpoint, err) != 0) return -1;
    }
    return 0;
}

// --- checkpoint.dir: these functions are called on rank 0 only

static int lock_dir_(Checkpoint *checkpoint, Error *err) {
    const char *dir = checkpoint->config->checkpoint.dir;
    char path[CHECKPOINT_PATH], taken[CHECKPOINT_PATH + 128];
    Error wrong = {0};
    snprintf(taken, sizeof taken,
             "%s: another run is saving its checkpoints there; wait until it ends, or name another folder", dir);
    bool locked = directory_make(dir, &wrong) == 0 && file_join(path, dir, CHECKPOINT_LOCK, &wrong) == 0 &&
                  file_lock(&checkpoint->lock, path, taken, &wrong) == 0;
    return locked ? 0 : error_set(err, EXIT_FAILED, "checkpoint.dir: %s", wrong.text);
}

// Raises the sequence number to the largest number among the checkpoints in checkpoint.dir.
static int find_sequence_(Checkpoint *checkpoint, Error *err) {
    CheckpointName newest;
    int status = checkpoint_newest(checkpoint->config->checkpoint.dir, &newest, err);
    checkpoint->state.sequence = max_i64(checkpoint->state.sequence, newest.sequence);
    return status;
}

// Makes checkpoint.dir again if it was removed or moved since the last checkpoint, and clears the hidden name of the
// next one: the name is easy to guess, so another user may have put files there.
static int prepare_partial_(Checkpoint *checkpoint, Error *err) {
    const char *dir = checkpoint->config->checkpoint.dir;
    if (!file_locked(&checkpoint->lock)) {
        bool gone = access(dir, F_OK) != 0;
        file_unlock(&checkpoint->lock);
        if (lock_dir_(checkpoint, err) != 0 || find_sequence_(checkpoint, err) != 0) return -1;
        if (gone)
            log_line(&checkpoint->all,
                     "checkpoint.dir: %s was removed or moved; it was recreated and holds no earlier checkpoints", dir);
    }
    directory_remove(checkpoint->partial);
    return mkdir(checkpoint->partial, 0777) == 0 ? 0 : file_failed(checkpoint->partial, "created", err);
}

// --- saving

int checkpoint_save(Checkpoint *checkpoint, int64_t step, int64_t samples, const StepGuard *step_guard, Error *err) {
    if (checkpoint == NULL) return 0;
    const char *dir = checkpoint->config->checkpoint.dir;
    double start = clock_seconds();
    if (checkpoint_finish(checkpoint, err) != 0) return -1;
    double waited = clock_seconds() - start;
    if (waited > 1.0)
        log_line(&checkpoint->all,
                 "training waited %.1f s for the checkpoint of step %lld; increase checkpoint.every to avoid this",
                 waited, (long long)checkpoint->state.step);
    checkpoint->state.step = step;
    checkpoint->state.samples = samples;
    checkpoint->state.step_guard = *step_guard;
    checkpoint->phase = SAVE_WRITING;
    checkpoint->failure = (Error){0};
    Error *failure = &checkpoint->failure, mine = {0};
    if (checkpoint_path(checkpoint->path, dir, step, false, &mine) == 0 &&
        checkpoint_path(checkpoint->partial, dir, step, true, &mine) == 0 &&
        writer_allocate(&checkpoint->writer, &mine) == 0 && world_rank(checkpoint->world) == 0)
        prepare_partial_(checkpoint, &mine);
    if (world_agree(checkpoint->world, &mine, failure) != 0) {
        if (!failure->everywhere) return *err = *failure, -1;
        return atomic_store(&checkpoint->ended, true), 0; // the next poll reports the failure
    }
    checkpoint->state.sequence++;
    writer_copy(&checkpoint->writer);
    checkpoint->copying = clock_seconds() - start;
    thread_start_(checkpoint, write_);
    return 0;
}

int64_t checkpoint_saved(const Checkpoint *checkpoint) { return checkpoint == NULL ? -1 : checkpoint->saved; }

// --- setup and teardown

int checkpoint_lock(Checkpoint **out, const Config *config, World *world, bool make, Error *err) {
    *out = NULL;
    if (config->checkpoint.dir[0] == '\0') return 0;
    Checkpoint *checkpoint = *out = xcalloc(1, sizeof *checkpoint);
    *checkpoint = (Checkpoint){.config = config, .world = world, .saved = -1};
    Error answer = {0};
    if (world_rank(world) == 0 && (make || access(config->checkpoint.dir, F_OK) == 0)) lock_dir_(checkpoint, &answer);
    return world_agree(world, &answer, err);
}

int checkpoint_create(Checkpoint *checkpoint, Stage *stage, const ResumePoint *from, const Log *log, Error *err) {
    if (checkpoint == NULL) return 0;
    World *world = checkpoint->world;
    checkpoint->log = log_of_all(log);
    checkpoint->all = world_log(world, log);
    checkpoint->state.seed = checkpoint->config->train.seed;
    checkpoint->state.data = from->state.data;
    checkpoint->state.products = stage->be->products == NULL ? 0 : stage->be->products->checksum;
    writer_create(&checkpoint->writer, stage, world);
    Error answer = {0}, wrong = {0};
    const CheckpointConfig *config = &checkpoint->config->checkpoint;
    bool first = world_rank(world) == 0;
    // The folder was missing at checkpoint_lock. Since then, another run may have created it and saved in it. If this
    // run resumes, its checkpoint is in another folder.
    if (first && checkpoint->lock.path == NULL && lock_dir_(checkpoint, &answer) == 0)
        checkpoint_check_dir(checkpoint->config, NULL, &answer);
    if (first && answer.code == 0) {
        bool goes_on = from->found && checkpoint_lies_in(from->dir, config->dir);
        checkpoint->state.run = goes_on ? from->state.run : run_id_draw();
        if (find_sequence_(checkpoint, &wrong) == 0) checkpoint_sweep(config->dir);
        checkpoint->passed = (PassedOver){from->state.sequence, checkpoint->state.sequence};
        // Reports an unwritable folder now rather than hours later, at the first save.
        if (wrong.code == 0 && config->every > 0 && access(config->dir, W_OK | X_OK) != 0)
            file_failed(config->dir, "written to", &wrong);
        if (wrong.code != 0) error_set(&answer, EXIT_FAILED, "checkpoint.dir: %s", wrong.text);
    }
    // The other ranks wait until rank 0 has swept the directory they write to.
    if (world_agree(world, &answer, err) != 0) return -1;
    Manifest *manifest = &checkpoint->manifest;
    if (first && hf_tokenizer_load(&checkpoint->tokenizer, stage->config, &answer) != 0)
        log_line(&checkpoint->log, "checkpoints will have no tokenizer: %s", answer.text);
    manifest->count = checkpoint->writer.layout.files + SMALL_FILES + checkpoint->tokenizer.count;
    manifest->file = xcalloc((size_t)manifest->count, sizeof *manifest->file);
    // If nothing is saved at intervals, memory for the copy is only needed when the run is asked to stop.
    return stage->config->checkpoint.every > 0 ? writer_allocate(&checkpoint->writer, err) : 0;
}

void checkpoint_destroy(Checkpoint *checkpoint) {
    if (checkpoint == NULL) return;
    atomic_store(&checkpoint->writer.cancel, true);
    thread_join_(checkpoint);
    writer_free(&checkpoint->writer);
    manifest_free(&checkpoint->manifest);
    hf_tokenizer_free(&checkpoint->tokenizer);
    file_unlock(&checkpoint->lock);
    free(checkpoint);
}
