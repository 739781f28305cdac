// Messages over MPI, for ranks whose data are in host memory. Every call starts an operation and returns. The work
// happens in test: Open MPI makes progress there, and so does every collective in progress in any group, so that two
// ranks that wait for different things still help each other along. On one machine the receiver copies straight out of
// the sender's memory, the complete message inside one call of the receiver (about 8 GB/s: 100 MB take 13 ms); the
// sender only has to poll now and then. Only files that use MPI include this.
#pragma once

#include "comm.h"

#include <mpi.h>

typedef struct Collective Collective;

// The collectives in progress in all groups of a process. The owner of the groups owns it; it outlives them.
typedef struct CommMpiWork {
    Collective *first;
} CommMpiWork;

// Workspace for a group's sums (use_workspace of comm.h). `taken` has a bit for each sum in progress.
typedef struct CommWorkspace {
    char *memory;
    int64_t bytes;
    int sums;
    unsigned taken;
} CommWorkspace;

// One group. It owns the communicator. If the caller supplies no workspace, it also owns the scratch memory of its
// collectives and keeps it for the next ones: at most COMM_PIECE_BYTES (plus rounding) for each collective that was
// ever in progress at the same time.
typedef struct CommMpi {
    Comm base;
    MPI_Comm mpi;
    int64_t limit; // longer messages travel as one element of a derived type, since MPI counts in int
    int sequence;  // collectives started, equal on all ranks: distinguishes those in progress
    Collective *idle;
    CommWorkspace workspace;
    const Crc64 *crc; // checksum of collectives' messages; NULL: unchecked
    CommMpiWork *work;
} CommMpi;

enum { COMM_MESSAGE_LIMIT = 1 << 30 };

// The kind of operation of a request, in detail[0].
enum { KIND_SEND = 1, KIND_RECEIVE, KIND_COLLECTIVE };

// Takes ownership of `mpi`. Call destroy before MPI_Finalize.
Comm *comm_mpi_create(MPI_Comm mpi, const char *name, CommMpiWork *work);

// Returns the scratch memory that the group owns, for collectives that are not in progress.
int64_t comm_mpi_scratch_bytes(const Comm *comm);
