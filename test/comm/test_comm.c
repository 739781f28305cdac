// Groups and worlds of one rank, and how launchers are recognised. ranks_comm.c tests several ranks.
#include "comm/comm.h"
#include "comm/comm_emulated.h"
#include "ranks/world.h"
#include "unit.h"

#include <math.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

TEST(one_rank_keeps_its_sums) {
    float data[3] = {1, 2, 3}, apart[3] = {0};
    Comm *comm = comm_self_create("tensor");
    assert_non_null(comm);
    assert_int_equal(comm->size, 1);
    assert_succeeds(comm_collect_now(comm, COMM_ALL_REDUCE, data, data, 3, COMM_FLOAT, &unit_error));
    assert_succeeds(comm_collect_now(comm, COMM_ALL_GATHER, apart, data, 3, COMM_FLOAT, &unit_error));
    assert_memory_equal(apart, data, sizeof data);
    assert_succeeds(comm_collect_now(comm, COMM_REDUCE_SCATTER, data, data, 3, COMM_FLOAT, &unit_error));
    assert_true(data[0] == 1 && data[1] == 2 && data[2] == 3);
    comm->destroy(comm);
}

TEST(one_rank_exchanges_with_itself) {
    CommRequest request = {0};
    char in[6] = "block", out[6] = "";
    int64_t bytes = 5;
    Comm *comm = comm_self_create("experts");
    assert_succeeds(comm->exchange(comm, out, &bytes, in, &bytes, &request, &unit_error));
    assert_succeeds(comm_wait(comm, &request, &unit_error));
    assert_false(request.active);
    assert_string_equal(out, in);
    bytes = 0;
    assert_succeeds(comm->exchange(comm, out, &bytes, NULL, &bytes, &request, &unit_error));
    assert_succeeds(comm_wait(comm, &request, &unit_error));
    comm->destroy(comm);
}

