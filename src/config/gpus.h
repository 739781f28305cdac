// Figures of GPUs: vendors' data sheets and measured kernels. `hardware.gpu`, the plan, and the MFU of a run use them.
#pragma once

#include "config.h"

// One row. TFLOP/s are dense, with fp32 accumulation, at boost clock; a figure given with sparsity is halved. Rates are
// 1e9 bytes/s in one direction.
typedef struct Gpu {
    const char *word;      // value of hardware.gpu
    const char *name;      // part of the name that the driver reports
    double bf16, fp32;     // TFLOP/s; fp32 without TF32
    double memory_gib;     // size as sold; hardware.reserve_gib covers the driver's part of it
    double memory_gb_s;    // rate of the device's memory
    double link_gb_s;      // rate to other GPUs of the node: NVLink or Infinity Fabric, else PCIe
    double host_gb_s;      // rate to host memory: PCIe or NVLink-C2C
    double network_gb_s;   // network rate of a node in the vendor's reference system
    int64_t gpus_per_node; // GPUs of a node in the vendor's reference system
    double watts;          // highest power of one GPU without its host; for GH200 with its host
    int64_t domain;        // GPUs that NVLink connects across nodes; 0: only the GPUs of a node
} Gpu;

enum { GPU_COLLECTIVES = 12, GPU_SIZES = 8 };

// Flash attention reaches share * s / (s + half) * x / (x + fill) of the peak, for s positions and x blocks of 128
// positions over all heads on the device.
typedef struct FlashRate {
    double share, half, fill;
} FlashRate;

// One row of measured kernels. Time of a product: flops * (1 + product_k / k) / (peak * product_share) + product_us.
typedef struct GpuKernels {
    const char *word;
    double product_share, product_us, product_k;
    FlashRate flash_forward, flash_backward, flash_deterministic; // head dimension 128; last: deterministic backward
    double fp8_tensor, fp8_local; // speed-up of large products with one scale per tensor, and with local scales
    double stream_share;          // share of the memory's rate that passes over memory reach
    double added;                 // extra time of products that add to fp32: fraction of a pass over 8 bytes per weight
    const uint16_t (*collectives)[GPU_SIZES]; // [GPU_COLLECTIVES] bus bandwidths in a node; NULL: not measured
} GpuKernels;

// Returns the measured constants of a GPU's kernels; NULL if they are unknown, or gpu is NULL.
const GpuKernels *gpu_kernels(const Gpu *gpu);

// The range of actual step time / planned step time.
// own true: minimum to maximum over this trainer's steps. `on` completes "the range of a plan's errors ...".
// own false: low end, median and high end of the band of another trainer's published runs (docs/published.md).
typedef struct GpuBand {
    double low, middle, high;
    int runs;
    const char *on;
    bool own;
} GpuBand;

// The band of plans that use a profile, or rates that were fitted to runs. In five rounds of `make bench` on two CPU
// cores, plans were 5.4 % too short to 2.6 % too long.
extern const GpuBand gpu_band_measured;
// The band of a run on a single Hopper GPU, in bf16 or 8 bits. On two H200s, one at a time, plans were 5.2 % too short
// to 0.4 % too long (test/plan/measured_steps.json).
extern const GpuBand gpu_band_alone;

// One row of bands.c. gpus: words of hardware.gpu. experts: for mixtures of experts.
typedef struct TrainerBand {
    int trainer;
    const char *gpus;
    bool experts;
    int fp8, runs;
    double low, middle, high;
} TrainerBand;

extern const TrainerBand trainer_bands[];
extern const int trainer_band_count;

// One row of bands.c: peak memory of a trainer's published runs over planned bytes.
typedef struct TrainerMemory {
    int trainer, runs;
    double low, middle, high;
} TrainerMemory;

extern const TrainerMemory trainer_memory[];
extern const int trainer_memory_count;
extern const char *const trainer_words[]; // words of hardware.trainer

// Returns the band of a trainer's published runs for this kind of model, GPU and precision; runs is 0 if there are too
// few.
GpuBand gpu_band(int trainer, const Gpu *gpu, bool experts, int fp8);

// Returns a trainer's memory, NULL if it is not known.
const TrainerMemory *gpu_trainer_memory(int trainer);

// Words of hardware.gpu, "none" first, NULL last; the row of word i is gpu_row(i), NULL for 0.
extern const char *const gpu_words[];
const Gpu *gpu_row(int word);

// Returns the compute capability of the row's architecture: 80 (Ampere, Ada), 90 (Hopper), 100 (Blackwell), 120
// (GeForce and workstation cards of Blackwell); 0 for NULL.
int gpu_capability(const Gpu *gpu);

// Returns why GPUs of this compute capability do not support train.fp8, as a clause with the remedy; NULL if they do.
const char *gpu_without_fp8(int fp8, int capability);

// Returns the row of a device by the name its driver reports ("NVIDIA H100 80GB HBM3"), NULL if it is not known.
const Gpu *gpu_by_name(const char *device);

// Returns the row with this bf16 peak, or NULL.
const Gpu *gpu_by_peak(double bf16_tflops);

double gpu_peak(const Gpu *gpu, int precision); // TFLOP/s
