// Describes the device of a configuration. device/cost.c has the costs of single products, passes and collectives.
#include "hardware_model.h"
#include "base/alloc.h"
#include "base/grid.h"
#include "base/units.h"

#include "config/config_schema.h"
#include "config/gpus.h"
#include "device/device.h"
#include "fits.h"
#include "ranks/affinity.h"
#include "ranks/topology.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool hardware_is_cpu(const Config *config) {
    if (config->hardware.device != DEVICE_AUTO) return config->hardware.device == DEVICE_CPU;
    return !device_has_gpus(config, config_world(config));
}

// Returns the rate of a key for CPUs, in bytes/s. Defaults of these keys are for GPUs, so an unset key gives 8e9, the
// rate between ranks of one host over Open MPI's shared memory.
static double cpu_rate_(const Config *config, const char *key, double gb_s) {
    bool untouched = config->place[config_find(key) - config_keys] == CONFIG_DEFAULT;
    return untouched ? 8e9 : gb_s * 1e9;
}

void hardware_describe(Hardware *hardware, const Config *config, const char *device) {
    memset(hardware, 0, sizeof *hardware);
    hardware->cpu = hardware_is_cpu(config);
    hardware->action = config->hardware.action_us * 1e-6;
    hardware->step = config->hardware.step_overhead_ms * 1e-3;
    snprintf(hardware->device, sizeof hardware->device, "%s", device);
    const HardwareConfig *given = &config->hardware;
    if (!hardware->cpu) {
        DeviceFigures here = {0};
        // Not called if both figures are given: loading the GPU code takes longer than most plans.
        if (given->peak_tflops == 0 || given->memory_gib == 0) device_figures(&here, config);
        hardware->peak = 1e12 * (given->peak_tflops > 0 ? given->peak_tflops : here.peak_tflops);
        cost_of_gpu(&hardware->cost, config, hardware->peak);
        hardware->gpu = given->gpu > 0                                ? gpu_row(given->gpu)
                        : given->peak_tflops == 0 && here.row != NULL ? here.row
                                                                      : gpu_by_peak(hardware->peak * 1e-12);
        hardware->capability = gpu_capability(gpu_row(given->gpu));
        hardware->memory_bytes = given->memory_gib > 0 ? (int64_t)(given->memory_gib * GIB) : here.memory_bytes;
        return;
    }
    // All ranks of a plan share this host, its cores and its memory.
    int64_t world = config_world(config);
    int cores = affinity_allowed(), threads = affinity_threads(world > cores ? cores : (int)world);
    double peak = given->peak_tflops * 1e12;
    if (peak == 0) peak = 1e12 * backend_cpu_measure_peak(config->train.precision, cores) / (double)world;
    hardware->peak = peak;
    hardware->cores_share = (double)cores / threads;
    hardware->cost = (Cost){
        .flops = peak * (double)world / hardware->cores_share,
        .efficiency = 0.90,
        .half = 8,
        .flash_forward = {0.45, 8, 0},
        .flash_backward = {0.45, 8, 0},
        .memory_rate = 8e9 * threads,
        .pair = cpu_rate_(config, "hardware.pair_gb_s", given->pair_gb_s),
        .tensor = cpu_rate_(config, "hardware.tensor_gb_s", given->tensor_gb_s),
        .network = cpu_rate_(config, "hardware.network_gb_s", given->network_gb_s),
        .host = cpu_rate_(config, "hardware.host_gb_s", given->host_gb_s),
        .latency = given->latency_us * 1e-6,
    };
    cost_take_given(&hardware->cost, config);
    hardware->memory_bytes = (int64_t)(given->memory_gib * GIB);
    hardware->host_bytes = machine_look(false).free_bytes;
}

int64_t hardware_domain(const Hardware *hardware, const Config *config) {
    return hardware->cpu ? config_world(config) : cost_domain(config, config_world(config));
}

int hardware_node(const Hardware *hardware, const Config *config, int rank) {
    return rank / (int)hardware_domain(hardware, config);
}

