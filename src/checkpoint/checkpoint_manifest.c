// The small files of a checkpoint: manifest.json, which lists all other files, and training.json, which records how far
// a run has progressed. The manifest ends with a checksum of its own text, so a torn or edited manifest is refused.
// Also lists and removes the checkpoints of a folder by their manifests, and decides what a start may resume from.
#include "checkpoint_files.h"
#include "base/alloc.h"

#include "base/clock.h"
#include "base/crc64.h"
#include "base/files.h"
#include "base/json.h"
#include "base/json_out.h"
#include "base/threads.h"
#include "base/units.h"
#include "base/version.h"
#include "engine/optimizer.h"
#include "ranks/world.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MANIFEST_VERSION = 1 };

// Run ids, checksums and identities are written as texts of 16 hexadecimal digits.
static void put_hex_(JsonOut *out, const char *key, uint64_t value) {
    fprintf(json_put(out, key), "\"%016" PRIx64 "\"", value);
}

// Reads a number that put_hex_ wrote; 0 if it is missing, since earlier versions did not write all of them. Returns
// false if it is invalid.
static bool read_hex_(const JsonValue *object, const char *key, uint64_t *value) {
    const char *text = json_text(object, key, "0000000000000000");
    *value = strtoull(text, NULL, 16);
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

// Returns whether a count is plausible for a training run. Sums and products of larger counts could overflow.
static bool in_reach_(int64_t count) { return count >= 0 && count <= 1000000000000; }

int manifest_write(const Manifest *manifest, const char *dir, Error *err) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = xmemstream(&text, &length);
    JsonOut out = {.file = file, .tall = 2};
    json_begin(&out, NULL, '{');
    json_members(&out, "format %d step %jd", MANIFEST_VERSION, manifest->step);
    put_hex_(&out, "run", manifest->run);
    // The time is for people: clocks may jump back, so no decision uses it.
    json_members(&out, "sequence %jd saved %jd", manifest->sequence, clock_wall_ns());
    json_begin(&out, "files", '[');
    for (const ManifestFile *entry = manifest->file; entry < manifest->file + manifest->count; entry++) {
        json_begin(&out, NULL, '{');
        json_members(&out, "name %s bytes %jd", entry->name, entry->bytes);
        put_hex_(&out, "crc64", entry->crc);
        json_end(&out, '}');
    }
    json_end(&out, ']');
    json_seal(file, &text, &length);
    xmemstream_close(file);
    int status = file_write(dir, CHECKPOINT_MANIFEST, text, (int64_t)length, err);
    free(text);
    return status;
}

// --- reading

static int read_manifest_(Manifest *manifest, const JsonValue *root, const char *path, Error *err) {
    int64_t format = json_integer(root, "format", -1);
    const JsonValue *files = json_find(root, "files");
    if (format != MANIFEST_VERSION)
        return error_set(err, EXIT_FAILED, "%s: has format %" PRId64 "; this program reads format %d", path, format,
                         MANIFEST_VERSION);
    manifest->step = json_integer(root, "step", -1);
    manifest->sequence = json_integer(root, "sequence", 0);
    bool sound = read_hex_(root, "run", &manifest->run) && manifest->step >= 0 && in_reach_(manifest->sequence) &&
                 files != NULL && files->type == JSON_ARRAY;
    manifest->file = xcalloc(sound ? (size_t)files->count : 0, sizeof *manifest->file);
    for (const JsonValue *entry = sound ? files->first : NULL; entry != NULL && sound; entry = entry->next) {
        ManifestFile *file = &manifest->file[manifest->count++];
        const char *name = json_text(entry, "name", "");
        file->bytes = json_integer(entry, "bytes", -1);
        sound = read_hex_(entry, "crc64", &file->crc) && json_find(entry, "crc64") != NULL && file->bytes >= 0 &&
                name[0] != '\0' && strlen(name) < sizeof file->name;
        if (sound) strcpy(file->name, name);
    }
    if (sound) return 0;
    return error_set(err, EXIT_FAILED, "%s: an entry is missing or invalid; resume from another checkpoint", path);
}

