#include "watchdog.h"

#include <stdlib.h>
#include <string.h>

typedef struct Watched {
    StatusRank page;
    bool expected; // its silence counts
    double heard;
} Watched;

struct Watchdog {
    Patience patience;
    int ranks;
    double looked, moved; // last look; last time that anything got done anywhere
    int64_t progress;     // of all ranks
    Watched rank[];
};

// A look that comes this much later than it should: the watchdog itself did not run.
enum { OVERSLEPT_S = 3 };

Watchdog *watchdog_create(int ranks, Patience patience, double now) {
    Watchdog *dog = calloc(1, sizeof *dog + (size_t)ranks * sizeof *dog->rank);
    if (dog == NULL) return NULL;
    dog->patience = patience;
    dog->ranks = ranks;
    dog->looked = dog->moved = now;
    for (int i = 0; i < ranks; i++) dog->rank[i].page.stage = -1;
    return dog;
}

void watchdog_free(Watchdog *dog) {
    free(dog);
}

double watchdog_interval(Patience patience) {
    double interval = 1.0;
    if (patience.peer_s > 0 && patience.peer_s / 5 < interval) interval = patience.peer_s / 5;
    if (patience.progress_s > 0 && patience.progress_s / 5 < interval) interval = patience.progress_s / 5;
    return interval;
}

void watchdog_expect(Watchdog *dog, int rank, double now) {
    dog->rank[rank].expected = true;
    dog->rank[rank].heard = now;
}

void watchdog_excuse(Watchdog *dog, int rank) {
    dog->rank[rank].expected = false;
}

void watchdog_hear(Watchdog *dog, int rank, const StatusRank *page, double now) {
    Watched *watched = &dog->rank[rank];
    if (page->beats > watched->page.beats) watchdog_expect(dog, rank, now);
    watched->page = *page;
}

static int64_t watchdog_progress_(const Watchdog *dog) {
    int64_t sum = 0;
    for (int i = 0; i < dog->ranks; i++) sum += dog->rank[i].page.progress;
    return sum;
}

static void start_again_(Watchdog *dog, double now) {
    dog->moved = now;
    for (int i = 0; i < dog->ranks; i++) dog->rank[i].heard = now;
}

static bool silent_(const Watchdog *dog, int rank, double now) {
    const Watched *watched = &dog->rank[rank];
    return watched->expected && dog->patience.peer_s > 0 && now - watched->heard > dog->patience.peer_s;
}

Found watchdog_look(Watchdog *dog, double now, int *rank) {
    int64_t progress = watchdog_progress_(dog);
    if (progress != dog->progress) dog->moved = now;
    dog->progress = progress;
    if (now - dog->looked > watchdog_interval(dog->patience) + OVERSLEPT_S) start_again_(dog, now);
    dog->looked = now;
    *rank = -1;
    for (int i = 0; i < dog->ranks; i++)
        if (silent_(dog, i, now) && (*rank < 0 || dog->rank[i].heard < dog->rank[*rank].heard)) *rank = i;
    if (*rank >= 0) return FOUND_SILENT;
    return dog->patience.progress_s > 0 && now - dog->moved > dog->patience.progress_s ? FOUND_STUCK : FOUND_WELL;
}

// --- words

const char *watchdog_action(const StatusRank *page) {
    return page->action[0] != '\0' ? page->action : "start-up";
}

static void watchdog_name_(const Watchdog *dog, int rank, char name[64]) {
    int stage = dog->rank[rank].page.stage, used = snprintf(name, 64, "rank %d", rank);
    if (stage >= 0) snprintf(name + used, 64 - (size_t)used, " (stage %d)", stage);
}