// Blocks of ranks are dealt to `sets` sets in turn. Returns how many of the first `ranks` ranks are in set `set`.
static int64_t before_(int64_t ranks, int64_t block, int64_t sets, int64_t set) {
    int64_t round = block * sets, rest = ranks % round - set * block;
    return ranks / round * block + max_i64(0, min_i64(rest, block));
}

// Cuts the world into spans. A span's ranks are dealt to sets, in blocks: t tensor ranks are one block of one set; the
// ranks of p stages are p sets of d blocks. The groups of a set have every `apart`-th of its ranks. Goes through the
// domains until the pattern of groups and stages repeats. leaves: [stages] zeros.
static void place_(const Hardware *hardware, const Config *config, RankGroup group, StagePlace *places,
                   int64_t *leaves) {
    const ParallelConfig *parallel = &config->parallel;
    int64_t t = parallel->tensor, e = parallel->expert, p = parallel->pipeline, replicas = config_replicas(config);
    const int64_t ranks[] = {t, t * parallel->context, replicas * t, e, replicas * t}, distance[] = {1, t, t, 1, e};
    int64_t in_a_row = parallel->placement != PLACEMENT_STAGES && p > 1 ? t * parallel->context : replicas * t;
    int64_t all = ranks[group], apart = distance[group], block = min_i64(all, in_a_row); // all: ranks of a set
    int64_t sets = all > block ? p : 1, span = sets * all, world = config_world(config), first = 0;
    int64_t domain = hardware_domain(hardware, config);
    bool alike = sets == 1 && (span % domain == 0 || domain % span == 0); // one domain shows it for all stages
    int64_t again = alike ? domain : p == 1 || (sets > 1 && span < world) ? span : p * in_a_row;
    do {
        int64_t end = min_i64(first + domain, world);
        for (int64_t from = first / span * span; from < end; from += span) {
            int64_t low = max_i64(first - from, 0), high = min_i64(end - from, span), past = low / block + sets;
            for (int64_t at = low / block; at < past && at * block < high; at++) {
                int64_t here = before_(high, block, sets, at % sets) - before_(low, block, sets, at % sets);
                int64_t complete = max_i64(0, here - (all - apart)), groups = min_i64(here, apart);
                int stage = alike ? 0 : topology_coordinates(parallel, (int)(from + at % sets * block)).stage;
                GroupPlace *place = &places[stage].of[group];
                place->nodes += groups; // until the end, a sum over domains
                place->here = max_i64(place->here, here);
                if (here == all) continue;
                place->near = max_i64(place->near, min_i64((here + apart - 1) / apart, all / apart - 1));
                leaves[stage] += groups - complete;
            }
        }
        int64_t crowd = 0;
        for (int64_t s = 0; s < p; s++) crowd += leaves[s];
        for (int64_t s = 0; s < p && crowd > 0; s++) {
            GroupPlace *place = &places[s].of[group];
            if (leaves[s] > 0) place->crowd = max_i64(place->crowd, crowd);
            place->leaving = max_i64(place->leaving, leaves[s]);
            leaves[s] = 0;
        }
        first = end;
    } while (first < world && first % again != 0);
    for (int64_t s = 0; s < p; s++) {
        GroupPlace *place = &places[s].of[group];
        if (alike && s > 0) *place = places[0].of[group];
        else place->nodes = (place->nodes * all - 1) / ((alike ? first : first / p) * apart) + 1;
    }
}

StagePlace *hardware_places(const Hardware *hardware, const Config *config) {
    size_t p = (size_t)config->parallel.pipeline;
    int groups = config->model.experts > 0 ? RANK_GROUPS : GROUP_EXPERTS;
    StagePlace *places = xcalloc(p, sizeof *places);
    int64_t *leaves = xcalloc(p, sizeof *leaves);
    for (int group = 0; group < groups; group++) place_(hardware, config, (RankGroup)group, places, leaves);
    free(leaves);
    return places;
}

double hardware_network(const Hardware *hardware, const Config *config) {
    if (hardware->cpu) return hardware->cost.network;
    return hardware->cost.network * (double)hardware_domain(hardware, config) / (double)config->hardware.gpus_per_node;
}

