// Plans that do not fit this machine are refused, with the missing memory or GPUs.
#include "models.h"
#include "device/device.h"
#include "made_plan.h"
#include "plan/fits.h"
#include "scratch_folder.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t GIB = INT64_C(1) << 30;

static int fits(const Made *all, const Machine *machine) {
    int64_t ranks[CONFIG_MAX_STAGES];
    for (int s = 0; s < all->plan.stages; s++) ranks[s] = all->config.parallel.tensor * all->config.parallel.data;
    return plan_check_fit(&all->plan, &all->config, "train_llama", machine, ranks, &unit_error);
}

TEST(without_gpus_two_lines_say_what_is_needed_there_and_to_run_instead) {
    AutoMade all = made(LLAMA, "");
    Machine small = {false, 2, 23 * GIB, 0};
    char expected[1024], why[256];
    device_missing(&all.config, why);
    snprintf(expected, sizeof expected,
             "configs/llama65b.yaml needs 32 GPUs with %.1f GiB each (stage 0 is the fullest); here: no CUDA device, 2 "
             "cores and 23.0 GiB "
             "of free memory (%s)\nrun instead: ./train_llama -c configs/llama_tiny.yaml, or ./train_llama -c "
             "configs/llama65b.yaml --plan "
             "to see its memory and step time",
             (double)memory_total(&all.plan.stage[0].memory) / (double)GIB + 4.0, why);
    assert_refused(fits(&all, &small), EXIT_FAILED, expected);
    assert_string_equal(unit_error.text, expected);
}

TEST(on_a_cpu_all_ranks_have_to_fit_beside_the_reserve) {
    AutoMade all = made(LLAMA, "hardware.device=cpu parallel.data=2 train.global_batch=256");
    int64_t needed = 4 * GIB; // the reserve counts once per machine
    for (int s = 0; s < 8; s++)
        needed += 8 * (memory_total(&all.plan.stage[s].memory) + plan_host_bytes(&all.plan.stage[s]));
    Machine machine = {false, 2, needed, 0};
    assert_succeeds(fits(&all, &machine));
    machine.free_bytes = needed - 1;
    assert_refused(fits(&all, &machine), EXIT_FAILED,
                   "GiB of host memory for 64 ranks and 4.0 GiB in reserve; here: no CUDA device, 2 cores and");
    const char *second = strchr(unit_error.text, '\n');
    assert_non_null(second);
    assert_ptr_equal(strstr(second, "\nrun instead: ./train_llama -c configs/llama_tiny.yaml"), second);
    assert_null(strchr(second + 1, '\n'));
    machine.free_bytes = 0; // unknown, so nothing is refused
    assert_succeeds(fits(&all, &machine));
}

TEST(a_rank_has_to_fit_into_the_memory_that_is_given) {
    // 1F1B: eight bundles of 5 GiB beside 35 GiB of states
    Machine gpus = {true, 64, 1000 * GIB, 0};
    Made all = made(LLAMA, "schedule.micro_batch=4 hardware.reserve_gib=6");
    assert_refused(fits(&all, &gpus), EXIT_FAILED, "configs/llama65b.yaml:");
    assert_contains(unit_error.text, "more than hardware.memory_gib, 80.00 GiB;");
    unmake(&all);
    all = made(LLAMA, "schedule.micro_batch=4 hardware.reserve_gib=6 schedule.bpipe=on");
    assert_succeeds(fits(&all, &gpus));
    unmake(&all);
}

TEST(the_reserve_counts_beside_a_ranks_bytes_on_cpus_too) {
    Machine machine = {false, 2, 0, 0};
    AutoMade all =
        made(LLAMA,
             "hardware.device=cpu train.precision=fp32 model.layers=8 hardware.memory_gib=100 hardware.reserve_gib=1");
    assert_succeeds(fits(&all, &machine));
    all.config.hardware.reserve_gib = 99;
    assert_refused(fits(&all, &machine), EXIT_FAILED,
                   "and 99.00 GiB in reserve (hardware.reserve_gib), more than hardware.memory_gib");
}

