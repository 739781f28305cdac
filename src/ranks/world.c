// The control plane: over MPI if a launcher started this process, else a single rank, for which every collective is
// complete at once.
//
// After MPI_Init no function waits inside MPI for late ranks, because Open MPI would spin. Operations are nonblocking
// and tested between sleeps. MPI creates groups only by a blocking call, so a barrier precedes that call.
#include "world.h"

#include "base/alloc.h"

#ifdef HAVE_MPI
#include "comm/comm_mpi.h"
#endif

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct World {
    bool over_mpi;
    StatusPage *page;
    int rank, size;
    WorldPlace place;
    Comm *messages; // all ranks, for gathers, sums in rank order and clocks
    int *leaders;   // [size] the lowest rank on each rank's host; NULL: one rank
#ifdef HAVE_MPI
    MPI_Comm control; // group of all ranks, for all other collectives
    Collective *work; // collectives in flight in all groups
#endif
};

// Publishes the event that the rank waits for.
static void waits_(const World *world, const char *what) { status_page_set_wait(world->page, what, -1); }

// --- launchers

static int number_(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0 : atoi(text);
}

// Returns the number of tasks of this process's Slurm step; 0 outside a step. A batch script is outside, although
// SLURM_NTASKS is set in it.
static int slurm_tasks_(void) {
    if (getenv("SLURM_STEP_ID") == NULL) return 0;
    return getenv("SLURM_STEP_NUM_TASKS") != NULL ? number_("SLURM_STEP_NUM_TASKS") : number_("SLURM_NTASKS");
}

static int slurm_error_(int tasks, Error *err) {
    return error_set(err, EXIT_USAGE,
                     "this Slurm step has %d tasks, but they do not see each other: each runs as rank 0 of 1; "
                     "start them with srun --mpi=pmix",
                     tasks);
}

bool world_speaks(void) {
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (local == NULL && getenv("SLURM_STEP_ID") != NULL) local = getenv("SLURM_LOCALID");
    return local == NULL || atoi(local) == 0;
}

bool world_on_one_host(void) {
    if (getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != NULL)
        return number_("OMPI_COMM_WORLD_LOCAL_SIZE") == number_("OMPI_COMM_WORLD_SIZE");
    return number_("SLURM_STEP_NUM_NODES") == 1;
}

int world_under_launcher(bool *under, Error *err) {
    int tasks = slurm_tasks_();
    bool mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    bool pmi = getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL;
    // An interactive shell under srun is a step of one task: a program typed there was started by hand.
    bool shell = tasks == 1 && !mpirun;
    *under = mpirun || (pmi && !shell);
    if (mpirun || pmi) return 0;
    if (tasks > 1) return slurm_error_(tasks, err);
    // torchrun starts processes that find each other through torch.
    const char *torch = getenv("WORLD_SIZE") != NULL ? "WORLD_SIZE" : "TORCHELASTIC_RUN_ID";
    if (getenv(torch) == NULL || (torch[0] == 'W' && atoi(getenv(torch)) <= 1)) return 0;
    return error_set(err, EXIT_USAGE,
                     "%s is set, as under torchrun, whose processes do not see each other: each runs as rank 0 of 1; "
                     "start this program once, so that it starts its ranks, or use mpirun; without torchrun, unset %s",
                     torch, torch);
}

#ifdef HAVE_MPI

// --- waiting for MPI

// Sets whether Open MPI yields the core after a test that found nothing. By default Open MPI yields if a host has more
// ranks than cores. If another program runs on the core, the yield lasts its time slice. comm_pause, which callers use
// after a test, avoids such long yields. Blocking calls need the yield. Every Open MPI exports the function
// (opal/runtime/opal_progress.h); other MPIs do not.
static void tests_yield_(bool yield) {
    bool (*set)(bool);
    *(void **)&set = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");
    if (set != NULL) set(yield);
}

static int fail_(const World *world, int code, const char *doing, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(err, EXIT_FAILED, "rank %d of %d on %s: %s failed: %s", world->rank, world->size,
                     world->place.host, doing, text);
}

