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

// One group. It owns the communicator. If the caller supplies no workspace, each sum in progress allocates at most
// COMM_PIECE_BYTES (plus rounding).
typedef struct CommMpi {
    Comm base;
    MPI_Comm mpi;
    int64_t limit; // bytes; a longer message is sent as one element of a derived type, since MPI counts in int
    int sequence;  // number of the next collective, equal on all ranks; determines its tag
    CommWorkspace workspace;
    Collective **work; // list of the collectives in progress in all groups of the process
} CommMpi;

enum { COMM_MESSAGE_LIMIT = 1 << 30 };

// The kind of operation of a request, in detail[0].
enum { KIND_SEND = 1, KIND_RECEIVE, KIND_COLLECTIVE };

// Takes ownership of `mpi`. Call destroy before MPI_Finalize. *work is NULL before the first group, and outlives all.
Comm *comm_mpi_create(MPI_Comm mpi, const char *name, Collective **work);
