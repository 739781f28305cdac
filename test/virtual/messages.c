// Vector clocks of the host's messages, by wrapped MPI calls (the PMPI interface, MPI 3.1, chapter 14). The sender's
// actions before a message happen before the receiver's actions after it. Clocks are passed in the job's segment: a
// receiver joins the clock of its peer's latest message to it, which may order a little more than the message itself.
// Pinned memory that MPI sends from or receives into counts as read and written by the host.
//
// In a dry run the same calls use virtual time instead (program.h): a message arrives at its virtual time. If MPI is
// later, the call waits for MPI. A group is identified by the way in which it was made.
//
// This file is linked into the program. The library with the virtual GPU fills in virtual_messages when its device is
// first used. Until then, and in runs on CPUs, the calls are only forwarded to MPI.
#ifdef HAVE_MPI

#include "program.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

// The library finds it by its name.
__attribute__((visibility("default"))) VirtualMessages virtual_messages;

enum { WAITING = 4096 };
extern VirtualClock virtual_clock; // dry.c

// A request that has not completed, and the effect of its completion.
typedef struct Pending {
    MPI_Request request;
    MPI_Comm comm;
    int peer; // rank in comm; ALL: every rank
    bool receives;
    void *buffer;
    int64_t bytes;
    uint64_t channel, number; // in a dry run
} Pending;

enum { ALL = -1 };
static Pending pending_[WAITING];
static int most_pending_; // entries from here on were never used

// Tells the library which of the variables that CUDA reads at its start were not set when MPI started.
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    static const char *const names[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"};
    unsetenv("VIRTUAL_MPI_WITHOUT");
    for (int i = 0; i < 2; i++)
        if (getenv(names[i]) == NULL) setenv("VIRTUAL_MPI_WITHOUT", names[i], 1);
    return PMPI_Init_thread(argc, argv, required, provided);
}

static bool dry_(void) { return virtual_clock.now != NULL; }

// Returns whether the messages carry clocks: the virtual GPU is in use, and the run is not dry.
static bool ordered_(void) { return virtual_messages.sent != NULL && !dry_(); }

// Returns the rank in MPI_COMM_WORLD of a rank of `comm`.
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

