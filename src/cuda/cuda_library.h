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

#include "backend_cuda.h"
#include "comm_cuda.h"

#include <stdlib.h>

#define CUDA_LIBRARY_FILE "libtrainer_cuda.so"

// The Makefile passes a checksum of the headers above, so that a library built from other sources is refused.
#ifndef CUDA_INTERFACE
#define CUDA_INTERFACE 0
#endif

typedef struct CudaLibrary {
    int64_t interface; // CUDA_INTERFACE of the library's build; first, so that every version can read it
    int (*count)(char why[256]);
    void (*identity)(int device, GpuIdentity *identity);
    void (*versions)(char *text, int64_t size);
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

#include <sys/cdefs.h>

__BEGIN_DECLS

// Returns the table, which lives as long as the library. The trainer looks this name up with dlsym.
__attribute__((visibility("default"))) const CudaLibrary *cuda_library(void);

__END_DECLS
