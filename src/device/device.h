// Which device each rank computes on, and the groups that fit its memory: CPUs and MPI, or GPUs and NCCL.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "config/config.h"
#include "cuda/cuda_library.h"
#include "ranks/world.h"

typedef struct Device {
    const CudaLibrary *cuda; // the GPU code; NULL if CPUs compute
    bool shared;             // several ranks on one GPU: messages go through host memory
    int ranks_on_gpu;        // on this rank's, itself included
    int collectives;         // over tensor ranks: Collectives
    char about[256];         // a line for the user: versions, or why the CPU computes; may be empty
} Device;

// The purpose of a group; see CommUse in cuda/comm_cuda.h. Messages between neighbouring stages are announced
// (comm_pushed.h); those of USE_PAIR are announced by the caller.
typedef enum DeviceUse { USE_COMPUTE, USE_BESIDE, USE_NEIGHBOURS, USE_PAIR } DeviceUse;

// Returns whether GPUs would compute, asked by the process that is about to start `ranks` ranks on this host. Allocates
// nothing.
bool device_has_gpus(const Config *config, int64_t ranks);

// Says in one clause why there is no GPU to compute on; empty if the configuration does not want one.
void device_missing(const Config *config, char why[256]);

// Fills in the known figures of the first GPU, per rank; zeros if GPUs would not compute or the GPU is unknown.
// Allocates nothing.
typedef struct DeviceFigures {
    int64_t memory_bytes;
    double peak_tflops; // peak of matrix products in the run's precision
} DeviceFigures;

void device_figures(DeviceFigures *figures, const Config *config);

// Collective. Gives every rank a backend: a GPU of its own, one that it shares if hardware.share_gpu allows it, or the
// CPU. threads: of a CPU rank. NULL with err on the ranks that found the reason (no GPU, too few, unlike ones, an old
// driver).
Backend *device_open(Device *device, const Config *config, World *world, int threads, Error *err);

// Opens the first GPU, only for measuring. NULL with err.
Backend *device_open_one(const Config *config, Error *err);

// Collective over `host`: creates the same group for memory of the device, which owns `host`. On CPUs it is `host`
// itself. NULL with err; NULL without err if host is NULL.
Comm *device_comm(const Device *device, Backend *backend, Comm *host, DeviceUse use, Error *err);

// --- the library with the GPU code (cuda_load.c)

// Returns the library's table. It lies next to the program, or in ../lib/bpipe-trainer where `make install` puts it.
// NULL if it is missing or unusable; `why` then says so in one clause, with the remedy. Every call returns the same
// table, and the library stays loaded until the process ends.
const CudaLibrary *cuda_load(char why[256]);

// Returns whether an NVIDIA driver is loaded on this machine, judged by its device files: costs nothing.
bool cuda_driver_present(void);
