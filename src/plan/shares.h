// Resources that several users share evenly: the network of a node, the cores of a host. While n of a resource's users are under way,
// each runs at min(1, capacity / n) of the speed it has alone (processor sharing). Used by the simulator alone.
#ifndef SHARES_H
#define SHARES_H

#include <stdbool.h>

typedef struct Shares Shares;

typedef struct ShareUser {
    int kind, stage; // the caller's own words
} ShareUser;

// capacity[i]: users of resource i that run at full speed. NULL when memory is out.
Shares *shares_create(int count, const double *capacity);
void shares_free(Shares *shares);

// From `now` on `user` needs `duration` of the resource at full speed. -1 when memory is out.
int shares_add(Shares *shares, int resource, double now, double duration, ShareUser user);

// When the next user is done; a negative number when nobody is under way.
double shares_next(const Shares *shares);

// Takes out the user that is done at shares_next(), which is now.
ShareUser shares_pop(Shares *shares);

#endif
