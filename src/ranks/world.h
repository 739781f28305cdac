// The control plane: all ranks of the job, over MPI if it is built in, else one rank alone. Its messages are small and
// blocking; waiting ranks sleep between polls, so that they leave the cores to ranks that compute.
#pragma once

#include "status_page.h"
#include "comm/comm.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct World World;

// Joins the job this process was started in (mpirun, srun), or is alone. argc/argv as main received them.
World *world_join(int *argc, char ***argv, Error *err);

// Sets *under if a launcher started this process as one of several ranks, judged by the environment before MPI is
// touched. Returns -1 with err for a Slurm step whose tasks MPI cannot see, naming srun --mpi=pmix.
int world_under_launcher(bool *under, Error *err);

// Returns whether the launcher's environment says that all ranks run on this host.
bool world_on_one_host(void);

// Returns false on all ranks of a host but the first, by the launcher's environment, so that only one of them prints
// before there is a world.
bool world_speaks(void);

int world_rank(const World *);
int world_size(const World *);

// Where this rank is.
typedef struct WorldPlace {
    int local_rank, local_size; // among the ranks of this host
    int node, nodes;            // hosts, numbered by their lowest rank
    double clock_offset;        // seconds to add to this host's clock_seconds() to get rank 0's, measured at the start
    char host[256];
    char library[96]; // library of the control plane, with its version
} WorldPlace;

const WorldPlace *world_place(const World *); // lives as long as the world

// Returns a log in the name of all ranks, with which rank 0 writes and the others are silent.
Log world_log(const World *, const Log *log);

// Sets the page on which waits and progress are published, or NULL.
void world_set_status_page(World *, StatusPage *page);
// Counts progress that the engine's actions do not show, such as a file read. Any thread; NULL: does nothing.
void world_progress(World *);

// Every rank of the job calls these in the same order.
int world_barrier(World *, Error *);
int world_broadcast(World *, void *data, int64_t bytes, Error *);                   // rank 0's data
int world_gather(World *, void *all, const void *mine, int64_t bytes, Error *);     // all: size * bytes, on rank 0
int world_gather_all(World *, void *all, const void *mine, int64_t bytes, Error *); // the same on every rank
int world_sum(World *, double *data, int64_t count, Error *);                       // in rank order, result everywhere
int world_max(World *, double *data, int count, Error *);                           // result everywhere

// Makes a group from `color` (equal numbers join; -1: joins no group, returns NULL without error) ordered by `key`. All
// ranks call it in the same order.
Comm *world_split(World *, const char *name, int color, int key, Error *err);

// Collective. If `mine` is an error on any rank, returns -1 with the error of the lowest such rank on all, so that all
// ranks fail together and one of them reports it.
int world_agree(World *, const Error *mine, Error *err);

// Ends the job: never returns. Peers end within seconds.
void world_abort(World *, int code) __attribute__((noreturn));

// Leaves cleanly with an exit code (collective).
void world_leave(World *, int code);