static int own_(void) {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
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

static Pending *find_pending_(MPI_Request request) {
    for (int i = 0; i < most_pending_; i++)
        if (pending_[i].request == request) return &pending_[i];
    return NULL;
}

// Adds a request. If its handle is in the table already, an unwrapped call completed the earlier request, or MPI gives
// this handle to all sends that complete at once.
static Pending *keep_(MPI_Request request, MPI_Comm comm, int peer, bool receives, void *buffer, int64_t bytes) {
    Pending *p = find_pending_(request);
    if (p == NULL) p = find_pending_(0);
    if (p == NULL) {
        if (most_pending_ == WAITING) abort();
        p = &pending_[most_pending_++];
    }
    *p = (Pending){request, comm, peer, receives, buffer, bytes, 0, 0};
    return p;
}

static void complete_(MPI_Request request) {
    Pending *p = find_pending_(request);
    if (p == NULL) return;
    for (int r = 0; p->receives && r < size_(p->comm); r++)
        if (p->peer == ALL || p->peer == r) virtual_messages.received(world_rank_(p->comm, r));
    virtual_messages.touched(p->buffer, p->bytes, p->receives);
    memset(p, 0, sizeof *p);
}

// ---------------------------------------------------------------- virtual time

// A group: its handle in this process, and an id that is the same on all its ranks.
typedef struct Group {
    MPI_Comm comm;
    uint64_t id, made; // made: number of groups made from it
    bool used;
} Group;

// Number of messages in one direction of a channel, or of collectives of a group.
typedef struct Count {
    uint64_t key, count;
} Count;

enum { GROUPS = 256, COUNTS = 1 << 16 };
static Group groups_[GROUPS];
static Count counts_[COUNTS];

// splitmix64 (Steele, Lea and Flood 2014)
static uint64_t mix_(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static Group *group_(MPI_Comm comm) {
    Group *free_one = NULL;
    for (int i = 0; i < GROUPS; i++) {
        if (groups_[i].used && groups_[i].comm == comm) return &groups_[i];
        if (!groups_[i].used && free_one == NULL) free_one = &groups_[i];
    }
    if (free_one == NULL) abort();
    *free_one = (Group){comm, 1, 0, true}; // MPI_COMM_WORLD: all others are added when they are made
    return free_one;
}

static int made_(int code, MPI_Comm from, const MPI_Comm *made) {
    Group *parent = group_(from);
    uint64_t id = mix_(parent->id, ++parent->made);
    if (code == MPI_SUCCESS && *made != MPI_COMM_NULL) group_(*made)->id = mix_(id, (uint64_t)world_rank_(*made, 0));
    return code;
}

static uint64_t next_(uint64_t key) {
    uint64_t at = key % COUNTS;
    while (counts_[at].key != 0 && counts_[at].key != key) at = (at + 1) % COUNTS;
    counts_[at].key = key;
    return counts_[at].count++;
}

enum { GOES = 1, COMES, MEETS };

static uint64_t channel_(MPI_Comm comm, int tag, int from, int to) {
    return mix_(mix_(group_(comm)->id, (uint64_t)tag + 1), (uint64_t)from << 32 | (uint64_t)to);
}

static void date_send_(MPI_Comm comm, int peer, int tag) {
    uint64_t channel = channel_(comm, tag, own_(), world_rank_(comm, peer));
    virtual_clock.called(channel, next_(mix_(channel, GOES)), 1, 1);
}

static void date_receive_(Pending *p, int tag) {
    p->channel = channel_(p->comm, tag, world_rank_(p->comm, p->peer), own_());
    p->number = next_(mix_(p->channel, COMES));
}

static void date_collective_(Pending *p) {
    int ranks = size_(p->comm), hops = 0;
    while (1 << hops < ranks) hops++;
    p->channel = mix_(group_(p->comm)->id, 0);
    p->number = next_(mix_(p->channel, MEETS));
    virtual_clock.called(p->channel, p->number, ranks, hops);
}

// Receives and collectives complete at their virtual time. A send has no time and may need its receiver's progress.
static int test_dry_(MPI_Request *request, int *done, MPI_Status *status) {
    Pending *p = find_pending_(*request);
    int code;
    if (p == NULL || *request == MPI_REQUEST_NULL) {
        code = PMPI_Test(request, done, status);
        if (code == MPI_SUCCESS && !*done) virtual_clock.unfinished();
        return code;
    }
    *done = 0;
    if (!virtual_clock.met(p->channel, p->number)) return MPI_SUCCESS;
    do code = PMPI_Test(request, done, status);
    while (code == MPI_SUCCESS && !*done);
    virtual_clock.left(p->channel, p->number);
    memset(p, 0, sizeof *p);
    return code;
}

static int test_all_dry_(int count, MPI_Request requests[], int *done) {
    *done = 1;
    for (int i = 0; i < count; i++) {
        int this_one = 1, code = MPI_SUCCESS;
        if (requests[i] != MPI_REQUEST_NULL) code = test_dry_(&requests[i], &this_one, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return code;
        *done = *done && this_one;
    }
    return MPI_SUCCESS;
}

int MPI_Comm_split(MPI_Comm from, int color, int key, MPI_Comm *out) {
    return made_(PMPI_Comm_split(from, color, key, out), from, out);
}

int MPI_Comm_dup(MPI_Comm from, MPI_Comm *out) { return made_(PMPI_Comm_dup(from, out), from, out); }

int MPI_Comm_free(MPI_Comm *comm) {
    group_(*comm)->used = false;
    return PMPI_Comm_free(comm);
}

// ---------------------------------------------------------------- the calls

int MPI_Isend(const void *from, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    const bool ordered = ordered_();
    if (dry_()) date_send_(comm, peer, tag);
    if (ordered) virtual_messages.touched((void *)from, bytes_(count, type), false);
    if (ordered) sends_(comm, peer);
    int code = PMPI_Isend(from, count, type, peer, tag, comm, request);
    if (ordered) keep_(*request, comm, peer, false, (void *)from, bytes_(count, type));
    return code;
}

int MPI_Irecv(void *to, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    if (ordered_()) virtual_messages.touched(to, bytes_(count, type), true);
    int code = PMPI_Irecv(to, count, type, peer, tag, comm, request);
    Pending *p = ordered_() || dry_() ? keep_(*request, comm, peer, true, to, bytes_(count, type)) : NULL;
    if (dry_()) date_receive_(p, tag);
    return code;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    if (dry_()) return test_dry_(request, done, status);
    MPI_Request before = *request;
    int code = PMPI_Test(request, done, status);
    if (ordered_() && *done) complete_(before);
    return code;
}

int MPI_Testall(int count, MPI_Request requests[], int *done, MPI_Status statuses[]) {
    if (dry_()) return test_all_dry_(count, requests, done);
    MPI_Request *before = malloc((size_t)count * sizeof *before);
    if (before != NULL && count > 0) memcpy(before, requests, (size_t)count * sizeof *before);
    int code = PMPI_Testall(count, requests, done, statuses);
    for (int i = 0; ordered_() && *done && before != NULL && i < count; i++) complete_(before[i]);
    free(before);
    return code;
}

static int collective_(int code, MPI_Comm comm, const MPI_Request *request) {
    if (ordered_()) sends_(comm, ALL);
    Pending *p = ordered_() || dry_() ? keep_(*request, comm, ALL, true, NULL, 0) : NULL;
    if (dry_()) date_collective_(p);
    return code;
}

#define COLLECTIVE(name, parameters, ...)                                                                              \
    int MPI_##name parameters { return collective_(PMPI_##name(__VA_ARGS__), comm, request); }
COLLECTIVE(Iallgather,
           (const void *in, int count, MPI_Datatype type, void *out, int out_count, MPI_Datatype out_type,
            MPI_Comm comm, MPI_Request *request),
           in, count, type, out, out_count, out_type, comm, request)
COLLECTIVE(Iallreduce,
           (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
           in, out, count, type, op, comm, request)
COLLECTIVE(Ibarrier, (MPI_Comm comm, MPI_Request *request), comm, request)
COLLECTIVE(Ibcast, (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request), data,
           count, type, root, comm, request)

// Ranks of one virtual node share a machine.
int MPI_Comm_split_type(MPI_Comm comm, int kind, int key, MPI_Info info, MPI_Comm *out) {
    const char *nodes = getenv("VIRTUAL_NODES"), *gpus = getenv("VIRTUAL_GPUS");
    int count = nodes == NULL ? 1 : atoi(nodes), size = size_(MPI_COMM_WORLD);
    if (kind != MPI_COMM_TYPE_SHARED || count <= 1 || size < count)
        return PMPI_Comm_split_type(comm, kind, key, info, out);
    return PMPI_Comm_split(comm, virtual_node(own_(), size, count, gpus == NULL ? 8 : atoi(gpus)), key, out);
}

#endif
