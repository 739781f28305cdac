// Behind world.h: what the two kinds of world (ranks over MPI, one rank alone) have to provide. Only world*.c include it.
#ifndef WORLD_OPS_H
#define WORLD_OPS_H

#include "world.h"

typedef struct WorldOps {
    int (*barrier)(World *, Error *);
    int (*broadcast)(World *, int root, void *data, int64_t bytes, Error *);
    int (*gather)(World *, int root, void *all, const void *mine, int64_t bytes, Error *);
    int (*sum)(World *, double *data, int64_t count, Error *);
    int (*max)(World *, double *data, int64_t count, Error *);
    Comm *(*split)(World *, const char *name, int color, int key, Error *err);
    void (*abort)(World *, int code); // may return; the caller then ends the process
    void (*leave)(World *);
} WorldOps;

struct World {
    const WorldOps *ops;
    void *self; // of the kind
    StatusPage *status_page;
    int rank, size, local_rank, local_size, node, nodes;
    double clock_offset;
    char host[256], library[96];
};

// Both fill a World whose sizes say one rank on one host, and return 0, or -1 with err.
int world_start_alone(World *world, Error *err);
int world_start_mpi(World *world, int *argc, char ***argv, Error *err);

// The error of a Slurm step whose `tasks` tasks do not see each other. Always -1.
int world_slurm_error(int tasks, Error *err);

// Tasks of the Slurm step this process runs in; 0 outside of one.
int world_slurm_tasks(void);

#endif
