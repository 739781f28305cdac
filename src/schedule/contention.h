// Resources that several users share evenly: the network of a node, the cores of a host. While n users of a resource
// are active, each runs at min(1, capacity / n) of its full speed (processor sharing). Used only by the simulator.
//
// Each resource has its own clock, which advances by min(1, capacity / n) per second while the resource has n users.
// All its users progress at this rate. So a user is done when the clock has advanced by the user's duration, however
// many users start and end meanwhile.
//
// Users may need a resource of capacity 1 for only a part of their time, as stages need their node's network for
// collectives. They meet there at random, for a mean time that mean value analysis finds (Reiser and Lavenberg 1980): a
// user that comes finds what one user fewer leaves there. Users that always need the resource, as messages do, are
// users of a second resource, and each of the two has the other as its `rival`.
#pragma once

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

typedef struct ContentionUser {
    int kind, stage; // used only by the caller
    double done;     // reading of the resource's clock at which the user is done
} ContentionUser;

typedef struct Share {
    double capacity, clock;
    double part;           // fraction of a user's time in which it needs the resource
    struct Share *rival;   // the resource whose users need the same; NULL: none
    double speed;          // speed of an undisturbed user; 1 unless contention_slow changed it
    double since;          // time at which the clock was last set
    ContentionUser *users; // heap: the user that finishes first is at 0
    int count, allocated;
    double next; // time at which the first user is done; INFINITY while count is 0
} Share;

typedef struct Contention {
    int count;
    Share *share;
} Contention;

// Creates `count` resources. capacity[i]: largest number of users of resource i that run at full speed. part: of a
// user's time in which it needs the resource; NULL: 1. rival[i]: index of the resource's rival, or -1; NULL: no rivals.
static inline Contention *contention_create(int count, const double *capacity, const double *part, const int *rival) {
    Contention *contention = xcalloc(1, sizeof *contention);
    *contention = (Contention){count, xcalloc((size_t)count, sizeof *contention->share)};
    for (int i = 0; i < count; i++) {
        Share *share = &contention->share[i];
        *share = (Share){.capacity = capacity[i], .part = part == NULL ? 1 : part[i], .speed = 1, .next = INFINITY};
        if (rival != NULL && rival[i] >= 0) share->rival = &contention->share[rival[i]];
    }
    return contention;
}

static inline void contention_free(Contention *contention) {
    if (contention == NULL) return;
    for (int i = 0; i < contention->count; i++) free(contention->share[i].users);
    free_all(contention->share, contention);
}

// Returns the speed of `users` that need a resource for `part` of their time, beside `always` that always need it.
static inline double contention_meet(double part, int users, int always) {
    double speed = 1, there = 0; // there: the mean number of the users that need it at a time
    for (int n = 1; n <= users; n++) {
        double waiting = part * (1 + always + there);
        speed = 1 / (1 - part + waiting);
        there = n * waiting * speed;
    }
    return speed;
}

static inline double contention_speed(const Share *share) {
    const Share *rival = share->rival;
    if (share->part < 1) return share->speed * contention_meet(share->part, share->count, rival ? rival->count : 0);
    if (rival == NULL) return share->speed * (share->count <= share->capacity ? 1 : share->capacity / share->count);
    double taken = rival->count * rival->part * rival->speed * contention_meet(rival->part, rival->count, share->count);
    return (1 - taken) / share->count;
}

// Advances the resource's clock to `now`.
static inline void contention_advance(Share *share, double now) {
    if (share->count > 0) share->clock += (now - share->since) * contention_speed(share);
    share->since = now;
}

// Updates the time at which the resource's first user is done.
static inline void contention_settle(Share *share) {
    double left = share->count == 0 ? INFINITY : share->users[0].done - share->clock;
    share->next = share->since + (left > 0 ? left / contention_speed(share) : 0); // rounding may leave slightly less
}

// Adds a user that, from `now` on, needs `duration` of the resource at full speed.
static inline void contention_add(Contention *contention, int resource, double now, double duration,
                                  ContentionUser user) {
    Share *share = &contention->share[resource];
    if (share->count == share->allocated) {
        share->allocated = 2 * share->allocated + 8;
        share->users = xrealloc(share->users, (size_t)share->allocated * sizeof *share->users);
    }
    if (share->rival != NULL) contention_advance(share->rival, now);
    contention_advance(share, now);
    user.done = share->clock + duration;
    int at = share->count++;
    for (int parent; at > 0 && user.done < share->users[parent = (at - 1) / 2].done; at = parent)
        share->users[at] = share->users[parent];
    share->users[at] = user;
    contention_settle(share);
    if (share->rival != NULL) contention_settle(share->rival);
}

// Lets users at full speed progress at `speed` from `now` on.
static inline void contention_slow(Contention *contention, int resource, double now, double speed) {
    Share *share = &contention->share[resource];
    if (share->rival != NULL) contention_advance(share->rival, now);
    contention_advance(share, now);
    share->speed = speed;
    contention_settle(share);
    if (share->rival != NULL) contention_settle(share->rival);
}

// Removes and returns the user that is done next. Call it when the time has advanced to Share.next.
static inline ContentionUser contention_pop(Contention *contention, int resource) {
    Share *share = &contention->share[resource];
    if (share->rival != NULL) contention_advance(share->rival, share->next);
    ContentionUser *users = share->users, first = users[0], last = users[--share->count];
    int at = 0;
    share->since = share->next;
    share->clock = first.done; // set exactly, so that users who started together end together
    for (int child; (child = 2 * at + 1) < share->count; at = child) {
        if (child + 1 < share->count) child += users[child + 1].done < users[child].done;
        if (last.done <= users[child].done) break;
        users[at] = users[child];
    }
    users[at] = last;
    contention_settle(share);
    if (share->rival != NULL) contention_settle(share->rival);
    return first;
}
