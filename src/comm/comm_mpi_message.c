// Starts the messages of MPI groups. MPI counts in int, so a message over `limit` bytes is sent as one element of a
// derived type.
#ifdef HAVE_MPI

#include "comm_mpi.h"

int comm_mpi_fail(const CommMpi *comm, int code, const char *doing, int peer, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: %s rank %d failed: %s", comm->base.name,
                     comm->base.rank, comm->base.size, doing, peer, text);
}

// Builds the type of a message of more than `limit` bytes: blocks of `limit` bytes, then the rest.
static int long_type_(int64_t bytes, int64_t limit, MPI_Datatype *type) {
    MPI_Datatype block, body;
    int code = MPI_Type_contiguous((int)limit, MPI_BYTE, &block);
    if (code != MPI_SUCCESS) return code;
    code = MPI_Type_contiguous((int)(bytes / limit), block, &body);
    MPI_Type_free(&block);
    if (code != MPI_SUCCESS) return code;
    int lengths[2] = {1, (int)(bytes % limit)};
    MPI_Aint starts[2] = {0, (MPI_Aint)(bytes / limit * limit)};
    MPI_Datatype parts[2] = {body, MPI_BYTE};
    code = MPI_Type_create_struct(2, lengths, starts, parts, type);
    MPI_Type_free(&body);
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

// Returns the type and count for `bytes`; the caller frees a type other than MPI_BYTE.
static int message_type_(const CommMpi *comm, int64_t bytes, MPI_Datatype *type, int *count) {
    *type = MPI_BYTE;
    *count = (int)bytes;
    if (bytes <= comm->limit) return MPI_SUCCESS;
    *count = 1;
    return long_type_(bytes, comm->limit, type);
}

int comm_mpi_start_send(CommMpi *comm, int peer, const void *from, int64_t bytes, int tag, MPI_Request *request,
                        Error *err) {
    MPI_Datatype type;
    int count;
    int code = message_type_(comm, bytes, &type, &count);
    if (code == MPI_SUCCESS) code = MPI_Isend(from, count, type, peer, tag, comm->mpi, request);
    if (type != MPI_BYTE && type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    return code == MPI_SUCCESS ? 0 : comm_mpi_fail(comm, code, "starting a send to", peer, err);
}

int comm_mpi_start_receive(CommMpi *comm, int peer, void *to, int64_t bytes, int tag, MPI_Request *request,
                           Error *err) {
    MPI_Datatype type;
    int count;
    int code = message_type_(comm, bytes, &type, &count);
    if (code == MPI_SUCCESS) code = MPI_Irecv(to, count, type, peer, tag, comm->mpi, request);
    if (type != MPI_BYTE && type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    return code == MPI_SUCCESS ? 0 : comm_mpi_fail(comm, code, "starting a receive from", peer, err);
}

#else
typedef int comm_mpi_message_is_empty_without_mpi_;
#endif