int manifest_read(Manifest *manifest, const char *dir, Error *err) {
    memset(manifest, 0, sizeof *manifest);
    char path[CHECKPOINT_PATH];
    int64_t length = 0;
    if (file_path_within(path, dir, CHECKPOINT_MANIFEST, err) != 0) return -1;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return error_set(err, EXIT_FAILED, "%s: not found; the checkpoint is incomplete", path);
    char *text = file_read_whole(path, JSON_MAX_BYTES, &length, err);
    struct stat there; // a directory or an oversized file at `path` is damage, not a disk failure
    bool odd = stat(path, &there) == 0 && (!S_ISREG(there.st_mode) || there.st_size > JSON_MAX_BYTES);
    if (text == NULL) return odd ? -1 : MANIFEST_UNREAD;
    Json json = {0};
    int status = 0;
    if (!json_sealed(text, length))
        status = error_set(err, EXIT_FAILED, "%s: checksum mismatch: the file is truncated or was modified", path);
    if (status == 0) status = json_parse(&json, text, length, path, err);
    if (status == 0) status = read_manifest_(manifest, json.root, path, err);
    json_free(&json);
    free(text);
    return status;
}

void manifest_free(Manifest *manifest) {
    free(manifest->file);
    memset(manifest, 0, sizeof *manifest);
}

// --- checking

// The files that one rank checks: first, first + step, ...
typedef struct Checking {
    const Manifest *manifest;
    int64_t first, step;
    Crc64 crc;
    const char *dir;
    World *world;
} Checking;

static int check_file_(void *context, int lane, int64_t item, Error *err) {
    enum { PIECE = 4 << 20 };
    const Checking *c = context;
    const ManifestFile *file = &c->manifest->file[c->first + item * c->step];
    char path[CHECKPOINT_PATH];
    int64_t bytes = 0;
    (void)lane;
    if (file_path_within(path, c->dir, file->name, err) != 0) return -1;
    if (access(path, F_OK) != 0 && errno == ENOENT) return error_set(err, EXIT_FAILED, "%s: is missing", path);
    int fd = file_open(path, &bytes, err);
    if (fd < 0) return -1;
    char *piece = xmalloc(PIECE);
    uint64_t raw = 0;
    int status = 0;
    if (bytes != file->bytes)
        status = error_set(err, EXIT_FAILED, "%s: has %lld bytes, but %lld were written", path, (long long)bytes,
                           (long long)file->bytes);
    for (int64_t at = 0, count; at < bytes && status == 0; at += count) {
        count = min_i64(bytes - at, PIECE);
        status = file_read(fd, path, at, piece, count, err);
        if (status == 0) raw = crc64_add(&c->crc, raw, piece, (size_t)count);
        world_progress(c->world);
    }
    free(piece);
    close(fd);
    if (status == 0 && crc64_finish(&c->crc, raw, bytes) != file->crc)
        status = error_set(err, EXIT_FAILED, "%s: checksum mismatch; the file is damaged", path);
    return status;
}

int checkpoint_verify(const char *dir, int rank, int ranks, World *world, Error *err) {
    enum { LANES = 4 };
    Manifest manifest;
    Checking checking = {&manifest, rank, ranks, crc64_make(), dir, world};
    int status = manifest_read(&manifest, dir, err);
    if (status == 0)
        status = threads_each(LANES, (manifest.count - rank + ranks - 1) / ranks, check_file_, &checking, err);
    manifest_free(&manifest);
    return status;
}

// --- training.json: numbers are written with enough digits to read back bit for bit, because a resumed run must make
// the same decisions as an uninterrupted run

static int checkpoint_held_(const ZScore *window) {
    return window->seen < ZSCORE_WINDOW ? (int)window->seen : ZSCORE_WINDOW;
}

// Writes a window of losses or norms. 17 digits restore each value bit for bit. The values keep their order, so that a
// resumed run sums them in the same order.
static void write_window_(JsonOut *out, const char *key, const ZScore *window) {
    json_begin(out, key, '{');
    json_put_integer(out, "seen", window->seen);
    json_begin(out, "values", '[');
    for (int i = 0; i < checkpoint_held_(window); i++) fprintf(json_put(out, NULL), "%.17g", window->values[i]);
    json_end(out, ']');
    json_end(out, '}');
}

extern char **environ;

void training_state_write(const Config *config, const TrainingState *state, FILE *file) {
    const StepGuard *guard = &state->step_guard;
    JsonOut out = {.file = file, .tall = 1};
    json_begin(&out, NULL, '{');
    json_members(&out, "format %d version %s", 1, VERSION);
    put_hex_(&out, "run", state->run);
    json_members(&out, "sequence %jd step %jd samples %jd tokens %jd seed %jd", state->sequence, state->step,
                 state->samples, state->samples * config->model.seq_len, state->seed);
    json_members(&out, "skipped_updates %jd skipped_bad_steps %jd", guard->skipped, guard->bad);
    put_hex_(&out, "data", state->data);
    json_members(&out, "lr %.17g", optimizer_lr(&config->train, state->step));
    write_window_(&out, "loss_window", &guard->loss);
    write_window_(&out, "norm_window", &guard->norm);
    // NCCL chooses algorithms and channels by these variables, and so the order in which it sums.
    json_begin(&out, "nccl", '[');
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "NCCL_", 5) == 0) json_put_text(&out, NULL, *entry);
    json_end(&out, ']');
    if (state->products != 0) put_hex_(&out, "products", state->products);
    config_write_json(config, json_put(&out, "config"));
    json_end(&out, '}');
    fputc('\n', file);
}

