// Inspects the checkpoints on the disk before a start loads or writes anything. These functions only read, so the
// process that starts the ranks can also call them and report a mistake on the command line at once.
#include "checkpoint_files.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_(const char *dir, const char *name) {
    char path[CHECKPOINT_PATH];
    return file_join(path, dir, name, NULL) == 0 && access(path, F_OK) == 0;
}

// --- the checkpoints that a directory offers

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
        status = error_set(err, EXIT_USAGE, "--resume %s: %s; name a folder with a run's checkpoints%s%s", resume, what,
                           trains ? ", or start at step 0 with --resume-if-any " : "", trains ? resume : "");
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
    // If the checkpoint to resume is there too, --resume with the folder would refuse its several runs.
    if (found != NULL)
        status = config_error(config, "checkpoint.dir", err,
                              "%s holds checkpoints of another run, such as %s; %s%s%sname another folder, or set "
                              "checkpoint.overwrite: true to remove them",
                              dir, found->name, within ? "" : "resume from them with --resume ", within ? "" : dir,
                              within ? "" : ", ");
    free(list);
    return status;
}
