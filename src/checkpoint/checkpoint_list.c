// The checkpoints of a folder: lists them from their manifests, and removes old ones and the half-written files of a
// killed run.
#include "checkpoint_files.h"
#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Returns the step in a directory's name, or -1.
static int64_t list_step_of_name_(const char *name) {
    if (strncmp(name, "step_", 5) != 0) return -1;
    size_t digits = strspn(name + 5, "0123456789");
    return digits >= 8 && digits <= 18 && name[5 + digits] == '\0' ? atoll(name + 5) : -1;
}

static bool list_is_replaced_(const char *name) {
    return strncmp(name, ".step_", 6) == 0 && name_ends_with(name, CHECKPOINT_REPLACED);
}

// Writes "DIR/step_00000500" for "DIR/.step_00000500.replaced".
static void list_replaced_path_(char path[CHECKPOINT_PATH], const char *hidden) {
    const char *name = strrchr(hidden, '/') + 1;
    int length = (int)strlen(name + 1) - (int)strlen(CHECKPOINT_REPLACED);
    snprintf(path, CHECKPOINT_PATH, "%.*s%.*s", (int)(name - hidden), hidden, length, name + 1);
}

static int list_compare_(const void *a, const void *b) {
    const CheckpointName *x = a, *y = b;
    if (x->complete != y->complete) return x->complete - y->complete;
    if (x->sequence != y->sequence) return x->sequence > y->sequence ? -1 : 1;
    return (x->step < y->step) - (x->step > y->step);
}

static void list_look_(CheckpointName *entry, const char *dir) {
    char path[CHECKPOINT_PATH];
    Manifest manifest = {0};
    entry->complete = path_join(path, dir, entry->name, NULL) == 0 && manifest_read(&manifest, path, NULL) == 0;
    entry->run = manifest.run;
    entry->sequence = manifest.sequence;
    manifest_free(&manifest);
}

// Returns the step of a checkpoint's directory, or of one that was being replaced and whose name is free; else -1.
static int64_t list_step_of_entry_(const char *dir, const char *name) {
    if (!list_is_replaced_(name)) return list_step_of_name_(name);
    char hidden[CHECKPOINT_PATH], path[CHECKPOINT_PATH];
    if (path_join(hidden, dir, name, NULL) != 0) return -1;
    list_replaced_path_(path, hidden);
    return access(path, F_OK) != 0 ? list_step_of_name_(strrchr(path, '/') + 1) : -1;
}

static void list_add_(CheckpointName **list, int64_t *count, const char *name, int64_t step) {
    *list = xgrow(*list, *count, sizeof **list);
    CheckpointName *entry = &(*list)[(*count)++];
    *entry = (CheckpointName){.step = step};
    memcpy(entry->name, name, strlen(name)); // at most ".step_", 18 digits and CHECKPOINT_REPLACED
}

int checkpoint_list(const char *dir, CheckpointName **list, int64_t *count, Error *err) {
    *list = NULL;
    *count = 0;
    DIR *stream = opendir(dir);
    if (stream == NULL)
        return errno == ENOENT ? 0 : error_set(err, EXIT_FAILED, "%s: cannot be read: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        int64_t step = list_step_of_entry_(dir, entry->d_name);
        if (step >= 0) list_add_(list, count, entry->d_name, step);
    }
    closedir(stream);
    for (int64_t i = 0; i < *count; i++) list_look_(&(*list)[i], dir);
    if (*count > 1) qsort(*list, (size_t)*count, sizeof **list, list_compare_);
    return 0;
}

int checkpoint_prune(const CheckpointConfig *config, uint64_t run, const char *newest) {
    CheckpointName *list;
    const char *dir = config->dir;
    int64_t count, own = 0, spared = config->keep_every * config->every;
    int status = checkpoint_list(dir, &list, &count, NULL);
    for (int64_t i = 0; status == 0 && i < count; i++) {
        char path[CHECKPOINT_PATH];
        if (!list[i].complete) continue; // belongs to no run, or its manifest could not be read this time
        bool ours = list[i].run == run;
        bool goes = ours ? own++ >= config->keep && (spared == 0 || list[i].step % spared != 0) : config->overwrite;
        if (!goes || strcmp(list[i].name, newest) == 0) continue;
        if (path_join(path, dir, list[i].name, NULL) == 0) directory_remove(path);
    }
    free(list);
    return status;
}

void checkpoint_sweep(const char *dir) {
    DIR *stream = opendir(dir);
    if (stream == NULL) return;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[CHECKPOINT_PATH], back[CHECKPOINT_PATH];
        if (path_join(path, dir, entry->d_name, NULL) != 0) continue;
        bool hidden = strncmp(entry->d_name, ".step_", 6) == 0, replaced = list_is_replaced_(entry->d_name);
        if (replaced) list_replaced_path_(back, path);
        if (replaced && access(back, F_OK) != 0 && rename(path, back) == 0) continue;
        bool leftover = hidden && (strstr(entry->d_name, ".partial") || strstr(entry->d_name, ".removed"));
        if (leftover || replaced) directory_remove(path);
    }
    closedir(stream);
}