// Waits until *request is complete, and publishes the wait as `waits`. code: the result of the call that started it.
static int finish_(const World *world, int code, MPI_Request *request, const char *waits, const char *doing,
                   Error *err) {
    int done = 0;
    Pause pause = {0};
    waits_(world, waits);
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done) comm_pause(&pause);
    }
    waits_(world, NULL);
    return code == MPI_SUCCESS ? 0 : fail_(world, code, doing, err);
}

// --- joining over MPI

// Finds the ranks of each host, and numbers hosts in the order of their lowest ranks. host: the ranks of this host.
static int find_hosts_(World *world, MPI_Comm host, Error *err) {
    WorldPlace *place = &world->place;
    MPI_Request request;
    int leader = world->rank;
    MPI_Comm_rank(host, &place->local_rank);
    MPI_Comm_size(host, &place->local_size);
    int code = MPI_Ibcast(&leader, 1, MPI_INT, 0, host, &request);
    if (finish_(world, code, &request, "this host", "finding the ranks of this host", err) != 0) return -1;
    world->leaders = xcalloc((size_t)world->size, sizeof *world->leaders);
    code = MPI_Iallgather(&leader, 1, MPI_INT, world->leaders, 1, MPI_INT, world->control, &request);
    if (finish_(world, code, &request, "all ranks", "finding the hosts", err) != 0) return -1;
    place->node = place->nodes = 0;
    for (int q = 0; q < world->size; q++) {
        if (world->leaders[q] != q) continue;
        place->node += q < leader;
        place->nodes++;
    }
    return world_compare_clocks(world, err);
}

static int start_(World *world, int *argc, char ***argv, Error *err) {
    // Open MPI's crash handler allocates memory, and hangs forever if the crash came inside malloc.
    setenv("OMPI_MCA_opal_signal", "", 0);
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Comm messages, host;
    int provided, length, code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS) return fail_(world, code, "starting MPI", err);
    if (provided < MPI_THREAD_FUNNELED)
        return error_set(err, EXIT_FAILED,
                         "this MPI was built without thread support (MPI_THREAD_SINGLE), which ranks need; use an MPI "
                         "with thread support, such as Debian's Open MPI (scripts/install_deps.sh)");
    world->over_mpi = true;
    world->control = MPI_COMM_NULL;
    if (MPI_Get_library_version(library, &length) == MPI_SUCCESS) // the first words: "Open MPI v4.1.4"
        snprintf(world->place.library, sizeof world->place.library, "%.*s", (int)strcspn(library, ",\n"), library);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    code = MPI_Comm_dup(MPI_COMM_WORLD, &world->control);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &messages);
    if (code != MPI_SUCCESS) return fail_(world, code, "making the group of all ranks", err);
    MPI_Comm_set_errhandler(world->control, MPI_ERRORS_RETURN);
    world->messages = comm_mpi_create(messages, "world", &world->work);
    int tasks = slurm_tasks_();
    if (world->size == 1 && tasks > 1 && getenv("OMPI_COMM_WORLD_SIZE") == NULL) return slurm_error_(tasks, err);
    code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &host);
    if (code != MPI_SUCCESS) return fail_(world, code, "finding the hosts", err);
    MPI_Comm_set_errhandler(host, MPI_ERRORS_RETURN);
    int failed = find_hosts_(world, host, err);
    MPI_Comm_free(&host);
    return failed;
}

#endif

// --- joining and leaving

World *world_join(int *argc, char ***argv, Error *err) {
    bool under;
    if (world_under_launcher(&under, err) != 0) return NULL;
    World *world = xcalloc(1, sizeof *world);
    world->size = world->place.local_size = world->place.nodes = 1;
    strcpy(world->place.library, "no launcher");
    if (gethostname(world->place.host, sizeof world->place.host - 1) != 0) strcpy(world->place.host, "localhost");
    // Ask the kernel for short waits. By default the kernel may extend a sleep by 50 microseconds, more than our
    // shortest sleeps. A rank that waits for a small message also yields its core. If other processes compute, the rank
    // gets the core back up to a time slice (3 ms) later, at every message. A request for short slices
    // (sched_setattr(2), Linux 6.12; ignored by older kernels) shortens this delay, and leaves each process's share of
    // the core unchanged.
    enum { SLICE_NS = 100000 };
    const struct {
        uint32_t size, policy; // policy 0: SCHED_OTHER
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes, .nice = getpriority(PRIO_PROCESS, 0), .runtime = SLICE_NS};
    prctl(PR_SET_TIMERSLACK, 1000UL);
    if (sched_getscheduler(0) == SCHED_OTHER) syscall(SYS_sched_setattr, 0, &attributes, 0);
    if (!under) world->messages = comm_self_create("world");
    if (!under) return world;
#ifdef HAVE_MPI
    if (start_(world, argc, argv, err) == 0) return world;
#else
    (void)argc, (void)argv;
    error_set(err, EXIT_USAGE,
              "this program is one of several ranks, but was built without MPI; install MPI "
              "(scripts/install_deps.sh) and run make again, or start one rank");
#endif
    free(world);
    return NULL;
}

