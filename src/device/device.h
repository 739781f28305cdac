// Each rank's device, and the groups (Comm) that exchange data in its memory: over MPI for CPUs, over NCCL for GPUs.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "config/config.h"
#include "config/gpus.h"
#include "cuda/cuda_library.h"
#include "ranks/world.h"

typedef struct Device {
    const CudaLibrary *cuda; // the GPU code; NULL if CPUs compute
    bool shared;             // several ranks on one GPU: messages go through host memory
    int ranks_on_gpu;        // number of ranks on this rank's GPU, itself included
    int collectives;         // implementation of collectives over tensor ranks (Collectives)
    char about[256];         // a line for the user: versions, or why the CPU computes; may be empty
} Device;

// The purpose of a group; see CommUse in cuda_library.h. Messages of USE_NEIGHBOURS are announced (comm_pushed.h);
// the caller announces those of USE_PAIR.
typedef enum DeviceUse { USE_COMPUTE, USE_BESIDE, USE_NEIGHBOURS, USE_PAIR, USE_EXCHANGE } DeviceUse;

// Returns whether `ranks` ranks would compute on GPUs if they were started on this host. Allocates no memory on a GPU.
bool device_has_gpus(const Config *config, int64_t ranks);

// Writes in one clause why no GPU is available; empty if the configuration does not ask for a GPU.
void device_missing(const Config *config, char why[256]);

// Figures of a GPU, or one rank's share of them if several ranks share the GPU.
typedef struct DeviceFigures {
    int64_t memory_bytes;
    double peak_tflops; // peak of matrix products in the run's precision
    const Gpu *row;     // NULL: unknown, or the GPU is shared
} DeviceFigures;

// Fills in the figures of the first GPU. All are 0 if CPUs would compute; peak_tflops is 0 if the GPU is unknown.
// Allocates no memory on the GPU.
void device_figures(DeviceFigures *figures, const Config *config);

// Collective. Creates every rank's backend: on a GPU of its own, on a shared GPU if hardware.share_gpu allows it, or on
// the CPU. threads: threads of a CPU rank. NULL with err on the ranks that found the reason (no GPU, too few GPUs,
// different models, an old driver).
Backend *device_open(Device *device, const Config *config, World *world, int threads, Error *err);

// Opens the first GPU, only for measuring. NULL with err.
Backend *device_open_one(const Config *config, Error *err);

// Collective over `host`. Creates a group of the same ranks for the device's memory; the new group owns `host`. On CPUs
// returns `host` itself. NULL with err; NULL without err if host is NULL.
Comm *device_comm(const Device *device, Backend *backend, Comm *host, DeviceUse use, Error *err);

// --- the library with the GPU code (cuda_load.c)

// Returns the library's table. The library is next to the program, or in ../lib/bpipe-trainer where `make install` puts
// it. NULL if the library is missing or unusable; `why` then has the reason in one clause. Every call returns the same
// table, and the library stays loaded until the process ends.
const CudaLibrary *cuda_load(char why[256]);

// Returns whether an NVIDIA driver is loaded on this machine. Only looks for the driver's device files, which is fast.
bool cuda_driver_present(void);