TEST(an_emulated_group_of_experts_sends_as_many_rows_as_this_rank) {
    Backend *be = assert_made(backend_cpu_create(PRECISION_FP32, 1, &unit_error));
    Comm *comm = comm_emulated_create("experts", 1, 3, be, &(EmulatedPeers){0});
    CommRequest request = {0};
    const int64_t bytes[] = {8, 8, 8};
    float in[6] = {1, 2, 3, 4, 5, 6}, out[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    for (int step = 1; step <= 2; step++) { // into the same memory
        double rows[3] = {0, step, 0};
        assert_succeeds(comm_collect_now(comm, COMM_ALL_GATHER, rows, rows + 1, 1, COMM_DOUBLE, &unit_error));
        for (int rank = 0; rank < 3; rank++) assert_true(rows[rank] == step);
        assert_succeeds(comm->exchange(comm, out, bytes, in, bytes, &request, &unit_error));
        assert_succeeds(comm_wait(comm, &request, &unit_error));
        for (int i = 0; i < 6; i++) assert_true(i / 2 == 1 ? out[i] == in[i] : isfinite(out[i]) && out[i] != 0);
        in[2]++;
    }
    comm->destroy(comm);
    be->destroy(be);
}

TEST(a_world_of_one_is_complete) {
    Error err = {0};
    int argc = 1;
    char *words[] = {"test", NULL}, **argv = words;
    World *world = world_join(&argc, &argv, &err);
    double value = 2.5;
    int32_t mine = 7, all = 0;
    assert_non_null(world);
    assert_int_equal(world_rank(world), 0);
    assert_int_equal(world_size(world), 1);
    assert_int_equal(world_place(world)->local_size, 1);
    assert_int_equal(world_place(world)->nodes, 1);
    assert_true(strlen(world_place(world)->host) > 0);
    assert_int_equal(world_barrier(world, &err), 0);
    assert_int_equal(world_sum(world, &value, 1, &err), 0);
    assert_int_equal(world_max(world, &value, 1, &err), 0);
    assert_true(value == 2.5);
    assert_int_equal(world_gather(world, &all, &mine, sizeof mine, &err), 0);
    assert_int_equal(all, 7);
    assert_null(world_split(world, "none", -1, 0, &err));
    assert_int_equal(err.code, 0);
    Comm *comm = world_split(world, "data", 0, 0, &err);
    assert_int_equal(comm->size, 1);
    comm->destroy(comm);
    world_leave(world, 0);
}

TEST(a_sum_over_all_ranks_reaches_rank_0_and_no_rank_has_many_peers) {
    enum { MOST = 4096, PEERS = 12 }; // log2
    static int sum[MOST], peers[MOST];
    const int sizes[] = {1, 2, 3, 8, 1000, MOST};
    for (int i = 0; i < 6; i++) {
        int size = sizes[i];
        for (int r = 0; r < size; r++) sum[r] = 1, peers[r] = 0;
        for (int n = 1; n < size; n *= 2)
            for (int r = 0; r < size; r++) {
                int peer = world_sum_peer(r, size, n);
                if (peer < 0) continue;
                assert_int_equal(world_sum_peer(peer, size, n), r);
                peers[r]++;
                if (r < peer) sum[r] += sum[peer], sum[peer] = 0;
            }
        assert_int_equal(sum[0], size);
        for (int r = 0; r < size; r++) assert_true(peers[r] <= PEERS);
    }
}

// --- environments as launchers make them

static const char *const VARIABLES[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK",    "PMI_RANK",     "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID",
                                        "TORCHELASTIC_RUN_ID",  "WORLD_SIZE"};

typedef struct Launched {
    const char *how;
    const char *set[6]; // NAME=VALUE
    int status;
    bool under;
} Launched;

static const Launched CASES[] = {
    {"by hand", {NULL}, 0, false},
    {"mpirun -n 4", {"OMPI_COMM_WORLD_SIZE=4", "PMIX_RANK=0"}, 0, true},
    {"mpirun -n 1", {"OMPI_COMM_WORLD_SIZE=1", "PMIX_RANK=0"}, 0, true},
    {"another MPI's mpiexec", {"PMI_RANK=2"}, 0, true},
    {"batch script, no srun", {"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0"}, 0, false},
    {"mpirun in a batch script", {"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "OMPI_COMM_WORLD_SIZE=4"}, 0, true},
    {"srun --mpi=pmix", {"SLURM_STEP_ID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=4", "PMIX_RANK=3"}, 0, true},
    {"srun without pmix", {"SLURM_STEP_ID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=4"}, -1, false},
    {"srun of an old Slurm", {"SLURM_STEP_ID=0", "SLURM_NTASKS=4"}, -1, false},
    {"srun --pty bash", {"SLURM_STEP_ID=0", "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=1"}, 0, false},
    {"srun --mpi=pmix --pty bash", {"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "PMIX_RANK=0"}, 0, false},
    {"torchrun", {"TORCHELASTIC_RUN_ID=none", "WORLD_SIZE=4"}, -1, false},
    {"another launcher for torch", {"WORLD_SIZE=4"}, -1, false},
    {"torchrun of one process", {"TORCHELASTIC_RUN_ID=none", "WORLD_SIZE=1"}, 0, false},
    {"mpirun in a job of torch", {"OMPI_COMM_WORLD_SIZE=4", "WORLD_SIZE=4"}, 0, true},
};

static void set_environment_(const Launched *launched) {
    for (size_t i = 0; i < sizeof VARIABLES / sizeof *VARIABLES; i++) unsetenv(VARIABLES[i]);
    for (int i = 0; i < 6 && launched->set[i] != NULL; i++) {
        char name[64];
        const char *value = strchr(launched->set[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(value - launched->set[i]), launched->set[i]);
        setenv(name, value + 1, 1);
    }
}

TEST(launchers_are_recognised) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Error err = {0};
        bool under = true;
        set_environment_(&CASES[i]);
        int status = world_under_launcher(&under, &err);
        if (status != CASES[i].status || under != CASES[i].under) fail_msg("%s: %d %d", CASES[i].how, status, under);
        if (status == 0) continue;
        assert_int_equal(err.code, EXIT_USAGE);
        bool torch = strstr(CASES[i].how, "torch") != NULL;
        assert_non_null(strstr(err.text, torch ? "torchrun" : "srun --mpi=pmix"));
        assert_non_null(strstr(err.text, torch ? "unset" : "4 tasks"));
    }
    set_environment_(&CASES[0]);
}

// Sleeps of 20 microseconds need a timer slack below the kernel's default of 50 microseconds.
TEST(a_brief_pause_yields_first_and_then_sleeps_without_slack) {
    int looks = 0;
    long before = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    for (int i = 0; i < 1000; i++) comm_pause_briefly(&looks);
    assert_int_equal(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL), before);
    comm_pause_briefly(&looks);
    assert_int_equal(looks, 1001);
    assert_int_equal(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL), 1000);
}

static int yields, yield_ms;

// Replaces the C library's function: another program gets the core for yield_ms milliseconds.
int sched_yield(void) {
    const struct timespec slice = {0, yield_ms * 1000000L};
    yields++;
    return yield_ms > 0 ? nanosleep(&slice, NULL) : 0;
}

static int yields_of(Pause *pause, int pauses) {
    yields = 0;
    for (int i = 0; i < pauses; i++) comm_pause(pause);
    return yields;
}

// Each yield would cost a time slice of every program that wants the core.
TEST(a_pause_yields_no_more_once_another_program_has_kept_the_core) {
    Pause pause = {0};
    yield_ms = 0;
    assert_int_equal(yields_of(&pause, 24), 16);
    pause.looks = 0;
    yield_ms = 3;
    assert_int_equal(yields_of(&pause, 24), 1);
    pause.looks = 0;
    assert_int_equal(yields_of(&pause, 24), 0);
    pause = (Pause){0, pause.busy - 1};
    assert_int_equal(yields_of(&pause, 1), 1);
}

// A link to rank 0 that takes `trip` seconds there and back.
typedef struct Link {
    double trip;
    int asked;  // round trips
    bool ended; // rank 0 was told that no more will come
} Link;

static int link_message(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                        Error *err) {
    Link *link = comm->self;
    (void)peer, (void)bytes, (void)request, (void)err;
    if (!sends) {
        nanosleep(&(struct timespec){0, (long)(1e9 * link->trip)}, NULL);
        *(double *)memory = 0;
        return 0;
    }
    link->asked += *(const double *)memory >= 0;
    link->ended = *(const double *)memory < 0;
    return 0;
}

static int link_test(Comm *comm, CommRequest *request, Error *err) {
    (void)comm, (void)request, (void)err;
    return 1;
}

static Link measured(double trip) {
    Link link = {trip, 0, false};
    Comm comm = {.rank = 1, .size = 2, .self = &link, .message = link_message, .test = link_test};
    double offset;
    assert_succeeds(comm_clock_offset(&comm, 1, &offset, &unit_error));
    return link;
}

// A dozen round trips of 3 s each would hold up a start for 36 s, once per host.
TEST(clocks_over_a_slow_link_are_compared_in_one_round_trip) {
    Link slow = measured(0.6), quick = measured(0);
    assert_true(slow.asked == 1 && slow.ended);
    // Repeated, since another program that keeps the core makes the link look slow.
    for (int i = 0; i < 20 && quick.asked == 1; i++) quick = measured(0);
    assert_true(quick.asked > 1);
}
