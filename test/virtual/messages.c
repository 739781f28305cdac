// Clocks on the host's messages: MPI's calls, wrapped (the PMPI interface, MPI 3.1, chapter 14). A message makes what
// its sender did before it happen before what its receiver does after it. The clocks travel through the job's segment:
// a receiver takes on all that its peer has sent it so far, which may order a little more than the message itself does.
// Pinned memory that MPI sends from or receives into counts as read and written by the host.
//
// It is linked into the program. The library with the virtual GPU fills in virtual_messages when it is loaded; until
// then, and in runs on CPUs, the calls go straight through.
#ifdef HAVE_MPI

#include "messages.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

// The library finds it by its name.
__attribute__((visibility("default"))) VirtualMessages virtual_messages;

enum { WAITING = 4096 };

// A request that has not completed: what its end means.
typedef struct Pending {
    MPI_Request request;
    MPI_Comm comm;
    int peer; // rank in comm; ALL: everybody
    bool receives;
    void *buffer;
    int64_t bytes;
} Pending;

enum { ALL = -1 };
static Pending pending_[WAITING];

static bool live_(void) {
    return virtual_messages.sent != NULL;
}

// The place in the job of a rank of `comm`.
static int world_rank_(MPI_Comm comm, int rank) {
    MPI_Group group, world;
    int found = 0;
    PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_translate_ranks(group, 1, &rank, world, &found);
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    return found;
}

static int size_(MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_size(comm, &size);
    return size;
}

static int64_t bytes_(int count, MPI_Datatype type) {
    MPI_Count size = 0;
    PMPI_Type_size_x(type, &size);
    return (int64_t)size * count;
}

static void sends_(MPI_Comm comm, int peer) {
    for (int r = 0; r < size_(comm); r++)
        if (peer == ALL || peer == r) virtual_messages.sent(world_rank_(comm, r));
}

// A handle that is in the table already was completed by a call that is not wrapped, or is that of sends that end at
// once.
static void keep_(MPI_Request request, MPI_Comm comm, int peer, bool receives, void *buffer, int64_t bytes) {
    for (int i = 0; i < WAITING; i++)
        if (pending_[i].request == request) memset(&pending_[i], 0, sizeof pending_[i]);
    for (int i = 0; i < WAITING; i++)
        if (pending_[i].request == 0) {
            pending_[i] = (Pending){request, comm, peer, receives, buffer, bytes};
            return;
        }
}

static void complete_(MPI_Request request) {
    for (int i = 0; i < WAITING; i++) {
        Pending *p = &pending_[i];
        if (p->request != request) continue;
        for (int r = 0; p->receives && r < size_(p->comm); r++)
            if (p->peer == ALL || p->peer == r) virtual_messages.received(world_rank_(p->comm, r));
        virtual_messages.touched(p->buffer, p->bytes, p->receives);
        memset(p, 0, sizeof *p);
        return;
    }
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    if (live_()) {
        virtual_messages.touched((void *)from, bytes_(count, type), false);
        sends_(comm, peer);
    }
    int code = PMPI_Isend(from, count, type, peer, tag, comm, request);
    if (live_()) keep_(*request, comm, peer, false, (void *)from, bytes_(count, type));
    return code;
}

int MPI_Irecv(void *to, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    if (live_()) virtual_messages.touched(to, bytes_(count, type), true);
    int code = PMPI_Irecv(to, count, type, peer, tag, comm, request);
    if (live_()) keep_(*request, comm, peer, true, to, bytes_(count, type));
    return code;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    MPI_Request before = *request;
    int code = PMPI_Test(request, done, status);
    if (live_() && *done) complete_(before);
    return code;
}

int MPI_Testall(int count, MPI_Request requests[], int *done, MPI_Status statuses[]) {
    MPI_Request *before = malloc((size_t)count * sizeof *before);
    if (before != NULL && count > 0) memcpy(before, requests, (size_t)count * sizeof *before);
    int code = PMPI_Testall(count, requests, done, statuses);
    for (int i = 0; live_() && *done && before != NULL && i < count; i++) complete_(before[i]);
    free(before);
    return code;
}

static int collective_(int code, MPI_Comm comm, MPI_Request request) {
    if (live_()) {
        sends_(comm, ALL);
        keep_(request, comm, ALL, true, NULL, 0);
    }
    return code;
}

int MPI_Iallgather(const void *in, int count, MPI_Datatype type, void *out, int out_count, MPI_Datatype out_type,
                   MPI_Comm comm, MPI_Request *request) {
    int code = PMPI_Iallgather(in, count, type, out, out_count, out_type, comm, request);
    return collective_(code, comm, *request);
}

int MPI_Iallreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    int code = PMPI_Iallreduce(in, out, count, type, op, comm, request);
    return collective_(code, comm, *request);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    int code = PMPI_Ibarrier(comm, request);
    return collective_(code, comm, *request);
}

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    int code = PMPI_Ibcast(data, count, type, root, comm, request);
    return collective_(code, comm, *request);
}

// Ranks of one virtual node share a machine: nodes are dealt in contiguous blocks of ranks (VIRTUAL_NODES).
int MPI_Comm_split_type(MPI_Comm comm, int kind, int key, MPI_Info info, MPI_Comm *out) {
    const char *nodes = getenv("VIRTUAL_NODES");
    int count = nodes == NULL ? 1 : atoi(nodes), rank = 0, size = size_(MPI_COMM_WORLD);
    if (kind != MPI_COMM_TYPE_SHARED || count <= 1 || size < count)
        return PMPI_Comm_split_type(comm, kind, key, info, out);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return PMPI_Comm_split(comm, rank / ((size + count - 1) / count), key, out);
}

#endif
