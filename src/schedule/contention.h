// Resources that several users share evenly: the network of a node, the cores of a host. While n users of a resource
// are active, each runs at min(1, capacity / n) of its full speed (processor sharing). Used only by the simulator.
#pragma once

typedef struct Contention Contention;

typedef struct ContentionUser {
    int kind, stage; // used only by the caller
} ContentionUser;

// Creates `count` resources. capacity[i]: largest number of users of resource i that run at full speed.
Contention *contention_create(int count, const double *capacity);
void contention_free(Contention *contention);

// Adds a user that, from `now` on, needs `duration` of the resource at full speed.
void contention_add(Contention *contention, int resource, double now, double duration, ContentionUser user);

// Returns the time at which the resource's next user is done; INFINITY if the resource is idle.
double contention_next(const Contention *contention, int resource);

// Removes and returns the user that is done next. Call it when the time has advanced to contention_next().
ContentionUser contention_pop(Contention *contention, int resource);
