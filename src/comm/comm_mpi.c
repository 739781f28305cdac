// A group over MPI: its point-to-point messages, and the requests of messages and collectives. Both are started in
// comm_mpi_message.c.
#ifdef HAVE_MPI

#include "comm_mpi.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { TAG_MESSAGE = 0 };

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "an MPI_Request is kept in a handle");

// Starts a message and describes it for the tests that follow: the MPI request, its kind, and the length that has to
// arrive.
static int mpi_start_(Comm *base, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request, Error *err) {
    CommMpi *comm = base->self;
    MPI_Request mpi;
    if (peer < 0 || peer >= base->size || peer == base->rank || bytes < 0)
        return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: cannot exchange %lld bytes with rank %d",
                         base->name, base->rank, base->size, (long long)bytes, peer);
    if (comm_mpi_start(comm, sends, peer, memory, bytes, TAG_MESSAGE, &mpi, err) != 0) return -1;
    *request = (CommRequest){.detail = {sends ? KIND_SEND : KIND_RECEIVE, peer, bytes}, .active = true};
    memcpy(request->handle, &mpi, sizeof mpi);
    return 0;
}

static int mpi_send_(Comm *base, int peer, const void *from, int64_t bytes, CommRequest *request, Error *err) {
    return mpi_start_(base, true, peer, (void *)from, bytes, request, err);
}

static int mpi_receive_(Comm *base, int peer, void *to, int64_t bytes, CommRequest *request, Error *err) {
    return mpi_start_(base, false, peer, to, bytes, request, err);
}

// MPI reports a message that was too long, but accepts one that was too short.
static int check_length_(const CommMpi *comm, const CommRequest *request, MPI_Status *status, Error *err) {
    MPI_Count bytes = 0;
    MPI_Get_elements_x(status, MPI_BYTE, &bytes);
    if ((int64_t)bytes == request->detail[2]) return 1;
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: rank %d sent %lld bytes where %lld were expected",
                     comm->base.name, comm->base.rank, comm->base.size, (int)request->detail[1], (long long)bytes,
                     (long long)request->detail[2]);
}

static int test_message_(CommMpi *comm, CommRequest *request, Error *err) {
    MPI_Request mpi;
    MPI_Status status;
    int done = 0;
    memcpy(&mpi, request->handle, sizeof mpi);
    int code = MPI_Test(&mpi, &done, &status);
    bool receives = request->detail[0] == KIND_RECEIVE;
    if (code != MPI_SUCCESS) {
        request->active = false;
        return comm_mpi_fail(comm, code, receives ? "a receive from" : "a send to", (int)request->detail[1], err);
    }
    if (!done) return 0;
    request->active = false;
    return receives ? check_length_(comm, request, &status, err) : 1;
}

// Every test advances all collectives of the process first (comm_mpi.h says why), then looks at its own request.
static int mpi_test_(Comm *base, CommRequest *request, Error *err) {
    if (!request->active) return 1;
    CommMpi *comm = base->self;
    comm_mpi_progress(comm->work);
    if (request->detail[0] == KIND_COLLECTIVE) return comm_mpi_test_collective(comm, request, err);
    return test_message_(comm, request, err);
}

static void mpi_destroy_(Comm *base) {
    CommMpi *comm = base->self;
    comm_mpi_free_collectives(comm);
    MPI_Comm_free(&comm->mpi);
    free(comm);
}

Comm *comm_mpi_create(MPI_Comm mpi, const char *name, CommMpiWork *work) {
    CommMpi *comm = xcalloc(1, sizeof *comm);
    Comm *base = &comm->base;
    comm->mpi = mpi;
    comm->work = work;
    comm->limit = COMM_MESSAGE_LIMIT;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &base->rank);
    MPI_Comm_size(mpi, &base->size);
    snprintf(base->name, sizeof base->name, "%s", name);
    base->self = comm;
    base->send = mpi_send_;
    base->receive = mpi_receive_;
    base->all_reduce = comm_mpi_all_reduce;
    base->all_gather = comm_mpi_all_gather;
    base->reduce_scatter = comm_mpi_reduce_scatter;
    base->use_workspace = comm_mpi_use_workspace;
    base->use_checksums = comm_mpi_use_checksums;
    base->test = mpi_test_;
    base->destroy = mpi_destroy_;
    return base;
}

#else
typedef int comm_mpi_is_empty_without_mpi_;
#endif