// A missing window stays empty: checkpoints of earlier versions lack it.
static int read_window_(ZScore *window, const JsonValue *found) {
    const JsonValue *values = json_find(found, "values");
    int count = 0;
    if (found == NULL) return 0;
    window->seen = json_integer(found, "seen", -1);
    if (!in_reach_(window->seen) || values == NULL || values->type != JSON_ARRAY ||
        values->count != checkpoint_held_(window))
        return -1;
    for (const JsonValue *value = values->first; value != NULL; value = value->next) {
        if (value->type != JSON_NUMBER) return -1;
        window->values[count++] = value->number;
    }
    return 0;
}

int training_state_read(TrainingState *state, const char *dir, Error *err) {
    char path[CHECKPOINT_PATH];
    Json json = {0};
    int status = file_path_within(path, dir, CHECKPOINT_TRAINING, err) != 0 ? -1 : json_read_file(&json, path, err);
    const JsonValue *root = json.root;
    StepGuard *guard = &state->step_guard;
    *state = (TrainingState){.sequence = json_integer(root, "sequence", 0),
                             .step = json_integer(root, "step", -1),
                             .samples = json_integer(root, "samples", -1),
                             .tokens = json_integer(root, "tokens", -1),
                             .seed = json_integer(root, "seed", -1)};
    guard->skipped = json_integer(root, "skipped_updates", 0);
    guard->bad = json_integer(root, "skipped_bad_steps", 0);
    bool sound = read_hex_(root, "run", &state->run) && read_hex_(root, "data", &state->data) && state->seed >= 0 &&
                 in_reach_(state->step) && in_reach_(state->samples) && in_reach_(guard->skipped) &&
                 in_reach_(guard->bad) && read_window_(&guard->loss, json_find(root, "loss_window")) == 0 &&
                 read_window_(&guard->norm, json_find(root, "norm_window")) == 0;
    json_free(&json);
    if (status != 0 || sound) return status;
    return error_set(err, EXIT_FAILED, "%s: an entry is missing or invalid; resume from another checkpoint", path);
}

// --- the checkpoints of a folder

// Returns whether `name` is the hidden name of a checkpoint that was being replaced, and writes its original path to
// `back`: "DIR/step_00000500" for ".step_00000500.replaced".
static bool replaced_name_(char back[CHECKPOINT_PATH], const char *dir, const char *name) {
    if (strncmp(name, ".step_", 6) != 0 || !name_ends_with(name, CHECKPOINT_REPLACED)) return false;
    int length = (int)strlen(name + 1) - (int)strlen(CHECKPOINT_REPLACED);
    return snprintf(back, CHECKPOINT_PATH, "%s/%.*s", dir, length, name + 1) < CHECKPOINT_PATH;
}

static int newer_first_(const void *a, const void *b) {
    const CheckpointName *x = a, *y = b;
    if (x->complete != y->complete) return x->complete - y->complete;
    if (x->sequence != y->sequence) return x->sequence > y->sequence ? -1 : 1;
    return (x->step < y->step) - (x->step > y->step);
}

int checkpoint_list(const char *dir, CheckpointName **list, int64_t *count, Error *err) {
    *list = NULL;
    *count = 0;
    int status = 0;
    DIR *stream = opendir(dir);
    if (stream == NULL)
        return errno == ENOENT ? 0 : error_set(err, EXIT_FAILED, "%s: cannot be read: %s", dir, strerror(errno));
    for (struct dirent *entry; errno = 0, (entry = readdir(stream)) != NULL;) {
        char path[CHECKPOINT_PATH], back[CHECKPOINT_PATH];
        Manifest manifest = {0};
        // The hidden name of a replaced checkpoint counts only if its original path is free.
        bool replaced = replaced_name_(back, dir, entry->d_name);
        const char *name = replaced ? strrchr(back, '/') + 1 : entry->d_name, *step = name + strlen("step_");
        size_t digits = strncmp(name, "step_", 5) == 0 ? strspn(step, "0123456789") : 0;
        if (digits < 8 || digits > 18 || step[digits] != '\0' || (replaced && access(back, F_OK) == 0)) continue;
        CheckpointName found = {.step = atoll(step)};
        memcpy(found.name, entry->d_name, strlen(entry->d_name)); // fits: at most ".step_", 18 digits and ".replaced"
        Error why = {0};
        int read = file_join(path, dir, found.name, NULL) == 0 ? manifest_read(&manifest, path, &why) : -1;
        if (read == MANIFEST_UNREAD) status = error_set(err, EXIT_FAILED, "%s", why.text);
        found.complete = read == 0;
        found.run = manifest.run;
        found.sequence = manifest.sequence;
        manifest_free(&manifest);
        xpush(*list, *count, found);
    }
    if (errno != 0) status = error_set(err, EXIT_FAILED, "%s: cannot be read: %s", dir, strerror(errno));
    closedir(stream);
    if (*count > 1) qsort(*list, (size_t)*count, sizeof **list, newer_first_);
    return status;
}

