// Decides which device every rank computes on. CUDA is loaded only if the configuration asks for a GPU, or leaves the
// choice open and an NVIDIA driver is loaded (cuda_load.c).
#include "device.h"
#include "config/gpus.h"
#include "base/alloc.h"
#include "base/units.h"
#include "comm/comm_pushed.h"
#include "cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A rank's GPU and host, gathered on all ranks.
typedef struct Seat {
    GpuIdentity gpu;
    char host[64];
    int32_t node; // index of the host (WorldPlace)
    int32_t gpus; // number of GPUs visible to the rank
    char why[256];
} Seat;

// Returns the number of GPUs visible to this process. If it is 0, `why` has the reason in one clause.
static int count_gpus_(const Config *config, char why[256]) {
    if (config->hardware.device == DEVICE_AUTO && !cuda_driver_present()) {
        snprintf(why, 256, "no NVIDIA driver is installed here");
        return 0;
    }
    const CudaLibrary *cuda = cuda_load(why);
    return cuda == NULL ? 0 : cuda->count(why);
}

// Returns the library that count_gpus_ loaded before.
static const CudaLibrary *loaded_(void) {
    char why[256];
    return cuda_load(why);
}

bool device_has_gpus(const Config *config, int64_t ranks) {
    char why[256];
    if (config->hardware.device == DEVICE_CPU) return false;
    int gpus = count_gpus_(config, why);
    return config->hardware.device == DEVICE_CUDA || config->hardware.share_gpu ? gpus > 0 : gpus >= ranks;
}

void device_missing(const Config *config, char why[256]) {
    why[0] = '\0';
    if (config->hardware.device != DEVICE_CPU) count_gpus_(config, why);
}

void device_figures(DeviceFigures *figures, const Config *config) {
    char why[256];
    int64_t ranks = config_world(config);
    memset(figures, 0, sizeof *figures);
    if (!device_has_gpus(config, ranks)) return;
    int64_t gpus = count_gpus_(config, why);
    GpuIdentity gpu;
    loaded_()->identity(0, &gpu);
    // With several hosts this host sees only some of the GPUs. Ranks share them only if the configuration allows it.
    int64_t sharing = config->hardware.share_gpu && ranks > gpus ? (ranks + gpus - 1) / gpus : 1;
    figures->memory_bytes = gpu.memory_bytes / sharing;
    const Gpu *row = gpu_by_name(gpu.name);
    figures->row = sharing == 1 ? row : NULL;
    figures->peak_tflops = row == NULL ? 0.0 : gpu_peak(row, config->train.precision) / (double)sharing;
}

static int device_choose_(const World *world, int gpus) {
    return gpus > 0 ? world_place(world)->local_rank % gpus : -1;
}

// Returns how many ranks use the GPU of seat `of` (gpu true) or are on its host (gpu false), that seat's rank included.
// Also compares bus addresses: a GPU's MIG instances differ in UUID, but NCCL refuses ranks with the same bus address.
static int ranks_with_(const Seat *seats, int ranks, const Seat *of, bool gpu) {
    int count = 0;
    for (int r = 0; r < ranks; r++) {
        const Seat *at = &seats[r];
        bool bus = at->node == of->node && at->gpu.bus[0] != '\0' && strcmp(at->gpu.bus, of->gpu.bus) == 0;
        bool same = at->gpus > 0 && of->gpus > 0 && (bus || strcmp(at->gpu.id, of->gpu.id) == 0);
        count += gpu ? same : strcmp(at->host, of->host) == 0;
    }
    return count;
}

// Returns 0 if the GPUs can serve the ranks, else -1 with the first reason. All ranks find the same reason.
static int device_refuse_(const Config *config, const Seat *seats, int ranks, Error *err) {
    for (int r = 0; r < ranks; r++) {
        const Seat *seat = &seats[r];
        int there = seat->gpus > 0 ? ranks_with_(seats, ranks, seat, true) : 0;
        if (seat->gpus == 0)
            return error_set(err, EXIT_FAILED, "rank %d on %s has no GPU: %s; use hardware.device: cpu", r, seat->host,
                             seat->why);
        if (there > 1 && !config->hardware.share_gpu)
            return error_set(
                err, EXIT_FAILED,
                "%d ranks on %s have %d GPU%s (%s), and %d would share one; start at most one rank per GPU "
                "(its MIG instances count as one GPU), or set hardware.share_gpu: true, which is slow",
                ranks_with_(seats, ranks, seat, false), seat->host, seat->gpus, seat->gpus == 1 ? "" : "s",
                seat->gpu.name, there);
        if (strcmp(seat->gpu.name, seats[0].gpu.name) != 0)
            return error_set(err, EXIT_FAILED,
                             "rank 0 on %s has a %s, but rank %d on %s has a %s; use the same GPU model on all ranks "
                             "(CUDA_VISIBLE_DEVICES), since a pipeline runs at its slowest stage's speed",
                             seats[0].host, seats[0].gpu.name, r, seat->host, seat->gpu.name);
    }
    return 0;
}