void world_leave(World *world, int code) {
    if (world == NULL) return;
    world_barrier(world, NULL); // ranks that are early sleep here; in MPI_Finalize they would spin
    // Record the end first: Open MPI 4's MPI_Finalize crashes or hangs once in a thousand times (open-mpi/ompi#10117).
    status_page_leave(world->page, code);
    if (world->messages != NULL) world->messages->destroy(world->messages);
#ifdef HAVE_MPI
    if (world->over_mpi && world->control != MPI_COMM_NULL) MPI_Comm_free(&world->control);
    if (world->over_mpi) tests_yield_(true), MPI_Finalize();
#endif
    free_all(world->leaders, world);
}

void world_abort(World *world, int code) {
    enum { LONGEST_ABORT_S = 3 };
    fflush(stdout);
    fflush(stderr);
#ifdef HAVE_MPI
    // MPI_Abort may never return if the network is broken. If one program started all ranks, that program ends them.
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_ABORT_S);
    if (world != NULL && world->over_mpi && !status_page_printed(world->page)) MPI_Abort(MPI_COMM_WORLD, code);
#endif
    (void)world;
    _exit(code);
}

// --- questions

int world_rank(const World *world) { return world->rank; }

int world_size(const World *world) { return world->size; }

const WorldPlace *world_place(const World *world) { return &world->place; }

Log world_log(const World *world, const Log *log) {
    Log all = log_of_all(log);
    if (world->rank > 0) all.level = LOG_SILENT;
    return all;
}

void world_set_status_page(World *world, StatusPage *page) { world->page = page; }

void world_progress(World *world) {
    if (world != NULL) status_page_progress(world->page);
}

void world_saved(World *world) { status_page_set_saved(world->page); }

// Measures one host after another: rank 0 answers their lowest ranks. All ranks of a host use its offset.
int world_compare_clocks(World *world, Error *err) {
    double own = 0.0, *all = xcalloc((size_t)world->size, sizeof *all);
    int status = 0;
    for (int q = 1; status == 0 && world->leaders != NULL && q < world->size; q++)
        if (world->leaders[q] == q && (q == world->rank || world->rank == 0))
            status = comm_clock_offset(world->messages, q, &own, err);
    if (status == 0) status = world_gather_all(world, all, &own, sizeof own, err);
    if (status == 0 && world->leaders != NULL) world->place.clock_offset = all[world->leaders[world->rank]];
    free(all);
    return status;
}

// --- collectives

int world_barrier(World *world, Error *err) {
#ifdef HAVE_MPI
    MPI_Request request;
    if (world->over_mpi)
        return finish_(world, MPI_Ibarrier(world->control, &request), &request, "all ranks", "a barrier", err);
#endif
    (void)world, (void)err;
    return 0;
}

static int broadcast_(World *world, int root, void *data, int64_t bytes, Error *err) {
    int status = 0;
#ifdef HAVE_MPI
    MPI_Request request;
    enum { PIECE = 1 << 30 }; // MPI counts in int
    for (int64_t at = 0; world->over_mpi && at < bytes && status == 0; at += PIECE) {
        int count = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        int code = MPI_Ibcast((char *)data + at, count, MPI_BYTE, root, world->control, &request);
        status = finish_(world, code, &request, "a broadcast to all ranks", "a broadcast", err);
    }
#endif
    (void)world, (void)root, (void)data, (void)bytes, (void)err;
    return status;
}

