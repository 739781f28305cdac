// The formulas of cost.h, and how a configuration's hardware keys become their figures. The shares of the peak that are
// written here are the model's few assumptions about GPUs; a profile replaces them where there is one.
#include "cost.h"

#include "config/gpus.h"

// Returns bytes/s of a device's memory where the configuration does not say, from its dense bf16 peak: data sheets have
// about 1/150 byte for each FLOP.
static double gpu_memory_rate_(const Config *config, double peak) {
    const Gpu *gpu = gpu_by_peak(peak * 1e-12);
    if (config->hardware.memory_gb_s > 0) return config->hardware.memory_gb_s * 1e9;
    return gpu != NULL ? gpu->memory_gb_s * 1e9 : peak / 150;
}

static void take_(double *figure, double given) {
    if (given > 0) *figure = given;
}

void cost_take_given(Cost *cost, const Config *config) {
    const HardwareConfig *given = &config->hardware;
    take_(&cost->efficiency, given->matmul_efficiency);
    take_(&cost->half, given->matmul_half);
    take_(&cost->flash_forward, given->flash_forward);
    take_(&cost->flash_backward, given->flash_backward);
    take_(&cost->memory_rate, given->stream_gb_s * 1e9);
}

void cost_of_gpu(Cost *cost, const Config *config, double peak) {
    const HardwareConfig *given = &config->hardware;
    *cost = (Cost){
        .flops = peak,
        .efficiency = 0.85,
        .half = 128, // the side of a tile
        .flash_forward = 0.50,
        .flash_backward = 0.42,
        .memory_rate = 0.8 * gpu_memory_rate_(config, peak), // streams reach four fifths
        .pair = given->pair_gb_s * 1e9,
        .tensor = given->tensor_gb_s * 1e9,
        .network = given->network_gb_s * 1e9,
        .host = given->host_gb_s * 1e9,
        .latency = given->latency_us * 1e-6,
    };
    cost_take_given(cost, config);
}

static double filled_(const Cost *cost, int64_t extent) {
    return (double)extent / ((double)extent + cost->half);
}

double cost_product(const Cost *cost, double count, int64_t m, int64_t n, int64_t k) {
    double share = cost->efficiency * filled_(cost, m) * filled_(cost, n) * filled_(cost, k);
    return count * 2 * (double)m * (double)n * (double)k / (cost->flops * share);
}

double cost_flash(const Cost *cost, double heads, int64_t seq, int64_t head_dim, bool backward) {
    double pairs = heads * (double)seq * (double)seq / 2, flops = 4 * pairs * (double)head_dim;
    double share = (backward ? cost->flash_backward : cost->flash_forward) * filled_(cost, seq);
    return (backward ? 2.5 : 1.0) * flops / (cost->flops * share);
}

double cost_pass(const Cost *cost, double bytes) {
    return bytes / cost->memory_rate;
}

double cost_collective(const Cost *cost, double bytes, int ranks, double rate) {
    return bytes * (ranks - 1) / ranks / rate + (ranks - 1) * cost->latency;
}

double cost_message(const Cost *cost, double bytes, double rate) {
    return bytes / rate + cost->latency;
}
