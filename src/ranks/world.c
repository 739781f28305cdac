#include "world.h"
#include "world_ops.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

// --- who started this process

static int world_number_(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0 : atoi(text);
}

int world_slurm_tasks(void) {
    // A batch script runs outside of any step, though SLURM_NTASKS and SLURM_PROCID are set there too.
    if (getenv("SLURM_STEP_ID") == NULL) return 0;
    return getenv("SLURM_STEP_NUM_TASKS") != NULL ? world_number_("SLURM_STEP_NUM_TASKS")
                                                  : world_number_("SLURM_NTASKS");
}

int world_slurm_error(int tasks, Error *err) {
    return error_set(err, EXIT_USAGE,
                     "this Slurm step has %d tasks, but they do not see each other: each believes to be alone; "
                     "start them with srun --mpi=pmix",
                     tasks);
}

bool world_speaks(void) {
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (local == NULL && getenv("SLURM_STEP_ID") != NULL) local = getenv("SLURM_LOCALID");
    return local == NULL || atoi(local) == 0;
}

int world_under_launcher(bool *under, Error *err) {
    *under = false;
    int tasks = world_slurm_tasks();
    bool mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    bool pmi = getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL;
    // A shell that srun opened is a step of one task: what is typed there was started by hand.
    bool shell = tasks == 1 && !mpirun;
    if (!mpirun && !pmi && tasks > 1) return world_slurm_error(tasks, err);
    *under = mpirun || (pmi && !shell);
    return 0;
}

static void waits_(World *world, const char *what) {
    status_page_set_wait(world->status_page, what, -1);
}

// --- joining

static void sleep_precisely_(void) {
    // Linux rounds sleeps up by 50 microseconds unless told otherwise, which is more than our shortest ones.
    prctl(PR_SET_TIMERSLACK, 1000UL);
}

World *world_join(int *argc, char ***argv, Error *err) {
    bool under;
    if (world_under_launcher(&under, err) != 0) return NULL;
    World *world = calloc(1, sizeof *world);
    if (world == NULL) {
        error_set(err, EXIT_FAILED, "out of memory");
        return NULL;
    }
    world->size = world->local_size = world->nodes = 1;
    if (gethostname(world->host, sizeof world->host - 1) != 0) strcpy(world->host, "localhost");
    sleep_precisely_();
    int started = under ? world_start_mpi(world, argc, argv, err) : world_start_alone(world, err);
    if (started == 0) return world;
    free(world);
    return NULL;
}

void world_leave(World *world) {
    if (world == NULL) return;
    waits_(world, "all ranks");
    world->ops->leave(world);
    free(world);
}

void world_abort(World *world, int code) {
    enum { LONGEST_ABORT_S = 3 };
    fflush(stdout);
    fflush(stderr);
    // Over a broken network MPI may not come back.
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_ABORT_S);
    if (world != NULL) world->ops->abort(world, code);
    _exit(code);
}

// --- what is known

int world_rank(const World *world) {
    return world->rank;
}

int world_size(const World *world) {
    return world->size;
}

int world_local_rank(const World *world) {
    return world->local_rank;
}

int world_local_size(const World *world) {
    return world->local_size;
}

int world_node(const World *world) {
    return world->node;
}

int world_nodes(const World *world) {
    return world->nodes;
}

const char *world_host(const World *world) {
    return world->host;
}

const char *world_library(const World *world) {
    return world->library;
}

double world_clock_offset(const World *world) {
    return world->clock_offset;
}

// --- what all ranks do together

void world_set_status_page(World *world, StatusPage *status_page) {
    world->status_page = status_page;
}

void world_progress(World *world) {
    if (world != NULL) status_page_progress(world->status_page);
}

static int done_(World *world, int status) {
    waits_(world, NULL);
    return status;
}

int world_barrier(World *world, Error *err) {
    waits_(world, "all ranks");
    return done_(world, world->ops->barrier(world, err));
}

int world_broadcast(World *world, int root, void *data, int64_t bytes, Error *err) {
    waits_(world, "a word to all ranks");
    return done_(world, world->ops->broadcast(world, root, data, bytes, err));
}

int world_gather(World *world, int root, void *all, const void *mine, int64_t bytes, Error *err) {
    waits_(world, "a word of all ranks");
    return done_(world, world->ops->gather(world, root, all, mine, bytes, err));
}

int world_sum(World *world, double *data, int64_t count, Error *err) {
    waits_(world, "a sum over all ranks");
    return done_(world, world->ops->sum(world, data, count, err));
}

int world_max(World *world, double *data, int64_t count, Error *err) {
    waits_(world, "a maximum over all ranks");
    return done_(world, world->ops->max(world, data, count, err));
}

Comm *world_split(World *world, const char *name, int color, int key, Error *err) {
    waits_(world, "all ranks");
    Comm *group = world->ops->split(world, name, color, key, err);
    waits_(world, NULL);
    return group;
}
