// The table of GPUs. The columns are in gpus.h; each group of rows names the sources of its figures. TFLOP/s are dense
// (half a figure that a data sheet gives "with sparsity"), with sums in fp32. A data sheet's GB of memory are GiB to
// within 1 %, as nvidia-smi shows. Rates between devices are for long transfers: 0.8 of the wire's rate one way (half
// of a data sheet's "bidirectional" rate). Nodes and networks are those of the named systems. Watts are the
// highest power that a data sheet allows for the usual board (one A100 board allows 500 W). For H20 and A10G, watts are
// the limits that nvidia-smi shows.
#include "gpus.h"

#include <math.h>
#include <string.h>

#define REACHED         0.8 // share of a wire's rate
#define PCIE4           (32 * REACHED)
#define PCIE5           (64 * REACHED)
#define NVLINK(one_way) ((one_way)*REACHED)

// gpu_by_name returns the first row with a name contained in the device's name, so "H100 PCIe" precedes "H100".
static const Gpu gpus_[] = {
    // NVIDIA A100 data sheet (2021) and DGX A100; A800: the same, with 400 GB/s of NVLink. A30, A40, A10 data sheets
    // (2021). A10G: Amazon EC2 G5.
    {"a100-40g", "A100-SXM4-40GB", 312.0, 19.5, 40, 1555, NVLINK(300), PCIE4, 200, 8, 400, 0},
    {"a100-80g", "A100", 312.0, 19.5, 80, 2039, NVLINK(300), PCIE4, 200, 8, 400, 0},
    {"a800", "A800", 312.0, 19.5, 80, 2039, NVLINK(200), PCIE4, 200, 8, 400, 0},
    {"a30", "A30", 165.0, 10.3, 24, 933, PCIE4, PCIE4, 25, 8, 165, 0},
    {"a40", "A40", 149.7, 37.4, 48, 696, PCIE4, PCIE4, 25, 8, 300, 0},
    {"a10g", "A10G", 70.0, 35.0, 24, 600, PCIE4, PCIE4, 25, 8, 300, 0},
    {"a10", "A10", 125.0, 31.2, 24, 600, PCIE4, PCIE4, 25, 8, 150, 0},
    // NVIDIA H100 data sheet (SXM, PCIe, NVL) and DGX H100; H800: the same, with 400 GB/s of NVLink. NVLink connects
    // two H100 NVL cards, or up to four H200 NVL cards. H20: 148 TFLOP/s, 96 GB, 4 TB/s; its sheet allows 400 W, its
    // boards 500. GH200 Grace Hopper data sheet: 450 to 1000 W for both chips with memory. H200 data sheet.
    {"h100-pcie", "H100 PCIe", 756.5, 51.2, 80, 2000, PCIE5, PCIE5, 50, 8, 350, 0},
    {"h100-nvl", "H100 NVL", 835.5, 60.0, 94, 3900, PCIE5, PCIE5, 50, 8, 400, 0},
    {"h100", "H100", 989.5, 66.9, 80, 3350, NVLINK(450), PCIE5, 400, 8, 700, 0},
    {"h800", "H800", 989.5, 66.9, 80, 3350, NVLINK(200), PCIE5, 400, 8, 700, 0},
    {"h20", "H20", 148.0, 44.0, 96, 4000, NVLINK(450), PCIE5, 400, 8, 500, 0},
    {"gh200", "GH200", 989.5, 66.9, 96, 4000, NVLINK(450), NVLINK(450), 50, 1, 1000, 0},
    {"h200-nvl", "H200 NVL", 835.5, 60.0, 141, 4800, NVLINK(450), PCIE5, 50, 8, 600, 0},
    {"h200", "H200", 989.5, 66.9, 141, 4800, NVLINK(450), PCIE5, 400, 8, 700, 0},
    // NVIDIA Blackwell and Blackwell Ultra data sheets: HGX B200 and B300, GB200 and GB300 NVL72 (a GPU's part of the
    // rack, in which NVLink connects 18 hosts of 4; watts without Grace). nvidia-smi agrees: GB200 1200 W and 189,471
    // MiB, GB300 1400 W and 284,208 MiB, B300 SXM6 1100 W and 275,040 MiB.
    {"gb200", "GB200", 2500.0, 80.0, 186, 8000, NVLINK(900), NVLINK(450), 200, 4, 1200, 72},
    {"gb300", "GB300", 2500.0, 80.0, 279, 8000, NVLINK(900), NVLINK(450), 400, 4, 1400, 72},
    {"b200", "B200", 2250.0, 75.0, 180, 8000, NVLINK(900), PCIE5, 400, 8, 1000, 0},
    {"b300", "B300", 2250.0, 75.0, 270, 8000, NVLINK(900), PCIE5, 800, 8, 1100, 0},
    // NVIDIA L4, L40S, L40, RTX A6000, RTX A5000 and RTX 6000 Ada data sheets.
    {"l4", "L4", 121.0, 30.3, 24, 300, PCIE4, PCIE4, 25, 8, 72, 0},
    {"l40s", "L40S", 362.0, 91.6, 48, 864, PCIE4, PCIE4, 50, 8, 350, 0},
    {"l40", "L40", 181.0, 90.5, 48, 864, PCIE4, PCIE4, 50, 8, 300, 0},
    {"rtx-a6000", "RTX A6000", 154.8, 38.7, 48, 768, PCIE4, PCIE4, 12.5, 4, 300, 0},
    {"rtx-a5000", "RTX A5000", 111.1, 27.8, 24, 768, PCIE4, PCIE4, 12.5, 4, 230, 0},
    {"rtx-6000-ada", "RTX 6000 Ada", 364.2, 91.1, 48, 960, PCIE4, PCIE4, 12.5, 4, 300, 0},
    // NVIDIA RTX Blackwell, Ada and Ampere GA102 architecture white papers, appendices (FP16 Tensor TFLOPS with FP32
    // accumulate, TGP). GeForce cards accumulate in FP32 at half the rate of workstation cards.
    {"rtx-5090", "RTX 5090", 209.5, 104.8, 32, 1792, PCIE5, PCIE5, 12.5, 4, 575, 0},
    {"rtx-4090", "RTX 4090", 165.2, 82.6, 24, 1008, PCIE4, PCIE4, 12.5, 4, 450, 0},
    {"rtx-4080", "RTX 4080", 97.5, 48.7, 16, 717, PCIE4, PCIE4, 12.5, 4, 320, 0},
    {"rtx-3090-ti", "RTX 3090 Ti", 80.0, 40.0, 24, 1008, PCIE4, PCIE4, 12.5, 4, 450, 0},
    {"rtx-3090", "RTX 3090", 71.0, 35.6, 24, 936, PCIE4, PCIE4, 12.5, 4, 350, 0},
    // AMD Instinct MI250X, MI300X and MI355X data sheets. For plans only: this trainer has no backend for them. MI250X
    // counts as two devices, one per die, each with half of its 560 W.
    {"mi250x", "MI250X", 191.5, 47.9, 64, 1638, NVLINK(200), PCIE4, 100, 8, 280, 0},
    {"mi300x", "MI300X", 1307.4, 163.4, 192, 5300, NVLINK(448), PCIE5, 400, 8, 750, 0},
    {"mi355x", "MI355X", 2516.6, 157.3, 288, 8000, NVLINK(538), PCIE5, 400, 8, 1400, 0},
};
enum { GPUS = sizeof gpus_ / sizeof *gpus_ };