TEST(without_a_figure_the_gpus_own_memory_counts) {
    Machine gpus = {true, 64, 1000 * GIB, 80 * GIB};
    AutoMade all = made(LLAMA, "schedule.micro_batch=4 hardware.reserve_gib=6 hardware.memory_gib=auto");
    assert_refused(fits(&all, &gpus), EXIT_FAILED, "more than the GPU has, 80.00 GiB;");
    gpus.gpu_bytes = 141 * GIB;
    assert_succeeds(fits(&all, &gpus));
    gpus.gpu_bytes = 0; // unknown, so nothing is refused
    assert_succeeds(fits(&all, &gpus));
}

TEST(evicted_bundles_need_host_memory_beside_gpus_too) {
    AutoMade all = made(LLAMA, "schedule.bpipe=on schedule.evict_to=host checkpoint.every=0");
    int64_t needed = 0;
    for (int s = 0; s < 8; s++) {
        int64_t evicted = all.plan.stage[s].host_slots * all.plan.stage[s].slot_bytes;
        assert_int_equal(plan_host_bytes(&all.plan.stage[s]), evicted + all.plan.stage[s].buffer_bytes);
        needed += 4 * plan_host_bytes(&all.plan.stage[s]);
    }
    Machine gpus = {true, 64, needed, 0};
    assert_true(needed > 0);
    assert_succeeds(fits(&all, &gpus));
    gpus.free_bytes--;
    assert_refused(fits(&all, &gpus), EXIT_FAILED, "");
}

// Makes the folder of a node of /sys/devices/system/node; `cores` as the kernel lists them.
static void make_node(int n, const char *cores, int free_kib) {
    char name[64], text[128];
    snprintf(name, sizeof name, "node%d", n);
    assert_int_equal(mkdir(test_path(name), 0700), 0);
    snprintf(name, sizeof name, "node%d/cpulist", n);
    test_file_write(name, cores, strlen(cores));
    snprintf(name, sizeof name, "node%d/meminfo", n);
    int bytes = snprintf(text, sizeof text, "Node %d MemTotal: 9999999 kB\nNode %d MemFree:  %d kB\n", n, n, free_kib);
    test_file_write(name, text, (size_t)bytes);
}

// Grace's cores and memory are node 0; the GPU's memory is node 1, further nodes are for instances of it.
TEST(memory_of_a_gpu_on_grace_is_no_host_memory) {
    assert_int_equal(test_folder_create(NULL), 0);
    make_node(0, "0-71\n", 500000), make_node(1, "\n", 3000), make_node(9, "\n", 1);
    assert_int_equal(machine_free_on_gpus(test_folder), 3001 * 1024);
    assert_int_equal(machine_free_on_gpus("/nowhere"), 0);
    assert_int_equal(test_folder_remove(NULL), 0);
}

// A rank copies the weights that it writes and all states that it owns: 14 bytes per parameter in bf16, for any d.
TEST(copies_for_checkpoints_need_host_memory) {
    for (int d = 1; d <= 4; d *= 2) {
        char data[32];
        snprintf(data, sizeof data, "parallel.data=%d", d);
        AutoMade all = made(LLAMA, data);
        for (int s = 0; s < 8; s++) {
            const PlanStage *stage = &all.plan.stage[s];
            double share = 14.0 * (double)stage->parameters / 4 / d;
            assert_true((double)stage->copy_bytes >= share && (double)stage->copy_bytes < 1.001 * share + 1e6);
        }
        int64_t needed = 0;
        for (int s = 0; s < 8; s++) needed += 4 * d * plan_host_bytes(&all.plan.stage[s]);
        Machine gpus = {true, 64, needed, 0};
        assert_succeeds(fits(&all, &gpus));
        gpus.free_bytes--;
        assert_refused(fits(&all, &gpus), EXIT_FAILED, "");
    }
}

TEST(memory_and_cores_of_this_machine_are_found) {
    Machine machine = machine_look(false);
    assert_false(machine.cuda);
    assert_true(machine.cores >= 1 && machine.cores <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(machine.free_bytes > 0 && machine.free_bytes <= sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    AutoMade all = made(LLAMA, "");
    assert_refused(plan_check_machine(&all.plan, &all.config, "train_llama", false, &unit_error), EXIT_FAILED, "");
}
