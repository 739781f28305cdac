// Each resource has its own clock, which advances by min(1, capacity / n) per second while the resource has n users.
// All its users progress at this rate. So a user is done when the clock has advanced by the user's duration, however
// many users start and end meanwhile. The users of a resource are a heap.
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
    double next; // time at which the first user is done; INFINITY while count is 0
} Share;

struct Contention {
    int count;
    Share *share;
};

Contention *contention_create(int count, const double *capacity) {
    Contention *contention = xcalloc(1, sizeof *contention);
    contention->count = count;
    contention->share = xcalloc((size_t)count, sizeof *contention->share);
    for (int i = 0; i < count; i++) {
        contention->share[i].capacity = capacity[i];
        contention->share[i].next = INFINITY;
    }
    return contention;
}

void contention_free(Contention *contention) {
    if (contention == NULL) return;
    for (int i = 0; i < contention->count; i++) free(contention->share[i].users);
    free_all(contention->share, contention);
}

static double speed_(const Share *share) {
    return share->count <= share->capacity ? 1 : share->capacity / share->count;
}

// Updates the time at which the resource's first user is done, after a user was added or removed.
static void contention_settle_(Share *share) {
    double left = share->count == 0 ? INFINITY : share->users[0].done - share->clock;
    share->next = share->since + (left > 0 ? left : 0) / speed_(share); // rounding may leave slightly less than zero
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
    contention_settle_(share);
}

double contention_next(const Contention *contention, int resource) { return contention->share[resource].next; }

ContentionUser contention_pop(Contention *contention, int resource) {
    Share *share = &contention->share[resource];
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
    contention_settle_(share);
    return first.user;
}
