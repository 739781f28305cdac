// Inspects the checkpoints on the disk before a start loads or writes anything. These functions only read, so the
// process that starts the ranks can also call them and report a mistake on the command line at once.
#include "checkpoint_files.h"

#include <stdlib.h>
#include <string.h>
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
    *candidates = (Candidates){has_(dir, CHECKPOINT_MANIFEST) || has_(dir, CHECKPOINT_TRAINING), 1, 1, NULL};
    if (candidates->itself) return 0;
    candidates->complete = 0;
    if (checkpoint_list(dir, &candidates->names, &candidates->count, err) != 0) return -1;
    CheckpointName *names = candidates->names;
    for (int64_t i = 0; i < candidates->count; i++) candidates->complete += names[i].complete;
    int64_t newest = candidates->count - candidates->complete, kept = newest; // damaged checkpoints come first
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

void candidates_free(Candidates *candidates) {
    free(candidates->names);
    memset(candidates, 0, sizeof *candidates);
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
    while (getrandom(&id, sizeof id, 0) != sizeof id || id == 0) continue;
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
    candidates_free(&candidates);
    return status;
}

// If the run resumes from checkpoint.dir, candidates_find has already checked that it contains only one run.
int checkpoint_check_dir(const Config *config, const char *resume, Error *err) {
    const char *dir = config->checkpoint.dir;
    if (dir[0] == '\0' || config->checkpoint.overwrite) return 0;
    bool same = resume != NULL && same_file(resume, dir);
    bool within = resume != NULL && !same && checkpoint_lies_in(resume, dir);
    // Without a readable manifest, the run to resume is unknown. Loading refuses a damaged checkpoint later.
    Manifest manifest = {0};
    bool known = within && manifest_read(&manifest, resume, NULL) == 0;
    CheckpointName *list = NULL;
    int64_t count = 0;
    Error unreadable = {0};
    int status = checkpoint_list(dir, &list, &count, &unreadable);
    if (status != 0) error_set(err, unreadable.code, "checkpoint.dir: %s", unreadable.text);
    // A checkpoint of another run, the newest complete one if possible.
    const CheckpointName *found = NULL;
    for (int64_t i = 0; i < count && status == 0 && !same && within == known; i++) {
        bool other = !known || (list[i].complete && list[i].run != manifest.run);
        if (other && (found == NULL || (list[i].complete && !found->complete))) found = &list[i];
    }
    if (found != NULL && known)
        status = config_error(config, "checkpoint.dir", err,
                              "%s holds %s of another run, not of the one to resume; name another folder, or set "
                              "checkpoint.overwrite: true to remove the other run's checkpoints",
                              dir, found->name);
    else if (found != NULL)
        status =
            config_error(config, "checkpoint.dir", err,
                         "%s holds checkpoints of another run, such as %s; resume from them with --resume %s, name "
                         "another folder, or set checkpoint.overwrite: true to replace them",
                         dir, found->name, dir);
    manifest_free(&manifest);
    free(list);
    return status;
}