int checkpoint_newest(const char *dir, CheckpointName *newest, Error *err) {
    CheckpointName *list;
    int64_t count;
    int status = checkpoint_list(dir, &list, &count, err);
    *newest = (CheckpointName){.step = -1};
    for (int64_t i = count - 1; i >= 0 && list[i].complete; i--) *newest = list[i];
    free(list);
    return status;
}

// Returns whether checkpoint.keep_every of the start that saved a checkpoint keeps it.
static bool saved_to_stay_(const char *path, int64_t step) {
    char training[CHECKPOINT_PATH];
    Json json = {0};
    if (file_join(training, path, CHECKPOINT_TRAINING, NULL) != 0) return false;
    json_read_file(&json, training, NULL);
    const JsonValue *then = json_find(json_find(json.root, "config"), "checkpoint");
    int64_t every = json_integer(then, "every", 0), keep_every = json_integer(then, "keep_every", 0);
    json_free(&json);
    return every > 0 && keep_every > 0 && step % every == 0 && step / every % keep_every == 0;
}

void checkpoint_prune(const CheckpointConfig *config, uint64_t run, const char *newest, PassedOver passed) {
    CheckpointName *list;
    const char *dir = config->dir;
    int64_t count, own = 0, spared = config->keep_every * config->every;
    checkpoint_list(dir, &list, &count, NULL);
    for (int64_t k = 0; k < 2 * count; k++) { // first those that were not passed over, newest first
        const CheckpointName *found = &list[k % count];
        char path[CHECKPOINT_PATH];
        bool over = found->sequence > passed.after && found->sequence <= passed.last;
        // Without a readable manifest it is unknown which run wrote it.
        if (!found->complete || over != (k >= count)) continue;
        bool ours = found->run == run;
        bool goes = ours ? own++ >= config->keep && (spared == 0 || found->step % spared != 0) : config->overwrite;
        if (!goes || strcmp(found->name, newest) == 0 || file_join(path, dir, found->name, NULL) != 0) continue;
        if (!ours || !saved_to_stay_(path, found->step)) directory_remove(path);
    }
    free(list);
}

void checkpoint_sweep(const char *dir) {
    DIR *stream = opendir(dir);
    if (stream == NULL) return;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[CHECKPOINT_PATH], back[CHECKPOINT_PATH];
        if (file_join(path, dir, entry->d_name, NULL) != 0) continue;
        bool hidden = strncmp(entry->d_name, ".step_", 6) == 0, replaced = replaced_name_(back, dir, entry->d_name);
        if (replaced && access(back, F_OK) != 0 && rename(path, back) == 0) continue;
        bool leftover = hidden && (strstr(entry->d_name, ".partial") || strstr(entry->d_name, ".removed"));
        if (leftover || replaced) directory_remove(path);
    }
    closedir(stream);
}

// --- the checkpoints that a directory offers
//
// These functions inspect the disk before a start loads or writes anything, and only read. So the process that starts
// the ranks can also call them and report a mistake on the command line at once.

static bool has_(const char *dir, const char *name) {
    char path[CHECKPOINT_PATH];
    return file_join(path, dir, name, NULL) == 0 && access(path, F_OK) == 0;
}

const char *resume_option(bool if_any) { return if_any ? "--resume-if-any" : "--resume"; }

