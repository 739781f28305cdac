// What GPUs can do in matrix products, by name: the denominator of MFU. The figures are the vendor's; this program has
// measured none of them.
#include "gpu_peak.h"

#include "config/config.h"

#include <string.h>

typedef struct KnownPeak {
    const char *name; // part of the device's name; the first entry that matches counts
    double bf16;      // tensor cores, dense, fp32 accumulation
    double fp32;      // without TF32
} KnownPeak;

// TFLOP/s as the vendor's data sheets give them, at boost clock. Where a sheet gives a figure with sparsity, half of it.
// GeForce cards sum bf16 products into fp32 at half the rate of the workstation's.
static const KnownPeak peaks_[] = {
    {"B200", 2250.0, 75.0},        {"H200 NVL", 835.5, 60.0},  {"H200", 989.5, 66.9},      {"GH200", 989.5, 66.9},
    {"H100 PCIe", 756.5, 51.2},    {"H100 NVL", 835.5, 60.0},  {"H100", 989.5, 66.9},      {"H800", 989.5, 66.9},
    {"H20", 148.0, 44.0},          {"A100", 312.0, 19.5},      {"A800", 312.0, 19.5},      {"A30", 165.0, 10.3},
    {"A40", 149.7, 37.4},          {"A10G", 70.0, 35.0},       {"A10", 125.0, 31.2},       {"L40S", 362.0, 91.6},
    {"L40", 181.0, 90.5},          {"L4", 121.0, 30.3},        {"RTX A6000", 154.8, 38.7}, {"RTX A5000", 111.1, 27.8},
    {"RTX 6000 Ada", 364.2, 91.1}, {"RTX 5090", 209.5, 104.8}, {"RTX 4090", 165.2, 82.6},  {"RTX 4080", 97.5, 48.7},
    {"RTX 3090 Ti", 80.0, 40.0},   {"RTX 3090", 71.0, 35.6},
};

double gpu_peak_tflops(const char *name, int precision) {
    for (size_t i = 0; i < sizeof peaks_ / sizeof *peaks_; i++) {
        const char *at = strstr(name, peaks_[i].name);
        if (at == NULL) continue;
        // "A10" is no part of "A100", nor "L4" of "L40".
        char next = at[strlen(peaks_[i].name)];
        if ((next >= '0' && next <= '9') || (next >= 'A' && next <= 'Z')) continue;
        return precision == PRECISION_BF16 ? peaks_[i].bf16 : peaks_[i].fp32;
    }
    return 0.0;
}
