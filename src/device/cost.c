// The formulas of cost.h and their constants: the measured kernels of the GPU that the configuration names, or of the
// GPU with the given peak. Keys of `hardware` override the constants, and a profile replaces them.
#include "cost.h"

#include "backend/backend.h"
#include "base/units.h"

#include <math.h>
#include <string.h>

static void take_(double *figure, double given) {
    if (given > 0) *figure = given;
}

int64_t cost_domain(const Config *config, int64_t world) {
    int64_t node = config->hardware.gpus_per_node, most = config->hardware.gpus_per_domain;
    if (world <= most) return most > node ? most : node;
    for (int64_t domain = most / node * node; domain > node; domain -= node)
        if (world % domain == 0) return domain;
    return node;
}

void cost_take_given(Cost *cost, const Config *config) {
    const HardwareConfig *given = &config->hardware;
    take_(&cost->efficiency, given->matmul_efficiency);
    take_(&cost->half, given->matmul_half);
    take_(&cost->flash_forward.share, given->flash_forward);
    take_(&cost->flash_backward.share, given->flash_backward);
    take_(&cost->memory_rate, given->stream_gb_s * 1e9);
}

// Assumed figures for a GPU without a row: the middle of the existing rows. For AMD's GPUs the best matrix product is
// known (stas00/ml-engineering@744d01e): 0.51 of the data sheet's peak on MI300X and 0.68 on MI355X.
static const GpuKernels unknown_ = {"",  0.70, 3,    80,  {0.65, 500, 250}, {0.55, 1000, 100}, {0.55, 1000, 100}, 1.9,
                                    1.5, 0.8,  0.42, NULL};
static const struct {
    const char *word;
    double share;
} best_products_[] = {{"mi300x", 0.51}, {"mi355x", 0.68}};

static double share_without_row_(const Gpu *gpu) {
    for (size_t i = 0; gpu != NULL && i < sizeof best_products_ / sizeof *best_products_; i++)
        if (strcmp(gpu->word, best_products_[i].word) == 0) return best_products_[i].share;
    return unknown_.product_share;
}

void cost_of_gpu(Cost *cost, const Config *config, double peak) {
    const HardwareConfig *given = &config->hardware;
    const Gpu *gpu = given->gpu > 0 ? gpu_row(given->gpu) : gpu_by_peak(peak * 1e-12);
    int family = gpu_capability(gpu);
    const GpuKernels *known = gpu_kernels(gpu), *kernels = known != NULL ? known : &unknown_;
    // Data sheets list about 1/150 byte/s of memory bandwidth for each dense bf16 FLOP/s.
    double memory = given->memory_gb_s > 0 ? given->memory_gb_s * 1e9
                    : gpu != NULL          ? gpu->memory_gb_s * 1e9
                                           : peak / 150;
    *cost = (Cost){
        .flops = peak,
        .efficiency = known != NULL ? known->product_share : share_without_row_(gpu),
        .half = kernels->product_k,
        .launch = kernels->product_us * 1e-6,
        .flash_forward = kernels->flash_forward,
        .flash_backward = kernels->flash_backward,
        .memory_rate = kernels->stream_share * memory,
        .added = kernels->added,
        .fp8 = config->train.fp8 == FP8_TENSOR ? kernels->fp8_tensor : kernels->fp8_local,
        .pair = given->pair_gb_s * 1e9,
        .tensor = given->tensor_gb_s * 1e9,
        .network = given->network_gb_s * 1e9,
        .host = given->host_gb_s * 1e9,
        .latency = given->latency_us * 1e-6,
        // one GPU per family: A100, B200, RTX 5090, H100; an H100 if the GPU is unknown
        .multiprocessors = family == 80    ? 108
                           : family == 100 ? 148
                           : family == 120 ? 170
                                           : 132,
        .persistent = family == 0 || family >= 90,
        .data_sheet = known == NULL,
    };
    if (config->attention.deterministic != DETERMINISTIC_OFF) cost->flash_backward = kernels->flash_deterministic;
    // The measured collectives apply only to links with the rate of the GPU's own links.
    bool same = gpu != NULL && fabs(gpu->link_gb_s - given->tensor_gb_s) < 0.01 * gpu->link_gb_s;
    if (same && kernels->collectives != NULL) memcpy(cost->collectives, kernels->collectives, sizeof cost->collectives);
    cost_take_given(cost, config);
    cost->efficiency *= given->run_share;
    cost->flash_forward.share *= given->run_share;
    cost->flash_backward.share *= given->run_share;
    cost->memory_rate *= given->run_share;
}