void watchdog_reason(const Watchdog *dog, Found found, int rank, double now, char text[WATCHDOG_TEXT]) {
    char name[64], others[48] = "";
    int more = -1; // besides the one that is named
    if (found == FOUND_STUCK) {
        snprintf(text, WATCHDOG_TEXT,
                 "nothing has moved on any rank for %.0f s (train.timeout_s), so the job ends; go on with --resume",
                 now - dog->moved);
        return;
    }
    watchdog_name_(dog, rank, name);
    if (found == FOUND_DEAD) {
        snprintf(text, WATCHDOG_TEXT, "%s died, last seen at %s; the job ends; go on with --resume", name,
                 watchdog_action(&dog->rank[rank].page));
        return;
    }
    for (int i = 0; i < dog->ranks; i++) more += silent_(dog, i, now);
    if (more > 0) snprintf(others, sizeof others, ", as have %d others", more);
    snprintf(text, WATCHDOG_TEXT,
             "%s has said nothing for %.0f s (train.peer_timeout_s)%s: it is stopped or cut off, last at %s; the job "
             "ends; go on with --resume",
             name, now - dog->rank[rank].heard, others, watchdog_action(&dog->rank[rank].page));
}

void watchdog_describe(const StatusRank *page, char text[WATCHDOG_TEXT]) {
    if (page->wait[0] == '\0')
        snprintf(text, WATCHDOG_TEXT, "is at %s", watchdog_action(page));
    else if (page->wait_stage >= 0)
        snprintf(text, WATCHDOG_TEXT, "waits for %s", page->wait);
    else
        snprintf(text, WATCHDOG_TEXT, "is at %s and waits for %s", watchdog_action(page), page->wait);
}

// The rank that stands for its stage: one that is silent, else one that does not wait, else the lowest. -1: none has this stage.
static int spokesman_(const Watchdog *dog, int stage, double now) {
    int best = -1, best_worth = -1;
    for (int i = 0; i < dog->ranks; i++) {
        if (dog->rank[i].page.stage != stage) continue;
        int worth = silent_(dog, i, now) ? 2 : dog->rank[i].page.wait[0] == '\0' ? 1 : 0;
        if (worth > best_worth) best = i, best_worth = worth;
    }
    return best;
}

static void watchdog_line_(const Watchdog *dog, int rank, double now, char text[WATCHDOG_TEXT]) {
    const Watched *watched = &dog->rank[rank];
    const StatusRank *page = &watched->page;
    char who[32], state[WATCHDOG_TEXT - 160], other[128] = "";
    snprintf(who, sizeof who, page->stage >= 0 ? "stage %d" : "rank %d", page->stage >= 0 ? page->stage : rank);
    watchdog_describe(page, text);
    snprintf(state, sizeof state, "%.300s", text);
    int peer = page->wait[0] != '\0' && page->wait_stage >= 0 ? spokesman_(dog, page->wait_stage, now) : -1;
    if (silent_(dog, rank, now))
        snprintf(state, sizeof state, "was last heard of %.0f s ago, at %s", now - watched->heard,
                 watchdog_action(page));
    else if (peer >= 0)
        snprintf(other, sizeof other, ", which %s at %s", silent_(dog, peer, now) ? "was last" : "is",
                 watchdog_action(&dog->rank[peer].page));
    snprintf(text, WATCHDOG_TEXT, "%s %s%s", who, state, other);
}

// A stage's line stands in the place of its lowest rank; a rank that has no stage yet has a line of its own.
bool watchdog_line(const Watchdog *dog, int index, double now, char text[WATCHDOG_TEXT]) {
    int stages = -1;
    for (int i = 0; i < dog->ranks; i++)
        if (dog->rank[i].page.stage > stages) stages = dog->rank[i].page.stage;
    for (int stage = 0; stage <= stages; stage++) {
        int rank = spokesman_(dog, stage, now);
        if (rank < 0 || index-- > 0) continue;
        watchdog_line_(dog, rank, now, text);
        return true;
    }
    for (int i = 0; i < dog->ranks; i++) {
        if (dog->rank[i].page.stage >= 0 || index-- > 0) continue;
        watchdog_line_(dog, i, now, text);
        return true;
    }
    return false;
}
