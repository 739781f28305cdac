// Measured kernels of GPUs. studies/kernel_tables.py made this file; the columns are in gpus.h.
//
// Products and collectives: tables of ai-dynamo/aiconfigurator (095f58a5, 2026-11, Copyright NVIDIA, Apache-2.0), in
// aic-core/src/aiconfigurator_core/systems/data. Products are taken at the power limit where such a table exists (H200,
// B200, GB200; H100 as H200), else in bursts (A100, L40S), or as 0.85 of a burst (B300, GB300). Attention on
// Hopper: this trainer's on an H200 at its power limit. Hopper's non-deterministic backward, GB200 (also for B200) and
// GB300: cuDNN 9.19 to 9.22, NVIDIA/cudnn-frontend@3929da2. A100: FlashAttention-2's own figures. Heads that fill a
// device: MooreThreads/SimuMax@4dcaae5 (A100, B200; Hopper: scaled by multiprocessors), or the same runs on the H200.
// Passes: RMSNorm's share of the memory's rate in cudnn-frontend's benchmarks. Products that add to fp32: measured with
// this trainer on the H200, used for all GPUs. 8-bit products: the tables of TensorRT-LLM 1.3.0rc20, less
// the passes that quantize.
#include "gpus.h"

#include <string.h>

// Bus bandwidth of NCCL in 1e9 bytes/s at 1, 4, 16, 32, 64, 128, 256 and 512 MiB: all-gather, reduce-scatter and
// all-reduce of 2, 4 and 8 ranks each. 0: not measured.
static const uint16_t a100_[GPU_COLLECTIVES][GPU_SIZES] = {
    {26, 48, 90, 109, 126, 135, 143, 150},  {35, 52, 106, 143, 155, 174, 182, 192},
    {34, 77, 109, 135, 167, 178, 193, 205}, {27, 51, 102, 125, 146, 155, 162, 167},
    {37, 55, 115, 152, 166, 187, 195, 203}, {39, 71, 119, 140, 179, 188, 204, 213},
    {26, 75, 131, 150, 171, 180, 188, 193}, {53, 91, 137, 175, 185, 201, 209, 217},
    {47, 95, 136, 160, 197, 201, 215, 222}};
static const uint16_t h100_[GPU_COLLECTIVES][GPU_SIZES] = {
    {46, 78, 150, 181, 211, 229, 245, 258},  {58, 85, 190, 230, 258, 287, 305, 318},
    {54, 110, 213, 234, 282, 299, 322, 335}, {49, 88, 158, 175, 198, 215, 229, 249},
    {68, 96, 212, 237, 259, 283, 297, 310},  {63, 123, 211, 264, 293, 307, 325, 336},
    {71, 127, 204, 234, 264, 288, 305, 318}, {87, 149, 254, 287, 305, 328, 341, 350},
    {72, 145, 241, 294, 362, 406, 430, 445}};
static const uint16_t h200_[GPU_COLLECTIVES][GPU_SIZES] = {
    {46, 79, 155, 186, 215, 233, 246, 258},  {58, 88, 197, 239, 267, 292, 305, 317},
    {54, 89, 219, 238, 285, 309, 324, 337},  {50, 90, 166, 182, 205, 220, 231, 248},
    {67, 96, 217, 246, 267, 289, 301, 311},  {64, 121, 211, 263, 295, 313, 328, 337},
    {74, 129, 220, 241, 270, 290, 303, 315}, {87, 158, 255, 293, 311, 329, 341, 348},
    {70, 143, 241, 298, 367, 416, 446, 460}};
static const uint16_t b200_[GPU_COLLECTIVES][GPU_SIZES] = {
    {41, 90, 224, 309, 353, 396, 420, 438},  {53, 125, 217, 354, 466, 514, 548, 567},
    {49, 126, 141, 258, 427, 568, 598, 617}, {44, 95, 222, 307, 339, 362, 387, 412},
    {56, 129, 230, 359, 468, 504, 529, 552}, {45, 135, 151, 274, 431, 565, 593, 613},
    {74, 114, 314, 403, 457, 496, 515, 534}, {83, 176, 263, 410, 554, 589, 611, 634},
    {61, 138, 296, 350, 422, 590, 657, 704}};
static const uint16_t gb200_[GPU_COLLECTIVES][GPU_SIZES] = {
    {41, 88, 219, 311, 353, 394, 417, 437},  {52, 121, 213, 350, 465, 516, 544, 564}, {0, 0, 0, 0, 0, 0, 0, 0},
    {42, 93, 222, 309, 338, 360, 384, 409},  {54, 126, 227, 352, 465, 504, 525, 549}, {0, 0, 0, 0, 0, 0, 0, 0},
    {72, 110, 311, 404, 456, 497, 511, 530}, {80, 172, 251, 410, 552, 588, 607, 628}, {0, 0, 0, 0, 0, 0, 0, 0}};

static const GpuKernels kernels_[] = {
    {"a100-40g", 0.802, 8.0, 74, {0.684, 489, 210}, {0.643, 489, 75}, {0.643, 489, 75}, 1, 1, 0.8, 0.42, a100_},
    {"a100-80g", 0.802, 8.0, 74, {0.684, 489, 210}, {0.643, 489, 75}, {0.643, 489, 75}, 1, 1, 0.8, 0.42, a100_},
    {"a800", 0.802, 8.0, 74, {0.684, 489, 210}, {0.643, 489, 75}, {0.643, 489, 75}, 1, 1, 0.8, 0.42, NULL},
    {"h100", 0.702, 2.7, 98, {0.633, 528, 128}, {0.633, 1130, 92}, {0.531, 669, 160}, 1.90, 1.50, 0.76, 0.42, h100_},
    {"h800", 0.702, 2.7, 98, {0.633, 528, 128}, {0.633, 1130, 92}, {0.531, 669, 160}, 1.90, 1.50, 0.76, 0.42, NULL},
    {"gh200", 0.702, 2.7, 98, {0.633, 528, 128}, {0.633, 1130, 92}, {0.531, 669, 160}, 1.90, 1.50, 0.76, 0.42, NULL},
    {"h200", 0.702, 2.7, 98, {0.633, 528, 128}, {0.633, 1130, 92}, {0.531, 669, 160}, 1.90, 1.48, 0.76, 0.42, h200_},
    {"b200", 0.61, 2.5, 50, {0.723, 408, 765}, {0.57, 1035, 140}, {0.501, 1035, 140}, 1.95, 2.00, 0.72, 0.42, b200_},
    {"b300", 0.665, 2.7, 54, {0.809, 148, 765}, {0.652, 1180, 140}, {0.581, 1180, 140}, 1.97, 2.00, 0.72, 0.42, NULL},
    {"gb200", 0.587, 2.4, 59, {0.723, 408, 765}, {0.57, 1035, 140}, {0.501, 1035, 140}, 1.92, 2.00, 0.72, 0.42, gb200_},
    {"gb300", 0.661, 3.1, 58, {0.809, 148, 765}, {0.652, 1180, 140}, {0.581, 1180, 140}, 1.93, 2.00, 0.72, 0.42, NULL},
    {"l40s", 0.62, 4.0, 67, {0.5, 500, 0}, {0.5, 500, 0}, {0.5, 500, 0}, 1, 1, 0.8, 0.42, NULL},
};

const GpuKernels *gpu_kernels(const Gpu *gpu) {
    for (size_t i = 0; gpu != NULL && i < sizeof kernels_ / sizeof *kernels_; i++)
        if (strcmp(kernels_[i].word, gpu->word) == 0) return &kernels_[i];
    return NULL;
}