// Returns how much longer a product takes if its rows cannot be read in pieces of 16 bytes: 273 instead of 398 TFLOP/s
// for 10,922 instead of 10,944 columns on an H100 (stas00/ml-engineering, 2024).
static double misaligned_(int64_t extent) { return extent % 8 == 0 ? 1 : 398.0 / 273.0; }

double cost_product(const Cost *cost, double count, int64_t m, int64_t n, int64_t k) {
    double flops = count * 2 * (double)m * (double)n * (double)k, slower = max_double(misaligned_(n), misaligned_(k));
    return slower * flops * (1 + cost->half / (double)k) / (cost->flops * cost->efficiency) + cost->launch;
}

double cost_product_fp8(const Cost *cost, int64_t m, int64_t n, int64_t k) {
    enum { LARGE = 2048 };
    return cost_product(cost, 1, m, n, k) / (m >= LARGE && n >= LARGE && k >= LARGE ? cost->fp8 : 1);
}

double cost_adding(const Cost *cost, double weights) { return cost->added * cost_pass(cost, 8 * weights); }

// A loop of products reaches the usual rate, but reads every expert's weights for few rows and launches every product.
// On the A100s and B200s of test/plan/kernels/experts.csv, whose own products reach 0.94 and 0.8 of the rates that
// plans use, loops over cuBLAS are 1.02 to 1.29 times as fast as this formula says; the grouped kernels of
// TensorRT-LLM, in bursts, 1.05 to 1.4 times (ai-dynamo/aiconfigurator@095f58a5, 1,024 and more rows per expert).
double cost_experts(const Cost *cost, int64_t rows, int64_t experts, int64_t n, int64_t k, int64_t element,
                    bool gradient) {
    static const double READ = 0.8, LAUNCH = 3.5e-6; // share of a pass; seconds
    double sum = gradient ? (double)rows / (double)experts : (double)k, weights = (double)n * (double)k;
    if (rows == 0) return 0;
    if (experts == 1) // a normal product; a weight gradient pads its rows to a multiple of 8
        return gradient ? cost_product(cost, 1, n, k, (rows + 7) / 8 * 8) + cost_adding(cost, weights)
                        : cost_product(cost, 1, rows, n, k);
    double flops = 2 * (double)rows * weights * (1 + cost->half / sum);
    return flops / (cost->flops * cost->efficiency) + READ * cost_pass(cost, (double)(experts * element) * weights) +
           (double)experts * (cost->multiprocessors > 0 ? LAUNCH : cost->launch);
}

// Returns the share of the multiprocessors' time that a product uses with tiles of 128 x `width`. Narrow tiles get a
// lower value, because they load more data per FLOP.
static double fill_(double count, int64_t m, int64_t n, int width, int multiprocessors) {
    double tiles = count * ceil((double)m / 128) * ceil((double)n / width);
    double area = count * (double)m * (double)n / (128.0 * width);
    return area / (ceil(tiles / multiprocessors) * multiprocessors) * (width / (width + 28.0)) * (284.0 / 256);
}

// The measured share of the peak comes from products with a fitting tile in cuBLASLt. Their fill is about 0.9.
// Products of less than one wave of tiles are split along k, so their last wave costs nothing.
double cost_waves(const Cost *cost, double count, int64_t m, int64_t n, int multiprocessors) {
    if (multiprocessors == 0) return 1;
    static const double FULL = 0.9;
    double best = 0, fewer = (double)cost->multiprocessors / multiprocessors;
    if (count * (double)m * (double)n < 128.0 * 256 * multiprocessors) return fewer;
    for (int width = 256; width >= 64 && best < FULL; width -= 32)
        best = max_double(
            best, max_double(fill_(count, m, n, width, multiprocessors), fill_(count, n, m, width, multiprocessors)));
    return fewer * max_double(1, FULL / best);
}

double cost_flash(const Cost *cost, double heads, int64_t seq, int64_t head_dim, int64_t value_dim, bool backward) {
    const FlashRate *rate = backward ? &cost->flash_backward : &cost->flash_forward;
    double of_keys = backward ? 6 : 2, of_values = backward ? 4 : 2; // FLOPs for a dimension of each pair
    double s = (double)seq, dims = of_keys * (double)head_dim + of_values * (double)value_dim,
           flops = heads * s * s / 2 * dims, blocks = heads * ceil(s / 128);
    double share = rate->share * s / (s + rate->half) * blocks / (blocks + rate->fill);
    return flops / (cost->flops * share);
}

// A launch: on Hopper and Blackwell GPUs, the tables' products take 2.4 to 3.1 us in addition to their FLOPs
// (GpuKernels).
double cost_kernel(const Cost *cost, double bytes) {
    static const double LAUNCH = 2.5e-6; // seconds
    return bytes > 0 && cost->multiprocessors > 0 ? max_double(cost_pass(cost, bytes), LAUNCH) : cost_pass(cost, bytes);
}

