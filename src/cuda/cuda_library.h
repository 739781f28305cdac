// The GPU code as the trainer sees it: a shared library of its own (libtrainer_cuda.so) that is loaded only when a run
// uses a GPU, so that other runs do not load CUDA, cuBLASLt, cuDNN and NCCL.
//
// The library exports one symbol, cuda_library, which returns the table below. src/device/cuda_load.c finds the file,
// compares `interface` and calls through the table; nothing else in the trainer refers to src/cuda.
//
// Another library may take its place: link any implementation of cuda_library (the virtual GPU of test/virtual builds
// src/cuda over its own CUDA runtime) under the same file name and put it next to the program. Trainer and library
// share the structs of the headers included here and no code: each links its own copy of the functions it calls.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

// Properties of a visible GPU, read without creating a context, which would take memory.
typedef struct GpuIdentity {
    char id[40]; // UUID in hexadecimal, different for every GPU
    char name[80];
    char bus[16]; // PCI address, "0000:3b:00.0"
    int64_t memory_bytes;
} GpuIdentity;

// --- Communication between ranks with GPU memory. Each group is created from the host's group of the same ranks, which
// carries NCCL's start-up data and all sums of doubles, because doubles are in host memory.

// The use of a group, which decides its communicators and streams.
typedef enum CommUse {
    // Sums and gathers with results that compute reads, on a separate stream. They start after all work queued on
    // compute before the call. `test` reports completion at once and makes later work on compute wait on the device.
    COMM_USE_COMPUTE,
    // Like COMM_USE_COMPUTE, plus exchanges.
    COMM_USE_EXCHANGE,
    // Sums and gathers on a separate stream. They start after all work queued on compute before the call, and are
    // complete when `test` reports it.
    COMM_USE_BESIDE,
    // Messages between two ranks. Every connected direction has its own communicator and stream, so a waiting receive
    // blocks nothing else, and traffic in both directions cannot deadlock.
    COMM_USE_NEIGHBOURS
} CommUse;

// Index into CommRequest.detail. The entry is 1 if the host's group does the work (that group uses the lower entries),
// 2 if comm_copy.cpp does the work, else 0.
enum { COMM_ON_HOST = 3 };

// Creates a group over NCCL; every rank of the group must call this. The communicator for collectives is created here,
// the communicators for messages in `connect`. Takes ownership of `host` if `owns`, even on failure. NULL with err.
Comm *comm_nccl_create(Backend *be, Comm *host, CommUse use, bool owns, Error *err);

// Creates a group for COMM_USE_COMPUTE that gathers and sums by copies once use_memory has mapped every rank's memory
// into the others. `other`, a group of the same ranks that owns `host`, runs the collectives that copies do not
// support, and all collectives before use_memory. If a rank cannot map a peer's memory, or may have no NVLink to it,
// `other` runs all collectives; if `demanded`, use_memory fails without the memory, and does without NVLink. Takes
// ownership of `other`, even on failure. NULL with err.
Comm *comm_copy_create(Backend *be, Comm *other, Comm *host, bool demanded, Error *err);

// Creates a group that communicates through host memory and `host`. It is slow, but allows ranks to share a GPU, which
// NCCL refuses. Takes ownership of `host` if `owns`, even on failure. NULL with err.
Comm *comm_staged_create(Backend *be, Comm *host, bool owns, Error *err);

// --- the table

#define CUDA_LIBRARY_FILE "libtrainer_cuda.so"

// The Makefile passes a checksum of all headers with structs that trainer and library share, so that a library built
// from other sources is refused.
#ifndef CUDA_INTERFACE
#define CUDA_INTERFACE 0
#endif

typedef struct CudaLibrary {
    int64_t interface; // CUDA_INTERFACE of the library's build; first, so that every version can read it
    // Returns the number of GPUs visible to this process. If it is 0, `why` is the reason in one clause, such as a
    // missing or an outdated driver. Allocates no GPU memory.
    int (*count)(char why[256]);
    // Fills in the identity, or zeros if the GPU does not answer.
    void (*identity)(int device, GpuIdentity *identity);
    // Writes "driver for CUDA 13.0, CUDA 13.0, cuBLAS 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
    void (*versions)(char *text, int64_t size);
    // Creates the backend of one GPU; `device` is its index among the visible GPUs, from 0. Allocates 64 MiB of GPU
    // memory: scratch of the kernels and cuBLASLt's workspace. Returns NULL with err on failure.
    Backend *(*backend_create)(int precision, int device, Error *err);
    Comm *(*nccl_create)(Backend *be, Comm *host, CommUse use, bool owns, Error *err);
    Comm *(*copy_create)(Backend *be, Comm *other, Comm *host, bool demanded, Error *err);
    Comm *(*staged_create)(Backend *be, Comm *host, bool owns, Error *err);
} CudaLibrary;

// Sets the variables that CUDA and NCCL read once, at their start, except those that the user has set. A trainer calls
// it before anything else, because an MPI library or UCX with support for CUDA may start CUDA inside MPI_Init.
static inline void cuda_set_environment(void) {
    // A waiting stream may block others that share its hardware queue. By default eight queues serve all streams of a
    // process, and a rank has more streams than that (CUDA C++ programming guide, CUDA_DEVICE_MAX_CONNECTIONS).
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    // EAGER would load every kernel of cuBLASLt, cuDNN and NCCL, about a GiB of files. The rehearsal launches every
    // kernel of a step before the first message, so that no step loads a kernel.
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    // Connects the collectives of a group when it is created, not in the first call (NCCL environment variables).
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    // Sums by NVLink SHARP are "not deterministic between different calls" (NVIDIA/nccl issue 1497), and a resumed run
    // must produce the same bits as an uninterrupted run.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

// Returns the table, which lives as long as the library. The trainer looks this name up with dlsym.
__attribute__((visibility("default"))) const CudaLibrary *cuda_library(void);

__END_DECLS
