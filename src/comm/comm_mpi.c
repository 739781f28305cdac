// A group over MPI: its messages, its collectives, and the requests of both. MPI counts in int, so a message over
// `limit` bytes is sent as one element of a derived type.
//
// Collectives are built from plain messages, because their sums must run in rank order: each rank receives one block of
// the data from every other rank, sums it in rank order, and sends the result to all. Long data are processed piece by
// piece, so that the scratch memory is small for any length.
//
// An all_reduce of 7 elements a ... g over 3 ranks has blocks of 3, 3 and 1 elements (a2: rank 2's a):
//
//     PHASE_EXCHANGE   rank 0 receives a1 b1 c1 and a2 b2 c2, its block from both other ranks, into scratch;
//                      rank 1 receives d0 e0 f0 and d2 e2 f2, and rank 2 receives g0 and g1
//     sum              rank 0 computes (a0 + a1) + a2, rank 1 computes (d0 + d1) + d2: always in rank order
//     PHASE_SPREAD     rank 0 sends its sums of a b c to ranks 1 and 2, and receives the sums of d e f and of g
//
// A short piece needs one phase: every rank's block is the complete piece, so every rank computes all sums itself. The
// order is the same, so the bits are the same. A reduce_scatter is only PHASE_EXCHANGE, a gather only PHASE_SPREAD.
// With a root, all of a piece is the root's block: a reduce is only PHASE_EXCHANGE of it, a broadcast only
// PHASE_SPREAD. An exchange is one phase with blocks of any length.
//
// Any number of collectives of a group may be in progress, and each advances as soon as its own messages have arrived.
// MPI's own non-blocking collectives would have to start in one order on all ranks, so the second phase of a collective
// would wait for the first phases of all earlier collectives.
#ifdef HAVE_MPI

#include "comm_mpi.h"
#include "base/alloc.h"
#include "base/number_formats.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// --- messages

static int mpi_fail_(const CommMpi *comm, int code, const char *doing, int peer, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: %s rank %d failed: %s", comm->base.name,
                     comm->base.rank, comm->base.size, doing, peer, text);
}

// Builds the type of a message of more than `limit` bytes: blocks of `limit` bytes, then the rest.
static int long_type_(int64_t bytes, int64_t limit, MPI_Datatype *type) {
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE};
    int lengths[2] = {1, (int)(bytes % limit)};
    MPI_Aint starts[2] = {0, (MPI_Aint)(bytes / limit * limit)};
    int code = MPI_Type_vector((int)(bytes / limit), (int)limit, (int)limit, MPI_BYTE, &parts[0]);
    if (code == MPI_SUCCESS) code = MPI_Type_create_struct(2, lengths, starts, parts, type);
    if (parts[0] != MPI_DATATYPE_NULL) MPI_Type_free(&parts[0]);
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

