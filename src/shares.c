// A resource keeps a clock of its own, which advances by min(1, capacity / n) for every second: the work that each of its users has had
// since then is the same, so a user is done when that clock shows the time it came plus what it needs, however many come and go meanwhile.
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
    int soonest; // resource with the smallest `next`, -1: nobody is under way
    Share_ *share;
};

Shares *shares_create(int count, const double *capacity) {
    Shares *shares = calloc(1, sizeof *shares);
    if (shares == NULL) return NULL;
    shares->count = count;
    shares->soonest = -1;
    shares->share = calloc((size_t)count, sizeof *shares->share);
    for (int i = 0; i < count && shares->share != NULL; i++) shares->share[i].capacity = capacity[i];
    if (shares->share != NULL) return shares;
    free(shares);
    return NULL;
}

void shares_free(Shares *shares) {
    if (shares == NULL) return;
    for (int i = 0; i < shares->count; i++) free(shares->share[i].users);
    free(shares->share);
    free(shares);
}

static double speed_(const Share_ *share) {
    return share->count <= share->capacity ? 1 : share->capacity / share->count;
}

static void advance_(Share_ *share, double now) {
    if (share->count > 0) share->clock += (now - share->since) * speed_(share);
    share->since = now;
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
    shares->soonest = -1;
    for (int i = 0; i < shares->count; i++) {
        if (shares->share[i].count == 0) continue;
        if (shares->soonest < 0 || shares->share[i].next < shares->share[shares->soonest].next) shares->soonest = i;
    }
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
    return shares->soonest < 0 ? -1 : shares->share[shares->soonest].next;
}

ShareUser shares_pop(Shares *shares) {
    Share_ *share = &shares->share[shares->soonest];
    Entry_ first = share->users[share->first];
    share->since = share->next;
    share->clock = first.done; // exactly, so that users who came together are done together
    share->users[share->first] = share->users[--share->count];
    settle_(shares, share);
    return first.user;
}