// ---------------------------------------------------------------- assumptions

bool hardware_theirs_differs(const Hardware *hardware, const Config *config) {
    bool leave = config->train.fp8 == FP8_TENSOR;
    if (leave || config->model.experts == 0) return leave;
    StagePlace *places = hardware_places(hardware, config);
    for (int64_t s = 0; s < config->parallel.pipeline; s++) leave |= places[s].of[GROUP_EXPERTS].leaving > 0;
    free(places);
    return leave;
}

// Returns the band of another program's runs, relative to the planned step of the configured trainer.
static GpuBand others_band_(const Hardware *hardware, const Config *config, int trainer) {
    GpuBand band = gpu_band(trainer, hardware->gpu, config->model.experts > 0, config->train.fp8);
    if (trainer == config->hardware.trainer || !hardware_theirs_differs(hardware, config)) return band;
    if (hardware->theirs == 0) return (GpuBand){0};
    band.low *= hardware->theirs, band.middle *= hardware->theirs, band.high *= hardware->theirs;
    return band;
}

GpuBand hardware_band(const Hardware *hardware, const Config *config, bool measured) {
    static const GpuBand unknown = {0};
    int trainer = config->hardware.trainer;
    if (hardware->cost.flops == 0) return unknown;
    if (trainer != TRAINER_THIS) return others_band_(hardware, config, trainer);
    if (measured || config->hardware.calibrated) return gpu_band_measured;
    bool hopper = hardware->capability == 90 && !hardware->cost.data_sheet && config->train.precision == PRECISION_BF16;
    return hopper && config_world(config) == 1 && config->model.experts == 0 ? gpu_band_alone : unknown;
}

void hardware_put_others(const Hardware *hardware, const Config *config, double step, JsonOut *out) {
    json_begin(out, "others", '[');
    for (int trainer = TRAINER_NVIDIA; isfinite(step) && trainer <= TRAINER_FSDP; trainer++) {
        GpuBand band = others_band_(hardware, config, trainer);
        if (band.runs == 0) continue;
        json_object(out, NULL, "program %s gpu %s precision %s runs %d low_ms %g mid_ms %g high_ms %g",
                    trainer_words[trainer], hardware->gpu->word, config->train.fp8 == FP8_OFF ? "bf16" : "fp8",
                    band.runs, 1e3 * step * band.low, 1e3 * step * band.middle, 1e3 * step * band.high);
    }
    json_end(out, ']');
}

char *hardware_seconds_text(double seconds, char text[SECONDS_TEXT]) {
    bool whole = seconds >= 9.995;
    double value = whole ? seconds : 1e3 * seconds;
    snprintf(text, SECONDS_TEXT, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, whole ? "s" : "ms");
    return text;
}

// Writes "10.8 to 11.7 s", or with the unit of the middle "10.8 to 11.7". Returns `text`.
enum { RANGE_TEXT = 2 * SECONDS_TEXT + 8 };
static char *range_text_(GpuBand band, double step, char text[RANGE_TEXT]) {
    char low[SECONDS_TEXT], high[SECONDS_TEXT];
    hardware_seconds_text(band.low * step, low);
    hardware_seconds_text(band.high * step, high);
    if (step * band.low >= 9.995) low[strcspn(low, " ")] = '\0';
    snprintf(text, RANGE_TEXT, "%s to %s", low, high);
    return text;
}

char *hardware_others_text(const Hardware *hardware, const Config *config, double value, const char *unit,
                           char text[OTHERS_TEXT]) {
    text[0] = '\0';
    for (int trainer = TRAINER_NVIDIA; trainer <= TRAINER_FSDP; trainer++) {
        GpuBand band = others_band_(hardware, config, trainer);
        char middle[32], low[32], high[32];
        if (band.runs == 0) continue;
        text_add(text, OTHERS_TEXT, "%s%s %s %s (%s to %s)", text[0] != '\0' ? ", " : "", trainer_words[trainer],
                 grid_amount(band.middle * value, middle), unit, grid_amount(band.low * value, low),
                 grid_amount(band.high * value, high));
    }
    return text;
}