static int mpi_begin_(CommMpi *comm, bool sends, int peer, void *memory, int64_t bytes, int tag, MPI_Request *request,
                      Error *err) {
    MPI_Datatype type = MPI_BYTE;
    bool longer = bytes > comm->limit;
    int count = longer ? 1 : (int)bytes, code = longer ? long_type_(bytes, comm->limit, &type) : MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        code = sends ? MPI_Isend(memory, count, type, peer, tag, comm->mpi, request)
                     : MPI_Irecv(memory, count, type, peer, tag, comm->mpi, request);
    if (type != MPI_BYTE && type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    if (code == MPI_SUCCESS) return 0;
    return mpi_fail_(comm, code, sends ? "starting a send to" : "starting a receive from", peer, err);
}

// The phase of a collective in its current piece.
typedef enum CollectivePhase {
    PHASE_EXCHANGE, // rank q gets block q of every rank's input, and sums it
    PHASE_SPREAD,   // every rank sends its block of the result to all other ranks
} CollectivePhase;

struct Collective {
    Collective *next; // next in the list of active collectives
    CommMpi *comm;
    int state;     // 0 in progress, 1 done, -1 failed with error
    int64_t steps; // phases completed
    Error error;
    CommOperation operation;
    int root; // root of a reduce or broadcast, else NO_ROOT
    CollectivePhase phase;
    bool direct; // few bytes: every rank receives all of them in one step, not in blocks
    CommType type;
    int tag;
    char *out;      // result; also the input of an all_reduce
    const char *in; // input (size, count) of a reduce_scatter, (count) of other sums; `out` of an all_reduce
    int64_t count;  // elements of the data (all_reduce) or of one rank's block (other operations)
    int64_t first;  // first element of the current piece
    int64_t piece;  // elements of the current piece
    char *scratch;  // (size - 1, elements summed on this rank): data from the other ranks
    int place;      // index of the piece of the group's workspace; -1: scratch was allocated
    int request_count;
    MPI_Request requests[]; // [2 * size]
};

// --- sums

enum { SUM_BLOCK = 1024 };

// Computes out (n), the sum in rank order; own, this rank's data, may be out. Scratch has the other ranks' data in rank
// order. A block stays in the cache while all ranks are added; bf16 is rounded once, after the last rank.
static void collective_sum_(const CommMpi *comm, const Collective *work, char *out, const char *own, int64_t n) {
    union {
        float single[SUM_BLOCK];
        double twice[SUM_BLOCK];
    } sum;
    int64_t width = comm_type_bytes(work->type);
    int rank = comm->base.rank;
    for (int64_t at = 0; at < n; at += SUM_BLOCK) {
        int64_t length = n - at < SUM_BLOCK ? n - at : SUM_BLOCK;
        for (int q = 0; q < comm->base.size; q++) {
            const char *data = q == rank ? own : work->scratch + (q < rank ? q : q - 1) * n * width;
            const void *x = data + at * width;
            const float *single = x;
            const double *twice = x;
            const uint16_t *half = x;
            bool first = q == 0;
            if (work->type == COMM_FLOAT)
                for (int64_t i = 0; i < length; i++) sum.single[i] = first ? single[i] : sum.single[i] + single[i];
            if (work->type == COMM_DOUBLE)
                for (int64_t i = 0; i < length; i++) sum.twice[i] = first ? twice[i] : sum.twice[i] + twice[i];
            if (work->type == COMM_BF16)
                for (int64_t i = 0; i < length; i++)
                    sum.single[i] = first ? bf16_to_float(half[i]) : sum.single[i] + bf16_to_float(half[i]);
        }
        if (work->type != COMM_BF16) {
            memcpy(out + at * width, &sum, (size_t)(length * width));
            continue;
        }
        uint16_t *rounded = (uint16_t *)(out + at * width);
        for (int64_t i = 0; i < length; i++) rounded[i] = bf16_from_float(sum.single[i]);
    }
}

// --- one phase: messages to and from every other rank

// Empty blocks need no message.
static int post_(CommMpi *comm, Collective *work, bool sends, int peer, void *memory, int64_t bytes, Error *err) {
    if (bytes == 0) return 0;
    MPI_Request *request = work->requests + work->request_count;
    if (mpi_begin_(comm, sends, peer, memory, bytes, work->tag, request, err) != 0) return -1;
    work->request_count++;
    return 0;
}

// Computes the place of rank q's block of the current piece, in `in` before the sum and in `out` after it. In a
// reduce_scatter or gather, it is a piece of the data that belong to rank q. With a root, the root's block is the
// complete piece and all others are empty; if `direct`, every block is the complete piece. Otherwise the blocks are
// equal parts of the piece, the last ones shorter or empty.
static void block_(const Collective *work, int q, int64_t *first, int64_t *count) {
    int64_t size = work->comm->base.size, n = work->piece, each = (n + size - 1) / size;
    *first = q * each < n ? q * each : n;
    *count = n - *first < each ? n - *first : each;
    if (work->root != NO_ROOT || work->direct) *first = 0, *count = work->direct || q == work->root ? n : 0;
    if (work->operation == COMM_REDUCE_SCATTER || work->operation == COMM_ALL_GATHER)
        *first = q * work->count, *count = n;
    *first += work->first;
}

// Starts the current phase's messages with all peers. Each rank begins with its successor, so no rank is the first peer
// of all ranks. A receive is started before the send, so that no message waits in MPI's buffers. Scratch has one slot
// for every other rank.
static int start_phase_(CommMpi *comm, Collective *work, Error *err) {
    int64_t width = comm_type_bytes(work->type), mine, my_count, theirs, their_count;
    int rank = comm->base.rank, size = comm->base.size;
    block_(work, rank, &mine, &my_count);
    work->request_count = 0;
    for (int step = 1; step < size; step++) {
        int peer = (rank + step) % size, slot = peer < rank ? peer : peer - 1;
        bool spreads = work->phase == PHASE_SPREAD;
        block_(work, peer, &theirs, &their_count);
        const char *from = spreads ? work->out + mine * width : work->in + theirs * width;
        char *to = spreads ? work->out + theirs * width : work->scratch + slot * my_count * width;
        if (post_(comm, work, false, peer, to, (spreads ? their_count : my_count) * width, err) != 0) return -1;
        if (post_(comm, work, true, peer, (void *)from, (spreads ? my_count : their_count) * width, err) != 0)
            return -1;
    }
    return 0;
}

// --- pieces

// Takes scratch that is large enough for every piece: a free piece of the workspace that the plan has counted
// (use_workspace of comm.h), or memory that is allocated for this collective.
static void take_scratch_(CommMpi *comm, Collective *work) {
    int64_t bytes = comm_sum_workspace(work->operation, work->count, work->type, comm->base.size);
    CommWorkspace *workspace = &comm->workspace;
    if (bytes == 0) return;
    if (workspace->memory != NULL) {
        int place = 0;
        while (place < workspace->sums && (workspace->taken >> place & 1) != 0) place++;
        assert(place < workspace->sums && bytes <= workspace->bytes);
        workspace->taken |= 1u << place;
        work->place = place;
        work->scratch = workspace->memory + place * workspace->bytes;
        return;
    }
    work->scratch = xmalloc((size_t)bytes);
}

static void mpi_use_workspace_(Comm *base, void *memory, int64_t bytes, int sums) {
    CommMpi *comm = base->self;
    comm->workspace = (CommWorkspace){memory, bytes, sums, 0};
}

// Starts the next piece. Gathers and broadcasts need no scratch, so each is one piece of any length.
static int start_piece_(CommMpi *comm, Collective *work, Error *err) {
    bool sums = work->operation != COMM_ALL_GATHER && work->operation != COMM_BROADCAST;
    work->phase = sums ? PHASE_EXCHANGE : PHASE_SPREAD;
    work->piece = work->count - work->first;
    if (sums) work->piece = comm_piece(work->operation, work->piece, work->type, comm->base.size);
    work->direct = comm_piece_is_direct(work->operation, work->piece, work->type, comm->base.size);
    return start_phase_(comm, work, err);
}

// Sums the data that a phase received and starts the next phase. Returns 1 after the last phase, else 0; -1 with err.
static int collective_advance_(CommMpi *comm, Collective *work, Error *err) {
    int64_t width = comm_type_bytes(work->type), mine, count;
    if (work->phase == PHASE_EXCHANGE) {
        block_(work, comm->base.rank, &mine, &count);
        int64_t result = work->operation == COMM_REDUCE_SCATTER ? work->first : mine;
        collective_sum_(comm, work, work->out + result * width, work->in + mine * width, count);
        work->phase = PHASE_SPREAD;
        if (work->operation == COMM_ALL_REDUCE && !work->direct) return start_phase_(comm, work, err);
    }
    work->first += work->piece;
    return work->first >= work->count ? 1 : start_piece_(comm, work, err);
}

// --- starting and ending

// Returns the tag of the next collective. Tags distinguish collectives in progress; 32767 is the least bound that MPI
// guarantees.
static int next_tag_(CommMpi *comm) {
    enum { FIRST_TAG = 1, TAGS = 32000 };
    int tag = FIRST_TAG + comm->sequence++ % TAGS;
    if (comm->sequence == TAGS) comm->sequence = 0;
    return tag;
}

// Begins a collective described by `like`. Every later test advances it.
static Collective *collective_begin_(CommMpi *comm, Collective like, CommRequest *request) {
    Collective *work = xcalloc(1, sizeof *work + (size_t)comm->base.size * 2 * sizeof *work->requests);
    *work = like;
    work->next = *comm->work, work->comm = comm, work->place = -1;
    *request = (CommRequest){.handle = {work}, .detail = {KIND_COLLECTIVE}, .active = true};
    *comm->work = work;
    return work;
}

static int mpi_collective_(Comm *base, CommOperation operation, int root, void *out, const void *in, int64_t count,
                           CommType type, CommRequest *request, Error *err) {
    CommMpi *comm = base->self;
    int64_t bytes = count * comm_type_bytes(type);
    char *own = (char *)out + base->rank * bytes;
    if (operation == COMM_ALL_GATHER && own != in && bytes > 0) memcpy(own, in, (size_t)bytes);
    memset(request, 0, sizeof *request);
    int tag = next_tag_(comm);
    if (count == 0) return 0;
    Collective like = {
        .operation = operation, .root = root, .type = type, .tag = tag, .out = out, .in = in, .count = count};
    Collective *work = collective_begin_(comm, like, request);
    take_scratch_(comm, work);
    return start_piece_(comm, work, err);
}

// An exchange runs as a PHASE_SPREAD: no sums.
static int mpi_exchange_(Comm *base, void *out, const int64_t *received, const void *in, const int64_t *sent,
                         CommRequest *request, Error *err) {
    CommMpi *comm = base->self;
    char *to = out;
    const char *from = in;
    Collective like = {.operation = COMM_ALL_GATHER, .phase = PHASE_SPREAD, .type = COMM_BYTE, .tag = next_tag_(comm)};
    Collective *work = collective_begin_(comm, like, request);
    for (int peer = 0; peer < base->size; to += received[peer], from += sent[peer], peer++) {
        if (peer == base->rank) {
            if (sent[peer] > 0) memcpy(to, from, (size_t)sent[peer]);
            continue;
        }
        if (post_(comm, work, false, peer, to, received[peer], err) != 0) return -1;
        if (post_(comm, work, true, peer, (void *)from, sent[peer], err) != 0) return -1;
    }
    return 0;
}

// Advances the collectives of all groups, not only the one that the caller tests, each by at most one phase and without
// waiting: a rank that waits for a sum over data ranks still answers in its tensor group. Finished collectives leave
// the list; the next test returns their state.
static void mpi_progress_(Collective **link) {
    while (*link != NULL) {
        Collective *work = *link;
        int arrived = 0;
        int code = MPI_Testall(work->request_count, work->requests, &arrived, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) {
            work->state = mpi_fail_(work->comm, code, "a collective", work->comm->base.rank, &work->error);
        } else if (arrived) {
            work->steps++; // tells comm_wait that this poll found something, so it need not sleep
            work->state = collective_advance_(work->comm, work, &work->error);
        }
        if (work->state != 0) *link = work->next;
        else link = &work->next;
    }
}

// --- the group

enum { TAG_MESSAGE = 0 };

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "an MPI_Request is kept in a handle");

