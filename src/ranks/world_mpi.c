// The world over MPI. After MPI_Init nothing here waits inside MPI while others may be late, since Open MPI would spin:
// operations are started, and looked at between sleeps. Making groups has no such form; a barrier goes before it.
#include "world_ops.h"

#ifdef HAVE_MPI

#include "comm/comm_mpi.h"

#include <stdlib.h>
#include <string.h>

typedef struct WorldMpi {
    MPI_Comm control; // of the operations below
    Comm *messages;   // the same ranks, for sums in rank order and clocks
    CommMpiWork work; // of all groups
} WorldMpi;

static int world_mpi_fail_(const World *world, int code, const char *doing, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(err, EXIT_FAILED, "rank %d of %d on %s: %s failed: %s", world->rank, world->size, world->host,
                     doing, text);
}

// Ends what `code` says was started.
static int world_mpi_finish_(const World *world, int code, MPI_Request *request, const char *doing, Error *err) {
    int looks = 0, done = 0;
    while (code == MPI_SUCCESS) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && done) return 0;
        comm_pause(&looks);
    }
    return world_mpi_fail_(world, code, doing, err);
}

static int world_mpi_barrier_(World *world, Error *err) {
    WorldMpi *self = world->self;
    MPI_Request request;
    return world_mpi_finish_(world, MPI_Ibarrier(self->control, &request), &request, "a barrier", err);
}

// MPI counts in int: what is longer goes through in pieces.
enum { WORLD_PIECE = 1 << 30 };

static int world_mpi_broadcast_(World *world, int root, void *data, int64_t bytes, Error *err) {
    WorldMpi *self = world->self;
    MPI_Request request;
    for (int64_t at = 0; at < bytes; at += WORLD_PIECE) {
        int piece = (int)(bytes - at < WORLD_PIECE ? bytes - at : WORLD_PIECE);
        int code = MPI_Ibcast((char *)data + at, piece, MPI_BYTE, root, self->control, &request);
        if (world_mpi_finish_(world, code, &request, "a broadcast", err) != 0) return -1;
    }
    return 0;
}

static int world_mpi_gather_(World *world, int root, void *all, const void *mine, int64_t bytes, Error *err) {
    WorldMpi *self = world->self;
    CommRequest *requests;
    if (world->rank != root) {
        CommRequest request = {0};
        if (self->messages->send(self->messages, root, mine, bytes, &request, err) != 0) return -1;
        return comm_wait(self->messages, &request, err);
    }
    requests = calloc((size_t)world->size, sizeof *requests);
    if (requests == NULL) return error_set(err, EXIT_FAILED, "out of memory gathering from %d ranks", world->size);
    int failed = 0;
    for (int q = 0; q < world->size && !failed; q++) {
        char *to = (char *)all + q * bytes;
        if (q != root)
            failed = self->messages->receive(self->messages, q, to, bytes, &requests[q], err);
        else if (to != mine && bytes > 0)
            memmove(to, mine, (size_t)bytes);
    }
    for (int q = 0; q < world->size && !failed; q++) failed = comm_wait(self->messages, &requests[q], err);
    free(requests);
    return failed;
}

static int world_mpi_sum_(World *world, double *data, int64_t count, Error *err) {
    WorldMpi *self = world->self;
    CommRequest request = {0};
    if (self->messages->all_reduce(self->messages, data, count, COMM_DOUBLE, &request, err) != 0) return -1;
    return comm_wait(self->messages, &request, err);
}

static int max_(World *world, double *data, int64_t count, Error *err) {
    WorldMpi *self = world->self;
    MPI_Request request;
    for (int64_t at = 0; at < count; at += WORLD_PIECE) {
        int piece = (int)(count - at < WORLD_PIECE ? count - at : WORLD_PIECE);
        int code = MPI_Iallreduce(MPI_IN_PLACE, data + at, piece, MPI_DOUBLE, MPI_MAX, self->control, &request);
        if (world_mpi_finish_(world, code, &request, "a maximum", err) != 0) return -1;
    }
    return 0;
}

static Comm *world_mpi_split_(World *world, const char *name, int color, int key, Error *err) {
    WorldMpi *self = world->self;
    MPI_Comm group;
    if (world_mpi_barrier_(world, err) != 0) return NULL;
    int code = MPI_Comm_split(self->control, color < 0 ? MPI_UNDEFINED : color, key, &group);
    if (code != MPI_SUCCESS) {
        world_mpi_fail_(world, code, "making groups", err);
        return NULL;
    }
    if (group == MPI_COMM_NULL) return NULL;
    int size;
    MPI_Comm_size(group, &size);
    if (size > 1) return comm_mpi_create(group, name, &self->work, err);
    MPI_Comm_free(&group);
    return comm_self_create(name);
}

