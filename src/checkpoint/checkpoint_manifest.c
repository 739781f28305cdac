// Reads, writes and checks manifests. The text ends with its own checksum, so a torn or edited manifest is never taken.
#include "checkpoint_files.h"
#include "base/alloc.h"

#include "base/files.h"
#include "base/json.h"
#include "base/threads.h"
#include "ranks/world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANIFEST_VERSION = 1 };

// The run of checkpoints written by versions without run ids.
#define RUN_ID_NONE "0000000000000000"
// Each checkpoint adds one, and JSON's numbers are doubles.
static const int64_t MOST_SEQUENCE = (int64_t)1 << 52;

static void write_files_(const Manifest *manifest, FILE *file) {
    fprintf(file,
            "{\n  \"format\": %d,\n  \"step\": %" PRId64 ",\n  \"run\": \"%016" PRIx64 "\",\n  \"sequence\": %" PRId64,
            MANIFEST_VERSION, manifest->step, manifest->run, manifest->sequence);
    fprintf(file, ",\n  \"saved\": %" PRId64 ",\n  \"files\": [", manifest->saved);
    for (int64_t i = 0; i < manifest->count; i++) {
        const ManifestFile *entry = &manifest->file[i];
        fprintf(file, "%s\n    {\"name\": ", i == 0 ? "" : ",");
        json_write_text(file, entry->name);
        fprintf(file, ", \"bytes\": %" PRId64 ", \"crc64\": \"%016" PRIx64 "\"}", entry->bytes, entry->crc);
    }
    fputs("\n  ],\n", file);
}

int manifest_write(const Manifest *manifest, const char *dir, Error *err) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = xmemstream(&text, &length);
    write_files_(manifest, file);
    json_seal(file, &text, &length);
    xmemstream_close(file);
    int status = file_write(dir, CHECKPOINT_MANIFEST, text, (int64_t)length, err);
    free(text);
    return status;
}

// --- reading

static int manifest_read_entry_(ManifestFile *file, const JsonValue *entry, const char *path, Error *err) {
    const char *name = json_text(entry, "name", ""), *crc = json_text(entry, "crc64", "");
    char *end;
    file->bytes = json_integer(entry, "bytes", -1);
    file->crc = strtoull(crc, &end, 16);
    if (name[0] == '\0' || strlen(name) >= sizeof file->name || file->bytes < 0 || strlen(crc) != 16 || *end != '\0')
        return error_set(err, EXIT_FAILED, "%s: has an entry that names no file, size and checksum", path);
    strcpy(file->name, name);
    return 0;
}

int run_id_read(uint64_t *run, const JsonValue *root) {
    const char *text = json_text(root, "run", RUN_ID_NONE);
    *run = strtoull(text, NULL, 16);
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 ? 0 : -1;
}

static int read_manifest_(Manifest *manifest, const JsonValue *root, const char *path, Error *err) {
    int64_t format = json_integer(root, "format", -1);
    if (format != MANIFEST_VERSION)
        return error_set(err, EXIT_FAILED, "%s: has format %" PRId64 ", this program reads format %d", path, format,
                         MANIFEST_VERSION);
    const JsonValue *files = json_find(root, "files");
    manifest->step = json_integer(root, "step", -1);
    manifest->saved = json_integer(root, "saved", -1);
    if (manifest->step < 0 || manifest->saved < 0 || files == NULL || files->type != JSON_ARRAY)
        return error_set(err, EXIT_FAILED, "%s: has no step, saved or files", path);
    manifest->sequence = json_integer(root, "sequence", 0);
    if (run_id_read(&manifest->run, root) != 0 || manifest->sequence < 0 || manifest->sequence > MOST_SEQUENCE)
        return error_set(err, EXIT_FAILED, "%s: has a run or a sequence that this program does not write", path);
    manifest->file = xcalloc((size_t)files->count + 1, sizeof *manifest->file);
    for (const JsonValue *entry = files->first; entry != NULL; entry = entry->next)
        if (manifest_read_entry_(&manifest->file[manifest->count++], entry, path, err) != 0) return -1;
    return 0;
}

