// Each resource has its own clock, which advances by min(1, capacity / n) per second while the resource has n users.
// All its users progress at this rate. So a user is done when the clock has advanced by the user's duration, however
// many users start and end meanwhile. A tournament tree finds the resource on which a user is done next: a change
// replays only the games on its path to the root. The users of a resource are a heap.
#include "contention.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

typedef struct QueuedUser {
    double done; // reading of the resource's clock at which the user is done
    ContentionUser user;
} QueuedUser;

typedef struct Share {
    double capacity, clock;
    double since;      // time at which the clock was last set
    QueuedUser *users; // heap: the user that finishes first is at 0
    int count, allocated;
    double next; // time at which the first user is done; undefined while count is 0
} Share;

struct Contention {
    int count;
    // [2 * count]. Leaf count + i: resource i. Node k: the winner of 2k and 2k + 1, by smaller `next`. -1: all idle.
    int *winner;
    Share *share;
};

Contention *contention_create(int count, const double *capacity) {
    Contention *contention = xcalloc(1, sizeof *contention);
    contention->count = count;
    contention->share = xcalloc((size_t)count, sizeof *contention->share);
    contention->winner = xmalloc(2 * (size_t)count * sizeof *contention->winner);
    for (int i = 0; i < count; i++) contention->share[i].capacity = capacity[i];
    for (int i = 0; i < 2 * count; i++) contention->winner[i] = -1;
    return contention;
}

void contention_free(Contention *contention) {
    if (contention == NULL) return;
    for (int i = 0; i < contention->count; i++) free(contention->share[i].users);
    free_all(contention->share, contention->winner, contention);
}

static double speed_(const Share *share) {
    return share->count <= share->capacity ? 1 : share->capacity / share->count;
}

static int soonest_(const Contention *contention) { return contention->winner[1]; }

static int sooner_(const Contention *contention, int a, int b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    double first = contention->share[a].next, second = contention->share[b].next;
    return first < second || (first == second && a < b) ? a : b;
}

// Updates the time at which the resource's first user is done, and the tree, after a user was added or removed.
static void contention_settle_(Contention *contention, Share *share) {
    if (share->count > 0) {
        double left = share->users[0].done - share->clock; // rounding may leave slightly less than zero
        share->next = share->since + (left > 0 ? left : 0) / speed_(share);
    }
    int resource = (int)(share - contention->share);
    int *winner = contention->winner, at = contention->count + resource;
    winner[at] = share->count > 0 ? resource : -1;
    while ((at /= 2) > 0) {
        int before = winner[at];
        winner[at] = sooner_(contention, winner[2 * at], winner[2 * at + 1]);
        if (winner[at] == before && before != resource)
            return; // same winner: the rest of the tournament tree is unchanged
    }
}

void contention_add(Contention *contention, int resource, double now, double duration, ContentionUser user) {
    Share *share = &contention->share[resource];
    if (share->count == share->allocated) {
        share->allocated = 2 * share->allocated + 8;
        share->users = xrealloc(share->users, (size_t)share->allocated * sizeof *share->users);
    }
    if (share->count > 0) share->clock += (now - share->since) * speed_(share);
    share->since = now;
    double done = share->clock + duration;
    int at = share->count++;
    for (int parent; at > 0 && done < share->users[parent = (at - 1) / 2].done; at = parent)
        share->users[at] = share->users[parent];
    share->users[at] = (QueuedUser){done, user};
    contention_settle_(contention, share);
}

double contention_next(const Contention *contention) {
    return soonest_(contention) < 0 ? INFINITY : contention->share[soonest_(contention)].next;
}

ContentionUser contention_pop(Contention *contention) {
    Share *share = &contention->share[soonest_(contention)];
    QueuedUser *users = share->users, first = users[0], last = users[--share->count];
    int at = 0;
    share->since = share->next;
    share->clock = first.done; // set exactly, so that users who started together end together
    for (int child; (child = 2 * at + 1) < share->count; at = child) {
        if (child + 1 < share->count) child += users[child + 1].done < users[child].done;
        if (last.done <= users[child].done) break;
        users[at] = users[child];
    }
    users[at] = last;
    contention_settle_(contention, share);
    return first.user;
}
