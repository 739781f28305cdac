// Resources that several users share evenly: the network of a node, the cores of a host. While n users of a resource
// are active, each runs at min(1, capacity / n) of the speed it has alone (processor sharing). Used only by the
// simulator.
#pragma once

typedef struct Contention Contention;

typedef struct ContentionUser {
    int kind, stage; // meaning is the caller's
} ContentionUser;

// Creates `count` resources. capacity[i]: users of resource i that run at full speed.
Contention *contention_create(int count, const double *capacity);
void contention_free(Contention *contention);

// Adds a user that, from `now` on, needs `duration` of the resource at full speed.
void contention_add(Contention *contention, int resource, double now, double duration, ContentionUser user);

// Returns when the next user is done; negative if all are idle.
double contention_next(const Contention *contention);

// Removes the user that is done at contention_next(), which is now.
ContentionUser contention_pop(Contention *contention);