int world_broadcast(World *world, void *data, int64_t bytes, Error *err) {
    return broadcast_(world, 0, data, bytes, err);
}

int world_gather(World *world, void *all, const void *mine, int64_t bytes, Error *err) {
    Comm *messages = world->messages;
    CommRequest *requests = xcalloc((size_t)world->size, sizeof *requests);
    int failed = 0;
    waits_(world, "a gather of all ranks");
    if (world->rank > 0) failed = comm_send(messages, 0, mine, bytes, &requests[0], err);
    else if (all != mine && bytes > 0) memmove(all, mine, (size_t)bytes);
    for (int q = 1; world->rank == 0 && q < world->size && !failed; q++)
        failed = comm_receive(messages, q, (char *)all + q * bytes, bytes, &requests[q], err);
    for (int q = 0; q < world->size && !failed; q++) failed = comm_wait(messages, &requests[q], err);
    free(requests);
    waits_(world, NULL);
    return failed;
}

int world_gather_all(World *world, void *all, const void *mine, int64_t bytes, Error *err) {
    if (world_gather(world, all, mine, bytes, err) != 0) return -1;
    return world_broadcast(world, all, world->size * bytes, err);
}

int world_sum_peer(int rank, int size, int n) {
    if (rank % n != 0) return -1;
    int peer = rank % (2 * n) == 0 ? rank + n : rank - n;
    return peer < size ? peer : -1;
}

int world_sum(World *world, double *data, int64_t count, Error *err) {
    int64_t bytes = count * (int64_t)sizeof *data;
    double *theirs = xmalloc((size_t)bytes);
    int rank = world->rank, status = 0;
    waits_(world, "a sum over all ranks");
    for (int n = 1; status == 0 && n < world->size; n *= 2) {
        int peer = world_sum_peer(rank, world->size, n);
        if (peer < 0) continue;
        bool sends = peer < rank;
        status = sends ? comm_send_now(world->messages, peer, data, bytes, err)
                       : comm_receive_now(world->messages, peer, theirs, bytes, err);
        for (int64_t i = 0; status == 0 && !sends && i < count; i++) data[i] += theirs[i];
    }
    waits_(world, NULL);
    free(theirs);
    return status == 0 ? world_broadcast(world, data, bytes, err) : -1;
}

int world_max(World *world, double *data, int count, Error *err) {
#ifdef HAVE_MPI
    MPI_Request request;
    if (world->over_mpi) {
        int code = MPI_Iallreduce(MPI_IN_PLACE, data, count, MPI_DOUBLE, MPI_MAX, world->control, &request);
        return finish_(world, code, &request, "a maximum over all ranks", "a maximum", err);
    }
#endif
    (void)world, (void)data, (void)count, (void)err;
    return 0;
}

Comm *world_split(World *world, const char *name, int color, int key, Error *err) {
    if (!world->over_mpi) return color >= 0 ? comm_self_create(name) : NULL;
#ifdef HAVE_MPI
    MPI_Comm group;
    if (world_barrier(world, err) != 0) return NULL;
    waits_(world, "all ranks");
    tests_yield_(true);
    int size, code = MPI_Comm_split(world->control, color < 0 ? MPI_UNDEFINED : color, key, &group);
    tests_yield_(false);
    waits_(world, NULL);
    if (code != MPI_SUCCESS) fail_(world, code, "making groups", err);
    if (code != MPI_SUCCESS || group == MPI_COMM_NULL) return NULL;
    MPI_Comm_size(group, &size);
    if (size > 1) return comm_mpi_create(group, name, &world->work);
    MPI_Comm_free(&group);
#endif
    (void)key, (void)err;
    return comm_self_create(name);
}

int world_agree(World *world, const Error *mine, Error *err) {
    int ranks = world_size(world);
    double first = mine->code != 0 ? ranks - world_rank(world) : 0;
    if (world_max(world, &first, 1, err) != 0) return -1;
    if (first == 0.0) return 0;
    Error shared = *mine;
    shared.everywhere = true;
    if (broadcast_(world, ranks - (int)first, &shared, sizeof shared, err) != 0) return -1;
    *err = shared;
    return -1;
}
