// The table of GPUs: whether the row or a key sets a value, and which device gets which row.
#include "config/gpus.h"
#include "config_file.h"
#include "unit.h"

#include <string.h>

static Config loaded(const char *hardware, const char *first, const char *second) {
    static Config config;
    char text[1024];
    const char *overrides[2] = {first, second};
    snprintf(text, sizeof text, BASE "train: {precision: bf16}\nhardware: {%s}\n", hardware);
    int count = second != NULL ? 2 : first != NULL ? 1 : 0;
    assert_succeeds(config_file_load(&config, text, overrides, count, &unit_error));
    return config;
}

TEST(a_row_fills_what_the_file_leaves_open) {
    Config c = loaded("gpu: h100", NULL, NULL);
    assert_true(c.hardware.peak_tflops == 989.5 && c.hardware.memory_gib == 80 && c.hardware.memory_gb_s == 3350);
    assert_true(c.hardware.pair_gb_s == 360 && c.hardware.tensor_gb_s == 360 && c.hardware.network_gb_s == 400);
    assert_int_equal(c.hardware.gpus_per_node, 8);
    assert_true(c.hardware.gpu_watts == 700 && c.hardware.gpu_hour == 0);
    c = loaded("gpu: h100, memory_gib: 70, network_gb_s: 25", NULL, NULL);
    assert_true(c.hardware.memory_gib == 70 && c.hardware.network_gb_s == 25 && c.hardware.peak_tflops == 989.5);
}

TEST(keys_given_in_the_same_place_or_later_win_over_the_row) {
    Config c = loaded("gpu: a100-80g", "hardware.memory_gib=60", NULL);
    assert_true(c.hardware.memory_gib == 60 && c.hardware.peak_tflops == 312);
    c = loaded("device: auto", "hardware.peak_tflops=700", "hardware.gpu=h100");
    assert_true(c.hardware.peak_tflops == 700 && c.hardware.memory_gib == 80);
}

TEST(an_override_of_the_gpu_replaces_what_the_file_says) {
    Config c = loaded("peak_tflops: 312, memory_gib: 80, network_gb_s: 25", "hardware.gpu=b200", NULL);
    assert_true(c.hardware.peak_tflops == 2250 && c.hardware.memory_gib == 180 && c.hardware.network_gb_s == 400);
}

TEST(without_a_gpu_nothing_is_filled) {
    Config c = loaded("device: auto", NULL, NULL);
    assert_true(c.hardware.peak_tflops == 0 && c.hardware.memory_gib == 0 && c.hardware.pair_gb_s == 240);
}

TEST(every_band_is_of_enough_runs_on_a_gpu_of_the_table) {
    for (int i = 0; i < trainer_band_count; i++) {
        const TrainerBand *row = &trainer_bands[i];
        assert_true(row->runs >= 5 && row->trainer > TRAINER_THIS && row->trainer < TRAINER_FSDP);
        assert_true(row->low < row->middle && row->middle < row->high && (row->experts || row->high < 1.35 * row->low));
        char words[64], *at = words;
        snprintf(words, sizeof words, "%s", row->gpus);
        for (char *word; (word = strsep(&at, " ")) != NULL;) {
            int gpu = 1;
            while (gpu_words[gpu] != NULL && strcmp(gpu_words[gpu], word) != 0) gpu++;
            assert_non_null(gpu_row(gpu));
            assert_int_equal(gpu_band(row->trainer, gpu_row(gpu), row->experts, row->fp8).runs, row->runs);
        }
    }
    for (int i = 0; i < trainer_memory_count; i++) {
        const TrainerMemory *row = &trainer_memory[i];
        assert_true(row->runs >= 5 && row->low < row->middle && row->middle < row->high);
        assert_ptr_equal(gpu_trainer_memory(row->trainer), row);
    }
    assert_null(gpu_trainer_memory(TRAINER_THIS));
    assert_int_equal(gpu_band(TRAINER_FSDP, gpu_row(1), false, FP8_OFF).runs, 0);
    assert_int_equal(gpu_band(TRAINER_NVIDIA, NULL, false, FP8_OFF).runs, 0);
}

TEST(a_device_is_known_by_the_name_its_driver_reports) {
    const char *const names[][2] = {
        {"NVIDIA A100-SXM4-80GB", "a100-80g"},
        {"NVIDIA A100-SXM4-40GB", "a100-40g"},
        {"NVIDIA A10", "a10"},
        {"NVIDIA A10G", "a10g"},
        {"NVIDIA H100 80GB HBM3", "h100"},
        {"NVIDIA H100 PCIe", "h100-pcie"},
        {"NVIDIA H200", "h200"},
        {"NVIDIA GB200", "gb200"},
        {"NVIDIA B200", "b200"},
        {"NVIDIA L40S", "l40s"},
        {"NVIDIA L4", "l4"},
        {"NVIDIA GH200 480GB", "gh200"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const Gpu *gpu = gpu_by_name(names[i][0]);
        if (gpu == NULL) fail_msg("%s has no row", names[i][0]);
        assert_string_equal(gpu->word, names[i][1]);
    }
    assert_null(gpu_by_name("NVIDIA A1000"));
}

TEST(every_row_has_its_word_and_whole_figures) {
    assert_null(gpu_row(0));
    for (int i = 1; gpu_words[i] != NULL; i++) {
        const Gpu *gpu = gpu_row(i);
        assert_string_equal(gpu->word, gpu_words[i]);
        assert_true(gpu->bf16 > 0 && gpu->fp32 > 0 && gpu->memory_gib > 0 && gpu->memory_gb_s > 0);
        assert_true(gpu->link_gb_s > 0 && gpu->host_gb_s > 0 && gpu->network_gb_s > 0 && gpu->gpus_per_node > 0);
    }
}

TESTS_BETWEEN(config_file_create, config_file_remove)