void hardware_print_band(const Hardware *hardware, const Config *config, GpuBand band, double step, double mfu,
                         FILE *file) {
    char others[400] = "", range[RANGE_TEXT], middle[SECONDS_TEXT], share[64] = "", runs[24] = "";
    int trainer = config->hardware.trainer;
    const char *whose = trainer == TRAINER_NVIDIA ? "nvidia (NeMo, Megatron-Core)"
                        : trainer == TRAINER_FSDP ? "fsdp (torchtitan and others)"
                                                  : trainer_words[trainer];
    // 1. This trainer's own band, or the band of hardware.trainer.
    if (band.runs > 0) {
        if (mfu > 0) snprintf(share, sizeof share, ", MFU %.0f to %.0f%%", 100 * mfu / band.high, 100 * mfu / band.low);
        if (band.own) snprintf(others, sizeof others, "the range of a plan's errors %s", band.on);
        else snprintf(others, sizeof others, "four of five runs of %s on such GPUs", whose);
        if (!band.own) snprintf(runs, sizeof runs, ", %d runs", band.runs);
        grid_line(file, "expected", "%s (%s%s%s): %s", hardware_seconds_text(band.middle * step, middle),
                  range_text_(band, step, range), share, runs, others);
        return;
    }
    if (hardware->cpu) return;
    if (trainer != TRAINER_THIS) {
        grid_line(file, "expected", "unknown: there are no runs of %s on such GPUs in this precision", whose);
        return;
    }
    // 2. The bands of all other trainers: "nvidia 11.4 s (10.8 to 11.7 s, 53 runs), ..."
    for (int other = TRAINER_NVIDIA; other <= TRAINER_FSDP; other++) {
        GpuBand theirs = others_band_(hardware, config, other);
        if (theirs.runs == 0) continue;
        text_add(others, sizeof others, "%s%s %s (%s, %d runs)", others[0] != '\0' ? ", " : "", trainer_words[other],
                 hardware_seconds_text(theirs.middle * step, middle), range_text_(theirs, step, range), theirs.runs);
    }
    if (others[0] == '\0')
        grid_line(file, "expected", "unknown: no program's steps were measured on such GPUs in this precision");
    else
        grid_line(file, "expected",
                  "%s: the range of four of five such runs; this trainer was not measured on such GPUs", others);
}

void hardware_print_cpus(const Hardware *hardware, FILE *file) {
    if (!hardware->cpu) return;
    grid_line(file, "CPUs", "planned for this machine (%s per rank); to plan for GPUs, name one with hardware.gpu",
              hardware->device);
}

void hardware_print(const Hardware *hardware, FILE *file) {
    const Cost *cost = &hardware->cost;
    if (cost->flops == 0) {
        fprintf(file, "assumed   nothing: times are unknown without hardware.peak_tflops\n");
        return;
    }
    grid_line(
        file, "assumed",
        "matrix products at %.0f%% of %.4g TFLOP/s, divided by 1 + %.0f / k, and %.3g us each; flash attention at up "
        "to %.0f%% and %.0f%%; everything else at %.4g GB/s of memory; softmax in one pass where it is fused, in "
        "fp32 passes where not%s",
        100 * cost->efficiency, cost->flops * 1e-12, cost->half, 1e6 * cost->launch, 100 * cost->flash_forward.share,
        100 * cost->flash_backward.share, cost->memory_rate * 1e-9,
        cost->data_sheet ? "; from the data sheet: this GPU was not measured" : "");
    if (hardware->action > 0 || hardware->step > 0)
        grid_line(file, "", "overhead: %.4g us for every forward or backward, %.4g ms for a step",
                  1e6 * hardware->action, 1e3 * hardware->step);
    if (hardware->cpu)
        grid_line(file, "",
                  "at most %.3g rank%s of this host can compute at full speed at a time; further ranks share its cores",
                  hardware->cores_share, hardware->cores_share == 1 ? "" : "s");
}