// Interpolates the bandwidths of `row`, linearly in the logarithms of size and bandwidth. Below the first size, extends
// the first segment; above the last size, returns the last bandwidth. A longer collective never takes less time.
static double measured_rate_(const uint16_t *row, double bytes) {
    static const double sizes[GPU_SIZES] = {1, 4, 16, 32, 64, 128, 256, 512};
    double mib = min_double(bytes / MIB, sizes[GPU_SIZES - 1]);
    int i = 0;
    while (i + 2 < GPU_SIZES && sizes[i + 1] < mib) i++;
    double part = log(mib / sizes[i]) / log(sizes[i + 1] / sizes[i]);
    return 1e9 * row[i] * pow((double)row[i + 1] / row[i], part);
}

// Rows are for 2, 4 and 8 ranks. Numbers between them are interpolated; larger numbers use the last measured row.
double cost_collective_rate(const Cost *cost, CostCollective kind, double bytes, int ranks) {
    const uint16_t(*rows)[GPU_SIZES] = &cost->collectives[3 * kind];
    int most = 3;
    while (most > 0 && rows[most - 1][0] == 0) most--;
    if (most == 0 || bytes <= 0) return cost->tensor;
    double at = min_double(log2(max_double(ranks, 2)) - 1, most - 1);
    int row = (int)at;
    double rate = measured_rate_(rows[row], bytes);
    return at > row ? rate * pow(measured_rate_(rows[row + 1], bytes) / rate, at - row) : rate;
}

double cost_flops_per_sent_byte(const Cost *cost, const Config *config) {
    // Bytes of one micro-batch's activations in bf16, gathered over tensor ranks.
    double bytes = 2.0 * (double)(config->schedule.micro_batch * config->model.seq_len * config->model.hidden);
    double rate = cost_collective_rate(cost, COST_ALL_GATHER, bytes, (int)config->parallel.tensor);
    return rate > 0 ? cost->flops * cost->efficiency / rate : 0;
}

static double sent_(CostCollective kind, double bytes, int ranks) {
    return (kind == COST_ALL_REDUCE ? 2 : 1) * bytes * (ranks - 1) / ranks;
}

// Measured bandwidths include latencies. Without measurements, an all-reduce adds two latencies, other kinds add one.
double cost_collective(const Cost *cost, CostCollective kind, double bytes, int ranks) {
    double seconds = sent_(kind, bytes, ranks) / cost_collective_rate(cost, kind, bytes, ranks);
    if (cost->collectives[0][0] == 0) return seconds + (kind == COST_ALL_REDUCE ? 2 : 1) * cost->latency;
    return max_double(seconds, cost->latency);
}

// On H100s, copies of 1 byte to 1 KB to another GPU take 2.3 us each if the host costs nothing, those of 64 KB 2.5
// (meta-pytorch/torchcomms, pull request 2195: batches of 16).
double cost_copy(const Cost *cost, double bytes) {
    static const double COPY = 2.3e-6; // seconds
    return COPY + bytes / cost->tensor;
}

// A collective by copies waits for one flag before its rows and one after them, which together take one latency.
// Three copies for each peer: a flag that permits it to write, rows, which wait for the first such flag, and a flag
// after the rows.
double cost_copies(const Cost *cost, double bytes, int ranks, bool follows) {
    double peers = ranks - 1, flag = cost_copy(cost, 0);
    double ready = follows ? 0 : max_double(peers * flag, flag + cost_flag(cost));
    return ready + peers * (cost_copy(cost, bytes / ranks) + flag);
}

double cost_collective_between(const Cost *cost, CostCollective kind, double bytes, int ranks, int nodes, double rate) {
    double rounds = kind == COST_ALL_REDUCE ? 2 * min_double(0.5 * nodes, ceil(log2(ranks))) : 0.5 * nodes;
    return sent_(kind, bytes, ranks) / rate + rounds * cost->latency;
}

double cost_exchange_flow(double bytes) {
    static const double WIRE = 0.8; // share of the network's rate that NCCL's sends reach
    return bytes / WIRE;
}

double cost_exchange(const Cost *cost, double inside, int near, double between, double rate) {
    double all = near > 1 ? inside * near / (near - 1) : 0;
    double seconds = near > 1 ? cost_collective(cost, COST_EXCHANGE, all, near) : 0;
    return between > 0 ? max_double(seconds, cost_exchange_flow(between) / rate + cost->latency) : seconds;
}

double cost_message(const Cost *cost, double bytes, double rate) { return bytes / rate + cost->latency; }
