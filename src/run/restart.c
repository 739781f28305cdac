// Launches the ranks again after a loss: a rank died or fell silent, or no rank made progress. Any other end is final:
// a rank that reports an error would report it again, and a full disk would still be full.
#include "restart.h"

#include "base/alloc.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

bool restart_allowed(Restarts *restarts, const JobEnd *end, char why[256]) {
    bool further = end->step > restarts->furthest || !restarts->again;
    bool same = !further && end->rank >= 0 && end->rank == restarts->rank && end->action[0] != '\0' &&
                strcmp(end->action, restarts->action) == 0;
    int cost = further ? 1 : 2;
    restarts->again = true;
    restarts->rank = end->rank;
    restarts->furthest = max_i64(restarts->furthest, end->step);
    status_copy_text(restarts->action, sizeof restarts->action, end->action);
    if (same) snprintf(why, 256, "rank %d was lost twice at %s", end->rank, end->action);
    else if (restarts->left == 0) snprintf(why, 256, "no restart is left (train.max_restarts)");
    else if (restarts->left < cost)
        snprintf(why, 256, "only one restart is left (train.max_restarts), and a loss without a new step costs two");
    else return restarts->left -= cost, true;
    return false;
}

// Copies the arguments with --resume `dir` in place of any other resume option. The caller frees the list. The folder
// is named, not its newest checkpoint: if that checkpoint is damaged, the ranks take the previous one.
static char **arguments_(char **argv, char *dir) {
    static char option[] = "--resume";
    int count = 0, kept = 0;
    while (argv[count] != NULL) count++;
    char **with = xcalloc((size_t)count + 3, sizeof *with);
    for (int i = 0; i < count; i++) {
        bool value = strcmp(argv[i], "--resume") == 0 || strcmp(argv[i], "--resume-if-any") == 0;
        bool whole = strncmp(argv[i], "--resume=", 9) == 0 || strncmp(argv[i], "--resume-if-any=", 16) == 0;
        if (value) i++;
        if (!value && !whole) with[kept++] = argv[i];
    }
    with[kept++] = option, with[kept] = dir;
    return with;
}

// Context of again_.
typedef struct Relaunch {
    const Log *log;
    const Config *config;
    const Job *job;
    Restarts restarts;
    int64_t before; // sequence number of the newest checkpoint before the first launch
    time_t began;   // time of the last launch
    char dir[CONFIG_TEXT];
    char **with; // arguments with --resume `dir`
} Relaunch;

// Implements LaunchAgain: decides whether to start the ranks again, and from which checkpoint.
static bool again_(void *context, const JobEnd *end, char ***argv) {
    Relaunch *again = context;
    const Config *config = again->config;
    const Restarts *restarts = &again->restarts;
    char why[256], path[CHECKPOINT_PATH], from[64] = "their last starting point";
    struct stat status;
    CheckpointName newest;
    checkpoint_newest(config->checkpoint.dir, &newest, NULL);
    bool saved = newest.sequence > again->before && file_join(path, config->checkpoint.dir, newest.name, NULL) == 0;
    if (!restart_allowed(&again->restarts, end, why)) {
        log_line(again->log, "%s; %s", why, again->job->remedy);
        return false;
    }
    time_t now = time(NULL), since = again->began;
    if (saved && stat(path, &status) == 0 && status.st_mtime > since) since = status.st_mtime;
    double seconds = difftime(now, since);
    // Without a newer checkpoint the ranks go back to the step at which this start began.
    int64_t lost = end->step - (saved && newest.step > 0 ? newest.step + 1 : end->began);
    if (saved && newest.step > 0) snprintf(from, sizeof from, "step %lld", (long long)newest.step);
    log_line(again->log, "starting the ranks again from %s, with %lld restart%s left; lost: %lld step%s, %.0f s", from,
             (long long)restarts->left, restarts->left == 1 ? "" : "s", (long long)max_i64(lost, 0),
             lost == 1 ? "" : "s", max_double(seconds, 0)); // the clock may be set back
    if (saved && again->with == NULL) *argv = again->with = arguments_(*argv, again->dir);
    again->began = now;
    return true;
}

int restart_launch(const Log *log, const Config *config, const Job *job, char **argv, Error *err) {
    Relaunch again = {.log = log, .config = config, .job = job, .began = time(NULL)};
    CheckpointName before;
    again.restarts.left = config->train.max_restarts;
    checkpoint_newest(config->checkpoint.dir, &before, NULL);
    again.before = before.sequence;
    snprintf(again.dir, sizeof again.dir, "%s", config->checkpoint.dir);
    LaunchAgain asks = config->train.max_restarts > 0 ? again_ : NULL;
    int code = launch_ranks(log, job, argv, asks, &again, err);
    free(again.with);
    return code;
}