const char *const gpu_words[] = {
    "none",     "a100-40g", "a100-80g",    "a800",     "a30",    "a40",       "a10g",      "a10",          "h100-pcie",
    "h100-nvl", "h100",     "h800",        "h20",      "gh200",  "h200-nvl",  "h200",      "gb200",        "gb300",
    "b200",     "b300",     "l4",          "l40s",     "l40",    "rtx-a6000", "rtx-a5000", "rtx-6000-ada", "rtx-5090",
    "rtx-4090", "rtx-4080", "rtx-3090-ti", "rtx-3090", "mi250x", "mi300x",    "mi355x",    NULL,
};
_Static_assert(sizeof gpu_words / sizeof *gpu_words == GPUS + 2, "one word for each row, and none");

const Gpu *gpu_row(int word) { return word > 0 && word <= GPUS ? &gpus_[word - 1] : NULL; }

const GpuBand gpu_band_measured = {
    1 / 1.026, 1, 1 / (1 - 0.054), 5, "on two CPU cores (make bench)", true,
};
const GpuBand gpu_band_alone = {
    1 / 1.004, 1, 1 / (1 - 0.052), 19, "in 19 steps on single H200s (docs/cuda.md)", true,
};

const char *const trainer_words[] = {
    [TRAINER_THIS] = "this",
    [TRAINER_NVIDIA] = "nvidia",
    [TRAINER_MEGATRON] = "megatron",
    [TRAINER_ALEPH_ALPHA] = "aleph-alpha",
    [TRAINER_NANOTRON] = "nanotron",
    [TRAINER_FSDP] = "fsdp",
    NULL,
};

