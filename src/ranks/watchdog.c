// Keeps each rank's last report with its time, and formats the findings. The caller passes the current time.
#include "watchdog.h"

#include "base/alloc.h"

#include <stdlib.h>

typedef struct Watched {
    RankStatus status;
    bool expected; // silence from this rank ends the job
    double heard;
} Watched;

struct Watchdog {
    Patience patience;
    int ranks;
    double looked, moved; // last check; last time that any rank made progress
    int64_t progress;     // sum over all ranks
    Watched rank[];
};

// If a check is late by more than this time, the watchdog itself did not run.
enum { OVERSLEPT_S = 3 };

Watchdog *watchdog_create(int ranks, Patience patience, double now) {
    Watchdog *dog = xcalloc(1, sizeof *dog + (size_t)ranks * sizeof *dog->rank);
    dog->patience = patience;
    dog->ranks = ranks;
    dog->looked = dog->moved = now;
    for (int i = 0; i < ranks; i++) dog->rank[i].status.stage = -1;
    return dog;
}

void watchdog_free(Watchdog *dog) { free(dog); }

double watchdog_interval(Patience patience) {
    double interval = 1.0;
    if (patience.peer_s > 0 && patience.peer_s / 5 < interval) interval = patience.peer_s / 5;
    if (patience.progress_s > 0 && patience.progress_s / 5 < interval) interval = patience.progress_s / 5;
    return interval;
}

void watchdog_hear(Watchdog *dog, int rank, const RankStatus *status, double now) {
    dog->rank[rank] = (Watched){.status = *status, .expected = true, .heard = now};
}

void watchdog_excuse(Watchdog *dog, int rank) { dog->rank[rank].expected = false; }

const RankStatus *watchdog_status(const Watchdog *dog, int rank) { return &dog->rank[rank].status; }

static bool silent_(const Watchdog *dog, int rank, double now) {
    const Watched *watched = &dog->rank[rank];
    return watched->expected && dog->patience.peer_s > 0 && now - watched->heard > dog->patience.peer_s;
}

// With peer_s 10, progress_s 600 and a check every second:
//
//   a rank is stopped at second 5      its supervisor sends nothing: FOUND_SILENT after second 15
//   a rank loops from second 5 on      all ranks report, but their summed progress is constant: FOUND_STUCK after 605
//
// Ranks that wait for a stopped rank still report, so the rank with the longest silence is the cause.
Found watchdog_look(Watchdog *dog, double now, int *rank) {
    bool overslept = now - dog->looked > watchdog_interval(dog->patience) + OVERSLEPT_S;
    int64_t progress = 0;
    for (int i = 0; i < dog->ranks; i++) {
        progress += dog->rank[i].status.progress;
        if (overslept) dog->rank[i].heard = now;
    }
    if (progress != dog->progress || overslept) dog->moved = now;
    dog->progress = progress;
    dog->looked = now;
    *rank = -1;
    for (int i = 0; i < dog->ranks; i++)
        if (silent_(dog, i, now) && (*rank < 0 || dog->rank[i].heard < dog->rank[*rank].heard)) *rank = i;
    if (*rank >= 0) return FOUND_SILENT;
    return dog->patience.progress_s > 0 && now - dog->moved > dog->patience.progress_s ? FOUND_STUCK : FOUND_WELL;
}

// --- sentences

const char *watchdog_action(const RankStatus *status) {
    return status->action[0] != '\0' ? status->action : "start-up";
}

void watchdog_name(int rank, int stage, char name[WATCHDOG_NAME]) {
    if (stage >= 0) snprintf(name, WATCHDOG_NAME, "rank %d (stage %d)", rank, stage);
    else snprintf(name, WATCHDOG_NAME, "rank %d", rank);
}

void watchdog_reason(const Watchdog *dog, Found found, int rank, double now, char text[WATCHDOG_TEXT]) {
    char name[WATCHDOG_NAME], others[48] = "";
    int more = -1; // number of further silent ranks
    if (found == FOUND_STUCK) {
        snprintf(text, WATCHDOG_TEXT, "no rank has made progress for %.0f s (train.timeout_s)", now - dog->moved);
        return;
    }
    for (int i = 0; i < dog->ranks; i++) more += silent_(dog, i, now);
    if (more > 0) snprintf(others, sizeof others, ", as have %d others", more);
    watchdog_name(rank, dog->rank[rank].status.stage, name);
    snprintf(text, WATCHDOG_TEXT,
             "%s has sent no heartbeat for %.0f s (train.peer_timeout_s)%s: it is stopped or cut off, last at %s", name,
             now - dog->rank[rank].heard, others, watchdog_action(&dog->rank[rank].status));
}

void watchdog_describe(const RankStatus *status, char text[WATCHDOG_TEXT]) {
    if (status->wait[0] == '\0') snprintf(text, WATCHDOG_TEXT, "is at %s", watchdog_action(status));
    else if (status->wait_stage >= 0) snprintf(text, WATCHDOG_TEXT, "waits for %s", status->wait);
    else snprintf(text, WATCHDOG_TEXT, "is at %s and waits for %s", watchdog_action(status), status->wait);
}

// Returns the rank that represents a stage: a silent rank, else a rank that does not wait, else the lowest rank.
// -1: no rank has this stage.
static int speaker_(const Watchdog *dog, int stage, double now) {
    int best = -1, best_worth = -1;
    for (int i = 0; i < dog->ranks; i++) {
        if (dog->rank[i].status.stage != stage) continue;
        int worth = silent_(dog, i, now) ? 2 : dog->rank[i].status.wait[0] == '\0' ? 1 : 0;
        if (worth > best_worth) best = i, best_worth = worth;
    }
    return best;
}

// Lines are numbered from 0: first the stages in ascending order, then the ranks that have no stage yet.
bool watchdog_line(const Watchdog *dog, int index, double now, char text[WATCHDOG_TEXT]) {
    int stages = -1, rank = -1;
    for (int i = 0; i < dog->ranks; i++)
        if (dog->rank[i].status.stage > stages) stages = dog->rank[i].status.stage;
    for (int stage = 0; index >= 0 && stage <= stages; stage++) {
        rank = speaker_(dog, stage, now);
        index -= rank >= 0;
    }
    for (int i = 0; index >= 0 && i < dog->ranks; i++)
        if (dog->rank[i].status.stage < 0) rank = i, index--;
    if (index >= 0) return false;

    const Watched *watched = &dog->rank[rank];
    const RankStatus *status = &watched->status;
    char who[32], state[WATCHDOG_TEXT - 160], other[128] = "";
    snprintf(who, sizeof who, status->stage >= 0 ? "stage %d" : "rank %d", status->stage >= 0 ? status->stage : rank);
    watchdog_describe(status, text);
    snprintf(state, sizeof state, "%.300s", text);
    bool waits = status->wait[0] != '\0' && status->wait_stage >= 0;
    int peer = waits ? speaker_(dog, status->wait_stage, now) : -1;
    if (silent_(dog, rank, now))
        snprintf(state, sizeof state, "was last heard from %.0f s ago, at %s", now - watched->heard,
                 watchdog_action(status));
    else if (peer >= 0)
        snprintf(other, sizeof other, ", which %s at %s", silent_(dog, peer, now) ? "was last" : "is",
                 watchdog_action(&dog->rank[peer].status));
    snprintf(text, WATCHDOG_TEXT, "%s %s%s", who, state, other);
    return true;
}
