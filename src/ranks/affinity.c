// Finds the cores that the kernel lets this process use, and divides a host's cores among its ranks.
#include "affinity.h"

#include "base/alloc.h"
#include "base/files.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Gets the cores that this process may run on, at most as many as a cpu_set_t holds.
static void look_(cpu_set_t *allowed) {
    CPU_ZERO(allowed);
    if (sched_getaffinity(0, sizeof *allowed, allowed) == 0 && CPU_COUNT(allowed) > 0) return;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (int core = 0; core < CPU_SETSIZE && (core == 0 || core < online); core++) CPU_SET(core, allowed);
}

int affinity_allowed(void) {
    cpu_set_t allowed;
    look_(&allowed);
    return CPU_COUNT(&allowed);
}

int affinity_threads(int ranks) {
    const char *set = getenv("OMP_NUM_THREADS");
    int threads = set != NULL && atoi(set) > 0 ? atoi(set) : affinity_allowed() / ranks;
    return threads > 0 ? threads : 1;
}

double affinity_part(const CoresOfRank *ranks, int count, int rank) {
    double part = 0.0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        int users = 0;
        if (!CPU_ISSET(core, &ranks[rank].allowed)) continue;
        for (int r = 0; r < count; r++)
            users += ranks[r].node == ranks[rank].node && CPU_ISSET(core, &ranks[r].allowed);
        part += 1.0 / users;
    }
    return part;
}

int affinity_share(World *world, double *part, Error *err) {
    CoresOfRank mine;
    int size = world_size(world);
    memset(&mine, 0, sizeof mine);
    mine.node = world_place(world)->node;
    look_(&mine.allowed);
    CoresOfRank *ranks = xcalloc((size_t)size, sizeof *ranks);
    int status = world_gather_all(world, ranks, &mine, sizeof mine, err);
    if (status == 0) *part = affinity_part(ranks, size, world_rank(world));
    free(ranks);
    return status;
}

void affinity_spin_briefly(char **argv) {
#ifdef _OPENMP
    char self[4096];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) return;
    if (!file_of_program(self, sizeof self)) return;
    // An idle thread spins for some tens of microseconds: longer than the gap between two operations, shorter than a
    // scheduler's time slice.
    setenv("GOMP_SPINCOUNT", "2000", 1);
    execv(self, argv);
#else
    (void)argv;
#endif
}
