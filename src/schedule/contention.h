// Resources that several users share evenly: the network of a node, the cores of a host. While n of a resource's users
// are under way, each runs at min(1, capacity / n) of the speed it has alone (processor sharing). Used by the simulator
// alone.
#ifndef CONTENTION_H
#define CONTENTION_H

#include <stdbool.h>

typedef struct Contention Contention;

typedef struct ContentionUser {
    int kind, stage; // the caller's own words
} ContentionUser;

// capacity[i]: users of resource i that run at full speed. NULL when memory is out.
Contention *contention_create(int count, const double *capacity);
void contention_free(Contention *contention);

// From `now` on `user` needs `duration` of the resource at full speed. -1 when memory is out.
int contention_add(Contention *contention, int resource, double now, double duration, ContentionUser user);

// When the next user is done; a negative number when nobody is under way.
double contention_next(const Contention *contention);

// Takes out the user that is done at contention_next(), which is now.
ContentionUser contention_pop(Contention *contention);

#endif
