// Slots in host memory, and slots in flight. The states of slots in sound schedules: test_schedules.py.
#include "engine/engine.h"
#include "models.h"
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(too_little_host_memory_for_slots_is_an_error_with_a_remedy) {
    Backend *be = backend_cpu_create(PRECISION_FP32, 1, NULL);
    SlotPool pool;
    assert_refused(slots_create(&pool, be, SLOTS_ON_HOST, 1 << 20, (int64_t)1 << 30, &unit_error),
                   EXIT_FAILED, // 2^50 bytes
                   "cannot allocate 1048576.00 GiB of host memory");
    assert_contains(unit_error.text, "schedule.evict_to");
    slots_destroy(&pool);
    be->destroy(be);
}

// Runs a list of one stage and one microbatch without its proof. Returns the signal that ends it, or 0.
static int ending_of(const char *list) {
    const char *overrides[] = {"parallel.pipeline=1", "schedule.bpipe=off", "model.layers=8", "model.hidden=64",
                               "model.seq_len=32"};
    char text[256];
    Config config;
    snprintf(text, sizeof text,
             "# schedule mine  stages 1  chunks 1  placement loop  microbatches 1  slots 1  edges 2\nstage 0: %s\n",
             list);
    assert_succeeds(config_load(&config, "configs/llama_tiny.yaml", overrides, 5, &unit_error));
    Schedule *schedule = assert_made(schedule_parse(text, &unit_error));
    int status;
    pid_t child = fork();
    if (child == 0) {
        Stage stage;
        EngineRun run;
        EngineGroups groups = {0};
        alarm(20); // the mistake would be a wait
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        Backend *be = backend_cpu_create(config.train.precision, 1, &unit_error);
        if (stage_create(&stage, &llama_model, &config, schedule, be, 0, NULL, 0, &unit_error) != 0) _exit(1);
        SlotCounts slots = {.own = 1, .host = 1, .bytes = stage.at.bundle_bytes};
        Engine *engine = engine_create(&stage, schedule, &slots, &groups, NULL, &unit_error);
        _exit(engine == NULL || engine_run(engine, "step 1", schedule, 1, &run, &unit_error) != 0);
    }
    waitpid(child, &status, 0);
    schedule_free(schedule);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// No schedule that is run has such a list, because the proof refuses it.
TEST(an_eviction_of_a_bundle_that_is_read_stops_the_run) {
    assert_int_equal(ending_of("F0.0 E0.0>h L0.0<h I0.0 W0.0"), 0);
    assert_int_equal(ending_of("F0.0 I0.0 E0.0>h W0.0 L0.0<h"), SIGABRT);
}