int candidates_find(Candidates *candidates, const char *dir, bool any_run, bool if_any, Error *err) {
    *candidates = (Candidates){0};
    if (has_(dir, CHECKPOINT_MANIFEST) || has_(dir, CHECKPOINT_TRAINING)) { // the directory itself: no name
        *candidates = (Candidates){1, 1, xcalloc(1, sizeof *candidates->names)};
        return 0;
    }
    if (checkpoint_list(dir, &candidates->names, &candidates->count, err) != 0) return -1;
    CheckpointName *names = candidates->names;
    int64_t newest = 0; // damaged checkpoints come first
    while (newest < candidates->count && !names[newest].complete) newest++;
    int64_t kept = newest;
    for (int64_t i = newest; i < candidates->count; i++) {
        if (names[i].run == names[newest].run) names[kept++] = names[i];
        else if (!any_run)
            return error_set(err, EXIT_USAGE,
                             "%s %s: holds checkpoints of several runs (%s and %s differ); name the one to resume, as "
                             "in --resume %s/%s",
                             resume_option(if_any), dir, names[newest].name, names[i].name, dir, names[newest].name);
    }
    candidates->complete = kept - newest;
    candidates->count = kept;
    if (candidates->count > 0 || (!has_(dir, CHECKPOINT_INDEX) && !has_(dir, "model.safetensors"))) return 0;
    return error_set(err, EXIT_USAGE, "%s %s: holds only weights, no training state; set checkpoint.init_from to it",
                     resume_option(if_any), dir);
}

// --- runs

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool checkpoint_lies_in(const char *checkpoint, const char *dir) {
    char above[CHECKPOINT_PATH + 4];
    if (snprintf(above, sizeof above, "%s/..", checkpoint) >= (int)sizeof above) return false;
    return same_file(above, dir);
}

uint64_t run_id_draw(void) {
    uint64_t id = 0;
    // If the kernel has no random numbers, any ID that is unlikely to repeat will do.
    if (getrandom(&id, sizeof id, 0) != sizeof id || id == 0) id = (uint64_t)clock_wall_ns() | 1;
    return id;
}

// --- starts that are refused

int checkpoint_check_resume(const Config *config, const char *resume, bool if_any, bool trains, Error *err) {
    Candidates candidates = {0};
    if (resume == NULL) return 0;
    int status = candidates_find(&candidates, resume, config->checkpoint.overwrite, if_any, err);
    if (status == 0 && candidates.complete == 0 && !if_any) {
        const char *what = access(resume, F_OK) != 0 ? "there is no such folder"
                           : candidates.count == 0   ? "there is no checkpoint in it"
                                                     : "no checkpoint in it has a readable manifest";
        const char *way = "", *folder = "";
        if (trains) way = ", or start at step 0 with --resume-if-any ", folder = resume;
        if (trains && checkpoint_check_dir(config, resume, NULL) != 0) // such a start is refused, too
            way = ", as is checkpoint.dir: ", folder = config->checkpoint.dir;
        status = error_set(err, EXIT_USAGE, "--resume %s: %s; name a folder with a run's checkpoints%s%s", resume, what,
                           way, folder);
    }
    free(candidates.names);
    return status;
}

int checkpoint_check_dir(const Config *config, const char *resume, Error *err) {
    const char *dir = config->checkpoint.dir;
    if (dir[0] == '\0' || config->checkpoint.overwrite) return 0;
    // candidates_find has already checked that a folder to resume from has only one run. If the checkpoint to resume
    // has no readable manifest, its run is unknown, and loading refuses it later.
    Manifest manifest = {0};
    bool same = resume != NULL && same_file(resume, dir), within = resume != NULL && checkpoint_lies_in(resume, dir);
    bool unknown = within && manifest_read(&manifest, resume, NULL) != 0;
    uint64_t run = manifest.run;
    manifest_free(&manifest);
    if (same || unknown) return 0;
    CheckpointName *list = NULL;
    int64_t count = 0;
    Error unreadable = {0};
    int status = checkpoint_list(dir, &list, &count, &unreadable);
    if (status != 0) error_set(err, unreadable.code, "checkpoint.dir: %s", unreadable.text);
    const CheckpointName *found = NULL; // a checkpoint of another run, a complete one if possible
    for (int64_t i = 0; i < count && status == 0; i++) {
        bool other = !within || (list[i].complete && list[i].run != run);
        if (other && (found == NULL || list[i].complete > found->complete)) found = &list[i];
    }
    // Does not suggest --resume if the folder also has the checkpoint to resume: --resume refuses several runs.
    if (found != NULL)
        status = config_error(config, "checkpoint.dir", err,
                              "%s holds checkpoints of another run, such as %s; %s%s%sname another folder, or set "
                              "checkpoint.overwrite: true to remove them",
                              dir, found->name, within ? "" : "resume from them with --resume ", within ? "" : dir,
                              within ? "" : ", ");
    free(list);
    return status;
}