// Decides whether GPUs compute. Returns 1 if they do, 0 if CPUs compute, -1 with err.
static int device_settle_(Device *device, const Config *config, World *world, Error *err) {
    int ranks = world_size(world);
    Seat mine, *seats = xcalloc((size_t)ranks, sizeof *seats);
    memset(&mine, 0, sizeof mine);
    mine.gpus = count_gpus_(config, mine.why);
    int chosen = device_choose_(world, mine.gpus);
    if (mine.gpus > 0) loaded_()->identity(chosen, &mine.gpu);
    if (mine.gpus > 0 && mine.gpu.name[0] == '\0') {
        snprintf(mine.why, sizeof mine.why, "GPU %d does not answer (see nvidia-smi and the kernel log, dmesg)",
                 chosen);
        mine.gpus = 0;
    }
    mine.node = world_place(world)->node;
    snprintf(mine.host, sizeof mine.host, "%.63s", world_place(world)->host);
    if (world_gather_all(world, seats, &mine, sizeof mine, err) != 0) {
        free(seats);
        return -1;
    }
    Error unfit = {0};
    int refused = device_refuse_(config, seats, ranks, &unfit);
    device->ranks_on_gpu = ranks_with_(seats, ranks, &seats[world_rank(world)], true);
    bool any = device->shared = false;
    for (int r = 0; r < ranks; r++) {
        any = any || seats[r].gpus > 0;
        device->shared = device->shared || ranks_with_(seats, ranks, &seats[r], true) > 1;
    }
    free(seats);
    if (refused == 0) return 1;
    if (config->hardware.device == DEVICE_AUTO) {
        if (any) snprintf(device->about, sizeof device->about, "computing on CPUs: %.230s", unfit.text);
        return 0;
    }
    *err = unfit;
    err->everywhere = true;
    return -1;
}

static Backend *create_gpu_(const Config *config, int gpu, Error *err) {
    int precision = config->train.precision;
    Backend *backend = loaded_()->backend_create(precision, gpu, err);
    const Gpu *row = backend != NULL ? gpu_by_name(backend->device) : NULL;
    if (row == NULL) return backend;
    Cost cost;
    Config found = *config; // configuration of the GPU found here: hardware.gpu may name another GPU and its links
    backend->peak_tflops = gpu_peak(row, precision);
    if (config->hardware.gpu > 0 && gpu_row(config->hardware.gpu) != row)
        found.hardware.gpu = 0, found.hardware.tensor_gb_s = row->link_gb_s;
    cost_of_gpu(&cost, &found, backend->peak_tflops * 1e12);
    backend->flops_per_sent_byte = cost_flops_per_sent_byte(&cost, config);
    // Weights are gathered over data ranks in pieces of some MiB. The stages of a node share its network.
    const ParallelConfig *parallel = &config->parallel;
    int64_t world = config_world(config), node = cost_domain(config, world);
    double sharing = (double)min_i64(parallel->pipeline * parallel->tensor, node);
    double network = cost.network * (double)node / (double)config->hardware.gpus_per_node;
    bool near = world <= node;
    double rate = near ? cost_collective_rate(&cost, COST_ALL_GATHER, 64 << 20, (int)config_replicas(config))
                       : fmin(network / sharing, cost.tensor);
    if (rate > 0) backend->flops_per_gathered_byte = cost.flops * cost.efficiency / rate;
    return backend;
}

Backend *device_open(Device *device, const Config *config, World *world, int threads, Error *err) {
    char why[256];
    memset(device, 0, sizeof *device);
    device->collectives = config_copies(config) ? config->parallel.collectives : COLLECTIVES_NCCL;
    int chosen = config->hardware.device == DEVICE_CPU ? 0 : device_settle_(device, config, world, err);
    if (chosen < 0) return NULL;
    if (chosen == 0) return backend_cpu_create(config->train.precision, threads, err);
    Backend *backend = create_gpu_(config, device_choose_(world, count_gpus_(config, why)), err);
    if (backend == NULL) return NULL;
    device->cuda = loaded_();
    const char *unfit = gpu_without_fp8(config->train.fp8, backend->capability);
    if (unfit != NULL) {
        config_error(config, "train.fp8", err, "%s: %s", backend->device, unfit);
        err->everywhere = true;
        backend->destroy(backend);
        return NULL;
    }
    backend->peak_tflops /= device->ranks_on_gpu;
    device->cuda->versions(device->about, sizeof device->about);
    return backend;
}

Backend *device_open_one(const Config *config, Error *err) {
    char why[256];
    if (count_gpus_(config, why) > 0) return create_gpu_(config, 0, err);
    config_error(config, "hardware.device", err, "no GPU to measure: %s; to measure CPUs, set hardware.device: cpu",
                 why);
    return NULL;
}

Comm *device_comm(const Device *device, Backend *backend, Comm *host, DeviceUse use, Error *err) {
    static const CommUse uses[] = {COMM_USE_COMPUTE, COMM_USE_BESIDE, COMM_USE_NEIGHBOURS, COMM_USE_NEIGHBOURS,
                                   COMM_USE_EXCHANGE};
    const CudaLibrary *cuda = device->cuda;
    if (host == NULL || cuda == NULL) return host;
    // NCCL's messages are announced over `host`. Ranks that share a GPU send the messages themselves over `host`.
    bool announced = use == USE_NEIGHBOURS && !device->shared;
    Comm *comm = device->shared ? cuda->staged_create(backend, host, !announced, err)
                                : cuda->nccl_create(backend, host, uses[use], !announced, err);
    if (comm == NULL && announced) host->destroy(host);
    if (comm != NULL && announced) return comm_pushed_create(backend, STREAM_MESSAGES, host, comm);
    bool copies = comm != NULL && use == USE_COMPUTE && device->collectives != COLLECTIVES_NCCL;
    return copies ? cuda->copy_create(backend, comm, host, device->collectives == COLLECTIVES_COPY, err) : comm;
}
