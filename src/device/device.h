// Which device each rank computes on, and the groups that fit its memory: CPUs and MPI, or GPUs and NCCL.
#ifndef DEVICE_H
#define DEVICE_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "config/config.h"
#include "ranks/world.h"

typedef struct Device {
    const struct CudaLibrary *cuda; // the GPU code; NULL if CPUs compute
    bool shared;                    // several ranks on one GPU: messages go through host memory
    int ranks_on_gpu;               // on this rank's, itself included
    int numa_node;                  // of the host, next to this rank's GPU; -1: not known, or of no consequence
    char about[256];                // a line for the user: versions, or why the CPU computes; empty: none
} Device;

// What a group is for; see CommUse in cuda/comm_cuda.h.
typedef enum DeviceUse { USE_COMPUTE, USE_BESIDE, USE_NEIGHBOURS } DeviceUse;

// Returns whether GPUs would compute, asked by the process that is about to start `ranks` ranks on this host. Allocates
// nothing.
bool device_has_gpus(const Config *config, int64_t ranks);

// Says in one clause why there is no GPU to compute on; empty if the configuration wants none.
void device_missing(const Config *config, char why[256]);

// Fills in what the first GPU is known to offer each rank; zeros if GPUs would not compute or the GPU is unknown.
// Allocates nothing.
typedef struct DeviceFigures {
    int64_t memory_bytes;
    double peak_tflops; // of matrix products in the run's precision
} DeviceFigures;

void device_figures(DeviceFigures *figures, const Config *config);

// Collective. Gives every rank a backend: a GPU of its own, one that it shares if hardware.share_gpu allows it, or the
// CPU. threads: of a CPU rank. NULL with err on the ranks that found the reason (no GPU, too few, unlike ones, an old
// driver).
Backend *device_open(Device *device, const Config *config, World *world, int threads, Error *err);

// Opens the first GPU, for measuring alone. NULL with err.
Backend *device_open_one(const Config *config, Error *err);

// Collective over `host`: creates the same group for memory of the device. On CPUs it is `host` itself; otherwise it
// takes ownership of `host` if `owns`. NULL with err; NULL without err if host is NULL.
Comm *device_comm(const Device *device, Backend *backend, Comm *host, DeviceUse use, bool owns, Error *err);

#endif
