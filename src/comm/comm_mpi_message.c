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

int comm_mpi_start(CommMpi *comm, bool sends, int peer, void *memory, int64_t bytes, int tag, MPI_Request *request,
                   Error *err) {
    MPI_Datatype type = MPI_BYTE;
    bool longer = bytes > comm->limit;
    int count = longer ? 1 : (int)bytes, code = longer ? long_type_(bytes, comm->limit, &type) : MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        code = sends ? MPI_Isend(memory, count, type, peer, tag, comm->mpi, request)
                     : MPI_Irecv(memory, count, type, peer, tag, comm->mpi, request);
    if (type != MPI_BYTE && type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    if (code == MPI_SUCCESS) return 0;
    return comm_mpi_fail(comm, code, sends ? "starting a send to" : "starting a receive from", peer, err);
}

#else
typedef int comm_mpi_message_is_empty_without_mpi_;
#endif
