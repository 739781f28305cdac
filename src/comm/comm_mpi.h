// Messages over MPI, for ranks whose memory is the host's. Every call starts and returns; work happens in test, which
// is where Open MPI makes progress, and where every collective that is under way in any group is taken on: two ranks
// may wait for different things first and still help each other along. On one machine the receiver copies straight out
// of the sender's memory, the whole message in one go inside the receiver's call (about 8 GB/s: 100 MB take 13 ms); the
// sender only has to look in now and then. Only files that speak MPI include this.
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include "comm.h"

#include <mpi.h>

typedef struct Collective Collective;

// The collectives under way in all groups of a process. Belongs to whoever makes the groups and outlives them.
typedef struct CommMpiWork {
    Collective *first;
} CommMpiWork;

// Room of a group's sums, by comm.h's use_workspace. A bit of `taken` for each sum under way.
typedef struct CommWorkspace {
    char *memory;
    int64_t bytes;
    int sums;
    unsigned taken;
} CommWorkspace;

// One group. It owns the communicator. Without room of the caller's it owns the scratch memory of its collectives too,
// which is kept for the next ones: at most COMM_PIECE_BYTES (plus rounding) for each collective that was ever under way
// at the same time.
typedef struct CommMpi {
    Comm base;
    MPI_Comm mpi;
    int64_t limit; // messages beyond it travel as one element of a derived type, since MPI counts in int
    int sequence;  // collectives started, alike on all ranks: it keeps those under way at once apart
    Collective *idle;
    CommWorkspace workspace;
    const Crc64 *crc; // of the messages of collectives; NULL: unchecked
    CommMpiWork *work;
} CommMpi;

enum { COMM_MESSAGE_LIMIT = 1 << 30 };

// Takes over `mpi`, also when it fails. destroy frees it, before MPI_Finalize.
Comm *comm_mpi_create(MPI_Comm mpi, const char *name, CommMpiWork *work, Error *err);

// --- between comm_mpi.c (messages) and comm_mpi_collective.c
int comm_mpi_start_send(CommMpi *comm, int peer, const void *from, int64_t bytes, int tag, MPI_Request *, Error *err);
int comm_mpi_start_receive(CommMpi *comm, int peer, void *to, int64_t bytes, int tag, MPI_Request *, Error *err);
int comm_mpi_fail(const CommMpi *comm, int code, const char *doing, int peer, Error *err); // always -1

int comm_mpi_all_reduce(Comm *, void *data, int64_t count, CommType, CommRequest *, Error *);
int comm_mpi_all_gather(Comm *, void *out, const void *in, int64_t count, CommType, CommRequest *, Error *);
void comm_mpi_use_workspace(Comm *, void *memory, int64_t bytes, int sums);
void comm_mpi_use_checksums(Comm *, const Crc64 *crc);
int comm_mpi_reduce_scatter(Comm *, void *out, const void *in, int64_t count, CommType, CommRequest *, Error *);
void comm_mpi_progress(CommMpiWork *work);
int comm_mpi_test_collective(CommMpi *comm, CommRequest *request, Error *err);
void comm_mpi_free_collectives(CommMpi *comm);
int64_t comm_mpi_scratch_bytes(const Comm *comm); // that the group owns, of the collectives that are not under way

#endif
