// The control plane: all ranks of the job, over MPI if that is built in, else a single rank. Messages are small and
// blocking. Waiting ranks sleep between polls, so that they leave the cores to ranks that compute.
#pragma once

#include "status_page.h"
#include "comm/comm.h"
#include "base/log.h"

typedef struct World World;

// Joins the launcher's job (mpirun, srun); without a launcher, creates a world of one rank. argc, argv: the arguments
// of main.
World *world_join(int *argc, char ***argv, Error *err);

// Sets *under to whether a launcher started this process as a rank, judged by the environment, before MPI is called.
// Returns -1 with err in a Slurm step of several tasks without MPI support (the message suggests srun --mpi=pmix) and
// under torchrun.
int world_under_launcher(bool *under, Error *err);

// Returns whether the launcher's environment says that all ranks run on this host.
bool world_on_one_host(void);

// Returns true on the first rank of each host, judged by the launcher's environment, so that only one rank per host
// prints before the world exists.
bool world_speaks(void);

int world_rank(const World *);
int world_size(const World *);

// This rank's host, and its position on that host.
typedef struct WorldPlace {
    int local_rank, local_size; // rank within this host; number of ranks on this host
    int node, nodes;            // index of this host, in the order of lowest ranks; number of hosts
    double clock_offset;        // seconds to add to this host's clock_seconds() to get rank 0's (world_compare_clocks)
    char host[256];
    char library[96]; // library of the control plane, with its version
} WorldPlace;

const WorldPlace *world_place(const World *); // lives as long as the world

// Collective, and part of world_join: measures clock_offset, about 2 ms per host. Clocks of hosts drift apart.
int world_compare_clocks(World *, Error *);

// Returns a log for messages in the name of all ranks: rank 0 writes them, and the other ranks are silent.
Log world_log(const World *, const Log *log);

// Sets the page on which waits and progress are published. NULL: publishes nothing.
void world_set_status_page(World *, StatusPage *page);
// Counts progress that the engine's actions do not show, such as a file read. Any thread; NULL: does nothing.
void world_progress(World *);
// Publishes that this run has saved a checkpoint. Any thread.
void world_saved(World *);

// Every rank of the job calls these in the same order.
int world_barrier(World *, Error *);
int world_broadcast(World *, void *data, int64_t bytes, Error *);                   // copies rank 0's data to all ranks
int world_gather(World *, void *all, const void *mine, int64_t bytes, Error *);     // all: size * bytes, on rank 0
int world_gather_all(World *, void *all, const void *mine, int64_t bytes, Error *); // all: size * bytes, on every rank
// Sums in an order that depends only on the number of ranks, and returns the result on every rank. The sum of one
// rank's value and zeros is exact.
int world_sum(World *, double *data, int64_t count, Error *);
// Returns the peer of a rank in round n = 1, 2, 4 ... of a sum over `size` ranks, or -1; the higher rank sends. In this
// tree rank r receives the sum of the ranks r + n to r + 2n - 1, so a rank has few peers. Over TCP, every peer takes a
// connection.
int world_sum_peer(int rank, int size, int n);
int world_max(World *, double *data, int count, Error *); // result everywhere

// Creates a group of the ranks with the same `color`, ordered by `key`. color -1: the rank joins no group, and gets
// NULL without err. All ranks call it in the same order.
Comm *world_split(World *, const char *name, int color, int key, Error *err);

// Collective. If `mine` is an error on any rank, every rank returns -1 with the error of the lowest such rank. So all
// ranks fail together and one rank reports the error.
int world_agree(World *, const Error *mine, Error *err);

// Ends the job: never returns. Peers end within seconds.
void world_abort(World *, int code) __attribute__((noreturn));

// Leaves cleanly with an exit code (collective).
void world_leave(World *, int code);