static void world_mpi_abort_(World *world, int code) {
    (void)world;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void world_mpi_leave_(World *world) {
    WorldMpi *self = world->self;
    // Ranks that are early sleep here; in MPI_Finalize they would spin.
    world_mpi_barrier_(world, NULL);
    if (self->messages != NULL) self->messages->destroy(self->messages);
    if (self->control != MPI_COMM_NULL) MPI_Comm_free(&self->control);
    free(self);
    MPI_Finalize();
}

// --- joining

static int start_groups_(World *world, Error *err) {
    WorldMpi *self = world->self;
    MPI_Comm messages;
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &self->control);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &messages);
    if (code != MPI_SUCCESS) return world_mpi_fail_(world, code, "making the group of all ranks", err);
    MPI_Comm_set_errhandler(self->control, MPI_ERRORS_RETURN);
    self->messages = comm_mpi_create(messages, "world", &self->work, err);
    return self->messages == NULL ? -1 : 0;
}

// Hosts in the order of their lowest ranks. leaders (size): the lowest rank on each rank's host; seen from `rank`,
// *before is how many hosts have a lower leader than its own, *nodes how many there are.
static void count_hosts_(const int *leaders, int size, int rank, int *before, int *nodes) {
    *before = *nodes = 0;
    for (int q = 0; q < size; q++) {
        if (leaders[q] != q) continue; // not the first of its host
        if (q < leaders[rank]) (*before)++;
        (*nodes)++;
    }
}

// The clock of each host is that of its lowest rank, measured one host after another against rank 0.
static int measure_clocks_(World *world, const int *leaders, MPI_Comm host, Error *err) {
    WorldMpi *self = world->self;
    MPI_Request request;
    for (int q = 1; q < world->size; q++) {
        double offset;
        if (leaders[q] != q) continue;
        if (comm_clock_offset(self->messages, q, &offset, err) != 0) return -1;
        if (world->rank == q) world->clock_offset = offset;
    }
    int code = MPI_Ibcast(&world->clock_offset, 1, MPI_DOUBLE, 0, host, &request);
    return world_mpi_finish_(world, code, &request, "sharing the clock", err);
}

static int find_hosts_(World *world, MPI_Comm host, int *leaders, Error *err) {
    WorldMpi *self = world->self;
    MPI_Request request;
    int leader = world->rank;
    MPI_Comm_rank(host, &world->local_rank);
    MPI_Comm_size(host, &world->local_size);
    int code = MPI_Ibcast(&leader, 1, MPI_INT, 0, host, &request);
    if (world_mpi_finish_(world, code, &request, "finding the ranks of this host", err) != 0) return -1;
    code = MPI_Iallgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, self->control, &request);
    if (world_mpi_finish_(world, code, &request, "finding the hosts", err) != 0) return -1;
    count_hosts_(leaders, world->size, world->rank, &world->node, &world->nodes);
    return measure_clocks_(world, leaders, host, err);
}

static int start_hosts_(World *world, Error *err) {
    MPI_Comm host;
    int *leaders = calloc((size_t)world->size, sizeof *leaders);
    if (leaders == NULL) return error_set(err, EXIT_FAILED, "out of memory for %d ranks", world->size);
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &host);
    int failed = code != MPI_SUCCESS ? world_mpi_fail_(world, code, "finding the hosts", err) : 0;
    if (!failed) {
        MPI_Comm_set_errhandler(host, MPI_ERRORS_RETURN);
        failed = find_hosts_(world, host, leaders, err);
        MPI_Comm_free(&host);
    }
    free(leaders);
    return failed;
}

// The first words of what the library says of itself: "Open MPI v4.1.4".
static void world_mpi_describe_(World *world) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return;
    snprintf(world->library, sizeof world->library, "%.*s", (int)strcspn(text, ",\n"), text);
}

int world_start_mpi(World *world, int *argc, char ***argv, Error *err) {
    static const WorldOps ops = {world_mpi_barrier_, world_mpi_broadcast_, world_mpi_gather_, world_mpi_sum_, max_,
                                 world_mpi_split_,   world_mpi_abort_,     world_mpi_leave_};
    // Open MPI's handler of crashes allocates memory, and hangs for ever where the crash came in the middle of that.
    setenv("OMPI_MCA_opal_signal", "", 0);
    int provided, code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS) return world_mpi_fail_(world, code, "starting MPI", err);
    if (provided < MPI_THREAD_FUNNELED)
        return error_set(err, EXIT_FAILED,
                         "this MPI allows no threads beside it (MPI_THREAD_SINGLE), and ranks compute and save with "
                         "several; use one built with them, such as Debian's Open MPI (scripts/install_deps.sh)");
    WorldMpi *self = calloc(1, sizeof *self);
    if (self == NULL) return error_set(err, EXIT_FAILED, "out of memory");
    self->control = MPI_COMM_NULL;
    world->ops = &ops;
    world->self = self;
    world_mpi_describe_(world);
    if (start_groups_(world, err) != 0) return -1;
    int tasks = world_slurm_tasks();
    if (world->size == 1 && tasks > 1 && getenv("OMPI_COMM_WORLD_SIZE") == NULL) return world_slurm_error(tasks, err);
    return start_hosts_(world, err);
}

#else

int world_start_mpi(World *world, int *argc, char ***argv, Error *err) {
    (void)world, (void)argc, (void)argv;
    return error_set(err, EXIT_USAGE,
                     "started as one of several ranks, but built without MPI; install it (scripts/install_deps.sh) "
                     "and run make again, or start one rank");
}

#endif
