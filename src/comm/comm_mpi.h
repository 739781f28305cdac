// Messages over MPI, for ranks with data in host memory. Every call only starts an operation. The work happens in test,
// which lets Open MPI progress and advances the collectives of all groups, so that two ranks that wait for different
// operations still answer each other. On one machine the receiver copies directly from the sender's memory, the
// complete message in one call (about 8 GB/s: 100 MB take 13 ms), and the sender only has to poll now and then. Only
// files that use MPI include this header.
#pragma once

#include "comm.h"

#include <mpi.h>

typedef struct Collective Collective;

// Workspace for a group's sums (use_workspace of comm.h): `sums` pieces of `bytes`. `taken` has a bit per piece in use.
typedef struct CommWorkspace {
    char *memory;
    int64_t bytes;
    int sums;
    unsigned taken;
} CommWorkspace;

// One group. It owns the communicator. If the caller supplies no workspace, it also owns the scratch memory of its
// collectives and keeps it for later collectives: at most COMM_PIECE_BYTES (plus rounding) times the largest number of
// collectives that were in progress at the same time.
typedef struct CommMpi {
    Comm base;
    MPI_Comm mpi;
    int64_t limit; // bytes; a longer message is sent as one element of a derived type, since MPI counts in int
    int sequence;  // number of the next collective, equal on all ranks; determines its tag
    Collective *idle;
    CommWorkspace workspace;
    Collective **work; // list of the collectives in progress in all groups of the process
} CommMpi;

enum { COMM_MESSAGE_LIMIT = 1 << 30 };

// The kind of operation of a request, in detail[0].
enum { KIND_SEND = 1, KIND_RECEIVE, KIND_COLLECTIVE };

// Takes ownership of `mpi`. Call destroy before MPI_Finalize. *work is NULL before the first group, and outlives all.
Comm *comm_mpi_create(MPI_Comm mpi, const char *name, Collective **work);

// Returns the bytes of scratch memory that the group keeps in idle collectives, for later use.
int64_t comm_mpi_scratch_bytes(const Comm *comm);