// Starts a message and describes it for later tests: the MPI request, its kind, and the length that has to arrive.
static int mpi_message_(Comm *base, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                        Error *err) {
    CommMpi *comm = base->self;
    MPI_Request mpi;
    assert(peer >= 0 && peer < base->size && peer != base->rank && bytes >= 0);
    if (mpi_begin_(comm, sends, peer, memory, bytes, TAG_MESSAGE, &mpi, err) != 0) return -1;
    *request = (CommRequest){.detail = {sends ? KIND_SEND : KIND_RECEIVE, peer, bytes}, .active = true};
    memcpy(request->handle, &mpi, sizeof mpi);
    return 0;
}

// Every test advances all collectives of the process first (comm_mpi.h explains why), then looks at its own request.
// MPI reports messages that are too long, but not those that are too short.
static int mpi_test_(Comm *base, CommRequest *request, Error *err) {
    CommMpi *comm = base->self;
    if (!request->active) return 1;
    mpi_progress_(comm->work);
    if (request->detail[0] == KIND_COLLECTIVE) {
        Collective *work = request->handle[0];
        request->steps = work->steps;
        if (work->state == 0) return 0;
        request->active = false;
        // After a failure, later collectives may need the place, but `work` and its scratch are not freed: messages may
        // still arrive in them.
        if (work->place >= 0) comm->workspace.taken &= ~(1u << work->place);
        if (work->state < 0) return error_set(err, work->error.code, "%s", work->error.text);
        if (work->place < 0) free(work->scratch);
        free(work);
        return 1;
    }
    MPI_Request mpi;
    MPI_Status status;
    MPI_Count bytes = 0;
    int done = 0, peer = (int)request->detail[1];
    bool receives = request->detail[0] == KIND_RECEIVE;
    memcpy(&mpi, request->handle, sizeof mpi);
    int code = MPI_Test(&mpi, &done, &status);
    request->active = code == MPI_SUCCESS && !done;
    if (code != MPI_SUCCESS) return mpi_fail_(comm, code, receives ? "a receive from" : "a send to", peer, err);
    if (!done || !receives) return done;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    if ((int64_t)bytes == request->detail[2]) return 1;
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: rank %d sent %lld bytes where %lld were expected",
                     base->name, base->rank, base->size, peer, (long long)bytes, (long long)request->detail[2]);
}

static void mpi_destroy_(Comm *base) {
    CommMpi *comm = base->self;
    MPI_Comm_free(&comm->mpi);
    free(comm);
}

Comm *comm_mpi_create(MPI_Comm mpi, const char *name, Collective **work) {
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
    base->message = mpi_message_;
    base->collective = mpi_collective_;
    base->exchange = mpi_exchange_;
    base->use_workspace = mpi_use_workspace_;
    base->test = mpi_test_;
    base->destroy = mpi_destroy_;
    return base;
}

#else
typedef int comm_mpi_is_empty_without_mpi_;
#endif
