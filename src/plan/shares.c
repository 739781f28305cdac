// A resource keeps a clock of its own, which advances by min(1, capacity / n) for every second: the work that each of its users has had
// since then is the same, so a user is done when that clock shows the time it came plus what it needs, however many come and go meanwhile.
// Which resource is next is played out as in a knockout tournament, so that one that changes asks only those on its way to the final.
#include "shares.h"

#include <stdlib.h>

typedef struct Entry_ {
    double done; // on the resource's clock
    ShareUser user;
} Entry_;

typedef struct Share_ {
    double capacity, clock;
    double since; // when the clock was last set
    Entry_ *users;
    int count, room;
    int first;   // of the users, the one that is done first
    double next; // when; meaningless while count is 0
} Share_;

struct Shares {
    int count;
    int *
        winner; // [2 * count]: of resource i at count + i, of 2k and 2k + 1 at k: the one with the smallest `next`, -1: nobody is under way
    Share_ *share;
};

Shares *shares_create(int count, const double *capacity) {
    Shares *shares = calloc(1, sizeof *shares);
    if (shares == NULL) return NULL;
    shares->count = count;
    shares->share = calloc((size_t)count, sizeof *shares->share);
    shares->winner = malloc(2 * (size_t)count * sizeof *shares->winner);
    if (shares->share == NULL || shares->winner == NULL) {
        shares_free(shares);
        return NULL;
    }
    for (int i = 0; i < count; i++) shares->share[i].capacity = capacity[i];
    for (int i = 0; i < 2 * count; i++) shares->winner[i] = -1;
    return shares;
}

void shares_free(Shares *shares) {
    if (shares == NULL) return;
    for (int i = 0; i < shares->count && shares->share != NULL; i++) free(shares->share[i].users);
    free(shares->share);
    free(shares->winner);
    free(shares);
}

static double speed_(const Share_ *share) {
    return share->count <= share->capacity ? 1 : share->capacity / share->count;
}

static void advance_(Share_ *share, double now) {
    if (share->count > 0) share->clock += (now - share->since) * speed_(share);
    share->since = now;
}

static int soonest_(const Shares *shares) {
    return shares->winner[1];
}

static int sooner_(const Shares *shares, int a, int b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    double first = shares->share[a].next, second = shares->share[b].next;
    return first < second || (first == second && a < b) ? a : b;
}

// After users came or went: who is first, and when.
static void settle_(Shares *shares, Share_ *share) {
    share->first = 0;
    for (int i = 1; i < share->count; i++)
        if (share->users[i].done < share->users[share->first].done) share->first = i;
    if (share->count > 0) {
        double left = share->users[share->first].done - share->clock; // rounding may leave a little less than nothing
        share->next = share->since + (left > 0 ? left : 0) / speed_(share);
    }
    int resource = (int)(share - shares->share);
    int *winner = shares->winner, at = shares->count + resource;
    winner[at] = share->count > 0 ? resource : -1;
    for (at /= 2; at > 0; at /= 2) winner[at] = sooner_(shares, winner[2 * at], winner[2 * at + 1]);
}

int shares_add(Shares *shares, int resource, double now, double duration, ShareUser user) {
    Share_ *share = &shares->share[resource];
    if (share->count == share->room) {
        int room = 2 * share->room + 8;
        Entry_ *users = realloc(share->users, (size_t)room * sizeof *users);
        if (users == NULL) return -1;
        share->users = users;
        share->room = room;
    }
    advance_(share, now);
    share->users[share->count++] = (Entry_){share->clock + duration, user};
    settle_(shares, share);
    return 0;
}

double shares_next(const Shares *shares) {
    return soonest_(shares) < 0 ? -1 : shares->share[soonest_(shares)].next;
}

ShareUser shares_pop(Shares *shares) {
    Share_ *share = &shares->share[soonest_(shares)];
    Entry_ first = share->users[share->first];
    share->since = share->next;
    share->clock = first.done; // exactly, so that users who came together are done together
    share->users[share->first] = share->users[--share->count];
    settle_(shares, share);
    return first.user;
}