GpuBand gpu_band(int trainer, const Gpu *gpu, bool experts, int fp8) {
    for (int i = 0; i < trainer_band_count && gpu != NULL; i++) {
        const TrainerBand *row = &trainer_bands[i];
        char words[128], word[32];
        snprintf(words, sizeof words, " %s ", row->gpus);
        snprintf(word, sizeof word, " %s ", gpu->word);
        if (row->trainer == trainer && row->experts == experts && row->fp8 == fp8 && strstr(words, word) != NULL)
            return (GpuBand){row->low, row->middle, row->high, row->runs, trainer_words[trainer], false};
    }
    return (GpuBand){0};
}

const TrainerMemory *gpu_trainer_memory(int trainer) {
    for (int i = 0; i < trainer_memory_count; i++)
        if (trainer_memory[i].trainer == trainer) return &trainer_memory[i];
    return NULL;
}

int gpu_capability(const Gpu *gpu) {
    if (gpu == NULL) return 0;
    bool grace = gpu->name[0] == 'G';
    char family = gpu->name[grace];
    return family == 'H' ? 90 : family == 'B' ? 100 : strncmp(gpu->name, "RTX 5", 5) == 0 ? 120 : 80;
}

// cuBLASLt supports scales per 128 numbers on compute capability 9.0, and scales per 32 from 10.0 on (cuBLAS
// documentation, "1D and 2D Block Scaling").
const char *gpu_without_fp8(int fp8, int capability) {
    if (fp8 != FP8_OFF && capability < 90) return "needs Hopper or Blackwell GPUs (H100 and newer); use off";
    if (fp8 == FP8_MX && capability < 100) return "mx needs Blackwell GPUs (B200 and newer); use block or tensor";
    if (fp8 == FP8_BLOCK && capability >= 100) return "block needs Hopper GPUs (H100, H200); use mx or tensor";
    return NULL;
}

const Gpu *gpu_by_name(const char *device) {
    for (int i = 0; i < GPUS; i++) {
        const char *at = strstr(device, gpus_[i].name);
        if (at == NULL) continue;
        // "A10" must not match "A100", nor "L4" "L40".
        char next = at[strlen(gpus_[i].name)];
        if ((next >= '0' && next <= '9') || (next >= 'A' && next <= 'Z')) continue;
        return &gpus_[i];
    }
    return NULL;
}

const Gpu *gpu_by_peak(double bf16_tflops) {
    for (int i = 0; i < GPUS; i++)
        if (fabs(gpus_[i].bf16 - bf16_tflops) < 0.01 * bf16_tflops) return &gpus_[i];
    return NULL;
}

double gpu_peak(const Gpu *gpu, int precision) { return precision == PRECISION_BF16 ? gpu->bf16 : gpu->fp32; }