int manifest_read(Manifest *manifest, const char *dir, Error *err) {
    memset(manifest, 0, sizeof *manifest);
    char path[CHECKPOINT_PATH];
    int64_t length = 0;
    if (file_path_within(path, dir, CHECKPOINT_MANIFEST, err) != 0) return -1;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return error_set(err, EXIT_FAILED, "%s: is not there: the checkpoint is incomplete", path);
    char *text = file_read_whole(path, JSON_MAX_BYTES, &length, err);
    if (text == NULL) return -1;
    Json json = {0};
    int status = 0;
    if (!json_sealed(text, length))
        status =
            error_set(err, EXIT_FAILED, "%s: is torn or was changed: it does not agree with its own checksum", path);
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

enum { CHECK_PIECE = 4 << 20 };

static int read_checksum_(int fd, const char *path, const Crc64 *crc, uint64_t *raw, Error *err) {
    char *piece = xmalloc(CHECK_PIECE);
    *raw = 0;
    ssize_t got;
    while ((got = read(fd, piece, CHECK_PIECE)) != 0) {
        if (got < 0 && errno != EINTR) break;
        if (got > 0) *raw = crc64_add(crc, *raw, piece, (size_t)got);
    }
    free(piece);
    return got == 0 ? 0 : error_set(err, EXIT_FAILED, "%s: cannot be read: %s", path, strerror(errno));
}

static int check_open_(int fd, int64_t bytes, const char *path, const ManifestFile *file, const Crc64 *crc,
                       Error *err) {
    if (bytes != file->bytes)
        return error_set(err, EXIT_FAILED, "%s: has %lld bytes where %lld were written", path, (long long)bytes,
                         (long long)file->bytes);
    uint64_t raw = 0;
    if (read_checksum_(fd, path, crc, &raw, err) != 0) return -1;
    if (crc64_finish(crc, raw, file->bytes) == file->crc) return 0;
    return error_set(err, EXIT_FAILED, "%s: its bytes are not those that were written: the checksum differs", path);
}

static int check_file_(const ManifestFile *file, const Crc64 *crc, const char *dir, Error *err) {
    char path[CHECKPOINT_PATH];
    int64_t bytes = 0;
    if (file_path_within(path, dir, file->name, err) != 0) return -1;
    if (access(path, F_OK) != 0 && errno == ENOENT) return error_set(err, EXIT_FAILED, "%s: is missing", path);
    int fd = file_open(path, &bytes, err);
    if (fd < 0) return -1;
    int status = check_open_(fd, bytes, path, file, crc, err);
    close(fd);
    return status;
}

// Threads that check, one file each at a time.
enum { CHECK_LANES = 4 };

typedef struct Checking {
    const Manifest *manifest;
    int64_t step;
    const Crc64 *crc;
    const char *dir;
    World *world;
    atomic_llong next; // the first file that no lane has taken
    atomic_bool failed;
} Checking;

typedef struct CheckLane {
    Checking *checking;
    int64_t file; // the one with err
    Error err;
} CheckLane;

// Files are taken in order, so all those before one that fails are checked too.
static void *check_lane_(void *argument) {
    CheckLane *lane = argument;
    Checking *c = lane->checking;
    while (!atomic_load(&c->failed)) {
        lane->file = atomic_fetch_add(&c->next, c->step);
        if (lane->file >= c->manifest->count) return NULL;
        if (check_file_(&c->manifest->file[lane->file], c->crc, c->dir, &lane->err) != 0) {
            atomic_store(&c->failed, true);
            return NULL;
        }
        world_progress(c->world);
    }
    return NULL;
}

int manifest_check(const Manifest *manifest, int64_t first, int64_t step, const char *dir, World *world, Error *err) {
    Crc64 crc;
    Checking checking = {.manifest = manifest, .step = step, .crc = &crc, .dir = dir, .world = world};
    crc64_init(&crc);
    atomic_init(&checking.next, first);
    CheckLane lane[CHECK_LANES];
    memset(lane, 0, sizeof lane);
    for (int i = 0; i < CHECK_LANES; i++) lane[i].checking = &checking;
    threads_run(check_lane_, lane, sizeof *lane, CHECK_LANES);
    const CheckLane *worst = NULL;
    for (int i = 0; i < CHECK_LANES; i++)
        if (lane[i].err.code != 0 && (worst == NULL || lane[i].file < worst->file)) worst = &lane[i];
    if (worst == NULL) return 0;
    if (err != NULL) *err = worst->err;
    return -1;
}

int checkpoint_verify(const char *dir, Error *err) {
    Manifest manifest;
    int status = manifest_read(&manifest, dir, err);
    if (status == 0) status = manifest_check(&manifest, 0, 1, dir, NULL, err);
    manifest_free(&manifest);
    return status;
}
