// How much longer published steps of other trainers took than planned: low end, median and high end of a
// band. Made by studies/published.py of its published.json and runs*.csv; sources: docs/published.md.
#include "gpus.h"

const TrainerBand trainer_bands[] = {
    {TRAINER_ALEPH_ALPHA, "a100-40g a100-80g", false, FP8_OFF, 68, 1.09, 1.20, 1.37},
    {TRAINER_MEGATRON, "a100-40g a100-80g", false, FP8_OFF, 177, 1.11, 1.21, 1.41},
    {TRAINER_MEGATRON, "b200", false, FP8_OFF, 9, 1.26, 1.30, 1.37},
    {TRAINER_NANOTRON, "h100", false, FP8_OFF, 107, 1.29, 1.40, 1.60},
    {TRAINER_NVIDIA, "b200 b300 gb200 gb300", true, FP8_OFF, 12, 1.02, 1.58, 2.43},
    {TRAINER_NVIDIA, "b200 gb200 gb300", false, FP8_MX, 11, 1.00, 1.10, 1.18},
    {TRAINER_NVIDIA, "b200 gb200 gb300", false, FP8_TENSOR, 12, 0.91, 1.00, 1.13},
    {TRAINER_NVIDIA, "h100", false, FP8_OFF, 53, 1.03, 1.07, 1.11},
    {TRAINER_NVIDIA, "h100", false, FP8_TENSOR, 47, 0.94, 1.02, 1.10},
    {TRAINER_NVIDIA, "h100", true, FP8_OFF, 14, 0.94, 1.16, 1.49},
};
const int trainer_band_count = sizeof trainer_bands / sizeof *trainer_bands;

// Peak memory over planned bytes.
const TrainerMemory trainer_memory[] = {
    {TRAINER_NANOTRON, 642, 1.16, 1.32, 1.75},
};
const int trainer_memory_count = sizeof trainer_memory / sizeof *trainer_memory;
